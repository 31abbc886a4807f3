"""Times an all-reduce of 16 MB over Gloo, one task per host. Rank 0 prints the shortest time in seconds.

    srun -N2 -n2 python tests/cluster/measure_allreduce.py REPETITIONS

The shortest, since whatever else the machine does only adds time, and no repetition can beat the link.
"""

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist

NUM_BYTES = 16_000_000
PORT = 29_500


def main() -> None:
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    names = subprocess.run(
        ["scontrol", "show", "hostnames", os.environ["SLURM_NODELIST"]], capture_output=True, text=True
    )
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group("gloo", init_method=f"tcp://{names.stdout.split()[0]}:{PORT}", rank=rank, world_size=size)
    torch.set_num_threads(1)
    values = torch.zeros(NUM_BYTES // 4)
    times_s = []
    for _ in range(int(sys.argv[1])):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(values)
        times_s.append(time.perf_counter() - start)
    if rank == 0:
        print(min(times_s))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Records what the study's transport does over two hosts, one task each, as traces that `parse_traces.py` reads.

    srun -N2 -n2 python tests/cluster/measure_transport.py REPETITIONS NUM_BYTES FOLDER

A step is an all-reduce of NUM_BYTES and an exchange of as many each way, to which rank 1 comes late.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.communication import Communicator, Kind

PORT = 29_500
LATE_S = 0.05


def main() -> None:
    repetitions, num_bytes, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    names = subprocess.run(
        ["scontrol", "show", "hostnames", os.environ["SLURM_NODELIST"]], capture_output=True, text=True
    )
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group("gloo", init_method=f"tcp://{names.stdout.split()[0]}:{PORT}", rank=rank, world_size=size)
    torch.set_num_threads(1)
    communicator = Communicator(rank, size)
    values, received = torch.zeros(2, num_bytes // 4)
    counts = [0 if other == rank else len(values) for other in range(size)]

    def step() -> None:
        communicator.wait_for_all()
        with phase(Phase.SYNC):
            communicator.sum(values)
        communicator.wait_for_all()
        time.sleep(LATE_S * rank)
        with phase(Phase.EXCHANGE):
            communicator.exchange(values, counts, received, counts, Kind.FEATURES)

    step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as trace:
        for number in range(repetitions):
            with record_function(f"ProfilerStep#{number}"):
                step()
    path = folder / f"rank{rank}.json"
    trace.export_chrome_trace(str(path))
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": size}}))
    communicator.wait_for_all()
    os._exit(0)


if __name__ == "__main__":
    main()

"""What share of the transport's speed the halo exchange reaches, on 2 and 4 ranks of this machine over Gloo.

    python tests/benchmarks/bench_exchange.py

makes the power-law graph of config/strategies.yaml, partitions it with METIS, and exchanges its halo, of rows of each
of `--widths`. Bare is what torch.distributed does with the same packed buffers: the faster of `all_to_all_single` and
of `isend` and `irecv` in one batch. Beside it stand `Communicator.exchange` with the same buffers, and what `Boundary`
does forward and backward: it packs the rows, puts own rows beside the halo's, and adds up gradients as well. The cases
take turns; a turn ends when the slowest rank has ended, and shown is the median of `--turns`. More ranks than cores
measure the scheduler too.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.multiprocessing

SCRIPTS = Path(__file__).parents[2] / "workflow" / "scripts"
sys.path.insert(0, str(SCRIPTS))

from anatomy.graphs.store import open_graph  # noqa: E402
from anatomy.partitions.store import open_partition  # noqa: E402
from anatomy.training.boundary import Boundary  # noqa: E402
from anatomy.training.communication import Communicator, Kind  # noqa: E402
from anatomy.training.parts import LocalPart, local_part  # noqa: E402

GRAPH_OPTIONS = [
    "--source", "powerlaw", "--num-nodes", "50000", "--mean-degree", "20", "--exponent", "2.5", "--num-classes", "64",
    "--num-features", "64", "--train-fraction", "0.1", "--name", "powerlaw",
]  # fmt: skip
BARE = ("all_to_all_single", "isend and irecv")
CASES = (*BARE, "Communicator", "forward", "backward")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--widths", type=int, nargs="*", default=[64, 256])
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    arguments = parser.parse_args()
    print(f"{'ranks':>5} {'width':>5} {'MB':>6} " + " ".join(f"{case + ' ms':>20}" for case in CASES), end=" ")
    print(f"{'Communicator / bare':>19} {'Boundary / bare':>15}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run("build_graph.py", *GRAPH_OPTIONS, "--out", folder / "graph")
        for ranks in arguments.ranks:
            options = ["--partitioner", "metis", "--num-parts", ranks, "--out", folder / f"parts-{ranks}"]
            run("partition_graph.py", "--graph", folder / "graph", *options)
            torch.multiprocessing.spawn(
                be_rank, (ranks, folder, arguments.widths, arguments.turns), ranks, start_method="spawn"
            )


def be_rank(rank: int, num_ranks: int, folder: Path, widths: list[int], turns: int) -> None:
    """Exchange as one rank; the first prints a line for each width."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting-{num_ranks}", rank=rank, world_size=num_ranks)
    communicator = Communicator(rank, num_ranks)
    graph = open_graph(folder / "graph")
    part = local_part(graph, open_partition(folder / f"parts-{num_ranks}", graph), rank)
    for width in widths:
        seconds = measure(part, communicator, width, turns)
        sent = torch.tensor(4.0 * width * sum(part.send_counts))
        dist.all_reduce(sent)
        if rank == 0:
            bare = min(seconds[case] for case in BARE)
            shares = bare / seconds["Communicator"], 2 * bare / (seconds["forward"] + seconds["backward"])
            print(f"{num_ranks:5} {width:5} {sent / 1e6:6.1f} ", end="")
            print(" ".join(f"{1e3 * seconds[case]:20.2f}" for case in CASES), end=" ")
            print(f"{shares[0]:19.2f} {shares[1]:15.2f}", flush=True)
    dist.barrier()
    os._exit(0)


def measure(part: LocalPart, communicator: Communicator, width: int, turns: int) -> dict[str, float]:
    """Median seconds of each case, of the slowest rank."""
    boundary = Boundary(part, communicator)
    own, gradient = torch.randn(part.num_own, width), torch.randn(part.num_rows, width)
    send = own[part.send_rows]
    receive = torch.empty(sum(part.receive_counts), width)

    def bare() -> None:
        dist.all_to_all_single(receive, send, part.receive_counts, part.send_counts)

    def messages() -> None:
        pairs = zip(send.split(part.send_counts), receive.split(part.receive_counts), strict=True)
        operations = [
            dist.P2POp(call, rows, rank)
            for rank, (leaving, coming) in enumerate(pairs)
            for call, rows in ((dist.irecv, coming), (dist.isend, leaving))
            if rank != communicator.rank and rows.shape[0]
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    counts = part.send_counts, receive, part.receive_counts
    work: dict[str, Callable[[], object]] = dict(
        zip(
            CASES,
            (
                bare,
                messages,
                lambda: communicator.exchange(send, *counts, Kind.ACTIVATIONS),
                lambda: boundary.forward(own, 1),
                lambda: boundary.backward(gradient, 1),
            ),
            strict=True,
        )
    )
    taken: dict[str, list[float]] = {case: [] for case in CASES}
    for _ in range(turns + 2):
        for case, call in work.items():
            dist.barrier()
            start = time.perf_counter()
            call()
            slowest = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            taken[case].append(slowest.item())
    return {case: median(values[2:]) for case, values in taken.items()}


def run(script: str, *arguments: object) -> None:
    subprocess.run([sys.executable, str(SCRIPTS / script), *map(str, arguments)], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()

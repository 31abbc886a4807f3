"""Made traces of any size, as Kineto writes them: to measure with, where no real trace is large enough.

    python tests/benchmarks/made_traces.py --out FOLDER --num-events 1000000 --num-ranks 2
    python tests/benchmarks/made_traces.py --out FOLDER --gigabytes 2

A data-parallel job takes steps of about 50,000 events per rank: a batch is copied to the GPU and exchanged, many small
layers run forwards and backwards (operators nested three deep, their launches, kernels on the compute stream),
gradients are reduced bucket by bucket on NCCL's stream meanwhile, and the step ends when the GPU has run dry. Ranks are
late by chance, so that collectives wait. Names, arguments, layout of the text and the shares of the kinds of events
follow real traces of PyTorch 2 with shapes recorded and `python_function` off. Times are whole nanoseconds and written
as microseconds with three decimals. The same seed gives the same text.
"""

import argparse
import random
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import kineto_text as text
from isal import igzip

LAYERS_PER_STEP = 2200
LAYERS_PER_BUCKET = 220
FIRST_STEP = 4
BASE_NS = 1_234_567_890_123_456
COMPUTE, NCCL, COPIES = 7, 20, 24
"""Streams."""

ENGINE = "autograd::engine::evaluate_function"
WITHIN = "Memcpy DtoD (Device -> Device)"
COPIED = '"bytes": 65536, "memory bandwidth (GB/s)": 31.16'
FILLED = '"bytes": 4096, "memory bandwidth (GB/s)": 2.28'


class Recording:
    """What the profiler of one rank writes; times in ns."""

    def __init__(self, rank: int, chance: random.Random) -> None:
        self.rank, self.chance = rank, chance
        self.pid, self.engine = 4000 + rank, 4100 + rank
        self.now = BASE_NS + chance.randrange(100_000)
        self.free = dict.fromkeys((COMPUTE, NCCL, COPIES), self.now)
        self.on_cpu: list[str] = []
        self.on_gpu: list[str] = []
        self.num_events = self.number = self.sequence = 0
        self.correlation = 10_000

    def operator(self, name: str, start: int, end: int, args: str = "", thread: int = 0, kind: str = "cpu_op") -> None:
        self.number += 1
        ids = (self.number, self.number, args, self.number)
        tid = thread or self.pid
        self.on_cpu.append(text.ON_CPU % (kind, name, self.pid, tid, start / 1e3, (end - start) / 1e3, *ids))
        self.num_events += 1

    def arrow(self, opens: bool, kind: str, number: int, place: tuple[int, int], at: int) -> None:
        shape, bound = ("s", "") if opens else ("f", ', "bp": "e"')
        self.on_gpu.append(text.ARROW % (shape, number, *place, at / 1e3, kind, kind, bound))
        self.num_events += 1

    def call(self, name: str, length: int, thread: int, cbid: int = 211) -> int:
        """A call of the CUDA runtime; returns its correlation."""
        self.correlation += 1
        numbers = (self.number, cbid, self.correlation)
        self.on_gpu.append(text.CALL % (name, self.pid, thread, self.now / 1e3, length / 1e3, *numbers))
        self.now += length
        self.num_events += 1
        return self.correlation

    def work(
        self, kind: str, name: str, stream: int, span: tuple[int, int], args: str, launch: tuple[int, int]
    ) -> None:
        """Work on the GPU and the arrow from its launch: its start and thread."""
        start, end = span
        queued = '"queued": 0, ' if kind == "kernel" else ""
        numbers = (self.number, queued, stream, self.correlation, args)
        self.on_gpu.append(text.ON_GPU % (kind, name, stream, start / 1e3, (end - start) / 1e3, *numbers))
        self.num_events += 1
        self.arrow(True, "ac2g", self.correlation, (self.pid, launch[1]), launch[0])
        self.arrow(False, "ac2g", self.correlation, (0, stream), start)
        self.free[stream] = end

    def launch(self, kind: str, name: str, stream: int, length: int, args: str, thread: int, call: str) -> None:
        """Launch work that starts when the stream is free."""
        begun = self.now
        self.call(call, 4000 + length % 3000, thread)
        start = max(self.free[stream] + 800, self.now + 2500)
        self.work(kind, name, stream, (start, start + length), args, (begun, thread))


class Layers:
    """Small layers, drawn by chance from a fixed catalogue."""

    def __init__(self, chance: random.Random) -> None:
        kernels = text.kernel_names()
        self.chance = chance
        self.forward = [self._layer(name, kernels) for name in text.OPERATORS.split() for _ in range(4)]

    def _layer(self, name: str, kernels: list[str]) -> tuple[str, str, str, str, str, str, int]:
        pick = self.chance.choice
        width, rows = 2 ** pick(range(4, 10)), pick(range(100, 100_000))
        shape = text.SHAPE % (pick(range(16, 200)), pick((0, 48, 16384)), rows / 432, rows / 54)
        grid = text.GRID % (rows // 64 + 1, pick((64, 128, 256, 512)), pick(range(101)))
        length = int(self.chance.lognormvariate(9.3, 0.9))
        node = "".join(word.title() for word in name.split("_")) + "Backward0"
        dims = text.DIMS % (pick(range(4)), rows, width, width)
        inner = f"aten::{pick(text.INNER_OPERATORS.split())}"
        return f"aten::{name}", inner, node, dims, pick(kernels), f"{shape}{grid}", length

    def run(self, rank: Recording, count: int, backward: bool) -> None:
        """Run some layers one after the other, on the main thread or on the autograd engine's."""
        thread = rank.engine if backward else rank.pid
        for _ in range(count):
            name, inner, node, dims, kernel, args, length = rank.chance.choice(self.forward)
            length = int(length * rank.chance.uniform(0.8, 1.25)) + 900
            start = rank.now
            middle = start + 2700 + length % 2000
            rank.now = middle + 1500
            rank.call("cudaStreamIsCapturing", 300 + length % 500, thread, 317)
            rank.launch("kernel", kernel, COMPUTE, length, args, thread, "cudaLaunchKernel")
            if length % 9 == 0:
                rank.launch("gpu_memset", "Memset (Device)", COMPUTE, 1800, FILLED, thread, "cudaMemsetAsync")
            if length % 5 == 0:
                rank.launch("gpu_memcpy", WITHIN, COMPUTE, 2100, COPIED, thread, "cudaMemcpyAsync")
            end = rank.now + 900
            outer, between = (f"{ENGINE}: {node}", node) if backward else (name, f"{name}_out")
            rank.operator(outer, start, end + 1400, dims, thread)
            rank.operator(between, start + 700, end + 600, dims, thread)
            rank.operator(inner, start + 1100, middle, "", thread)
            rank.operator(name, middle + 300, end, dims, thread)
            if length % 8 == 0:
                rank.arrow(not backward, "fwdbwd", rank.number, (rank.pid, thread), start)
            rank.now = end + 2000


def collective(ranks: list[Recording], name: str, kernel: str, count: int, waits: bool) -> None:
    """One collective of all ranks, whose kernels begin as each rank arrives and end together.

    With `waits` the compute stream goes on only when it has ended.
    """
    arrivals, begun = [], []
    for rank in ranks:
        thread = rank.pid if waits else rank.engine
        rank.sequence += 1
        ordered = "[" + ", ".join(str(other.rank) for other in ranks) + "]"
        args = text.NCCL_ARGS % (name, count, count, len(ranks), ordered, rank.sequence)
        start = rank.now
        rank.operator("record_param_comms", start, start + 60_000, f"{args}, ", thread)
        rank.operator(f"nccl:{name}", start + 10_000, start + 50_000, "", thread, "user_annotation")
        rank.now += 20_000
        begun.append((rank.now, thread, args))
        rank.call("cudaLaunchKernelExC", 11_000, thread, 430)
        arrivals.append(max(rank.free[COMPUTE] + 1000, rank.free[NCCL] + 1000, rank.now + 3000))
        rank.now = start + 62_000
    end = max(arrivals) + 9000 + count // 5
    for rank, arrival, (launched, thread, args) in zip(ranks, arrivals, begun, strict=True):
        shape = text.SHAPE % (96, 87568, 0.074074, 1.259259) + text.GRID % (8, 544, 0)
        rank.work("kernel", kernel, NCCL, (arrival, end + rank.rank * 150), f"{shape}, {args}", (launched, thread))
        if waits:
            rank.free[COMPUTE] = max(rank.free[COMPUTE], rank.free[NCCL] + 1200)


def take_step(ranks: list[Recording], layers: Layers, number: int) -> None:
    """One training step of all ranks; collectives tie them together."""
    starts = [rank.now for rank in ranks]
    for rank in ranks:
        rank.operator("aten::to", rank.now, rank.now + 40_000, "")
        copied = '"bytes": 4194304, "memory bandwidth (GB/s)": 21.84'
        length = rank.chance.randrange(150_000, 400_000)
        rank.launch("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", COPIES, length, copied, rank.pid, "cudaMemcpyAsync")
        rank.free[COMPUTE] = rank.free[COPIES]
        rank.now += 40_000
    collective(ranks, "all_to_allv", "ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)", 1_600_000, True)
    for rank in ranks:
        layers.run(rank, LAYERS_PER_STEP, False)
    for _ in range(LAYERS_PER_STEP // LAYERS_PER_BUCKET):
        for rank in ranks:
            layers.run(rank, LAYERS_PER_BUCKET, True)
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
        collective(ranks, "allreduce", name, 6_637_568, False)
    for rank, start in zip(ranks, starts, strict=True):
        end_step(rank, start, number)


def end_step(rank: Recording, start: int, number: int) -> None:
    """Read the loss, which waits until the GPU has run dry, and close the step."""
    dry = max(rank.free.values())
    rank.free[COMPUTE] = dry
    begun = rank.now
    bytes_ = '"bytes": 4, "memory bandwidth (GB/s)": 0.002'
    rank.launch("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", COMPUTE, 1900, bytes_, rank.pid, "cudaMemcpyAsync")
    rank.call("cudaStreamSynchronize", max(rank.free[COMPUTE] - rank.now, 0) + 3000, rank.pid, 131)
    rank.operator("aten::item", begun - 1000, rank.now + 1000)
    rank.now += 2000
    rank.operator("Optimizer.step#Adam.step", begun - 1500, rank.now, "", 0, "user_annotation")
    rank.operator(f"ProfilerStep#{number}", start, rank.now, "", 0, "user_annotation")
    rank.now += 50_000


def make_traces(folder: Path, num_ranks: int, num_events: int = 0, num_bytes: int = 0, seed: int = 0) -> None:
    """Write `rank{r}.json.gz` of all ranks: whole steps, until there are that many events and bytes of text in all."""
    folder.mkdir(parents=True)
    layers = Layers(random.Random(seed))
    ranks = [Recording(rank, random.Random(seed + 1 + rank)) for rank in range(num_ranks)]
    size, number = 0, FIRST_STEP
    with ExitStack() as open_files:
        files = [open_files.enter_context(igzip.open(folder / f"rank{rank.rank}.json.gz", "wb", 2)) for rank in ranks]
        # As in real traces, what ran on the GPU follows after all that ran on the CPU.
        later = [open_files.enter_context(tempfile.TemporaryFile()) for _ in ranks]
        for rank, file in zip(ranks, files, strict=True):
            write(file, [text.HEADER.format(rank=rank.rank, num_ranks=num_ranks)])
        while sum(rank.num_events for rank in ranks) < num_events or size < num_bytes:
            take_step(ranks, layers, number)
            number += 1
            for rank, file, rest in zip(ranks, files, later, strict=True):
                size += write(file, rank.on_cpu) + write(rest, rank.on_gpu)
                rank.on_cpu, rank.on_gpu = [], []
        for rank, file, rest in zip(ranks, files, later, strict=True):
            for piece in pieces(rest):
                file.write(piece)
            write(file, closing(rank))


def closing(rank: Recording) -> list[str]:
    """What ends a trace: names of the process and its threads, and the profiler's own span."""
    threads = [("process_name", 0, "python"), ("thread_name", rank.pid, "main"), ("thread_name", rank.engine, "engine")]
    start, length = BASE_NS / 1e3, (rank.now - BASE_NS) / 1e3
    named = [text.NAMED % (name, start, rank.pid, thread, says) for name, thread, says in threads]
    return [*named, text.LAST.format(start=start, length=length, rank=rank.rank)]


def write(file: IO[bytes], texts: list[str]) -> int:
    return file.write("".join(texts).encode())


def pieces(file: IO[bytes], size: int = 1 << 20) -> Iterator[bytes]:
    """A file from its beginning, in pieces."""
    file.seek(0)
    while piece := file.read(size):
        yield piece


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to make")
    parser.add_argument("--num-events", type=int, default=0, help="events of all ranks together, at least")
    parser.add_argument("--gigabytes", type=float, default=0, help="text of all ranks together before compression")
    parser.add_argument("--num-ranks", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    num_bytes = int(arguments.gigabytes * 1e9)
    make_traces(arguments.out, arguments.num_ranks, arguments.num_events, num_bytes, arguments.seed)


if __name__ == "__main__":
    main()

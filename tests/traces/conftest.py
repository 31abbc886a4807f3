"""Kineto traces written by hand, event by event."""

import gzip
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anatomy.traces.options import ParseOptions
from anatomy.traces.rank.examine import examine
from anatomy.traces.rank.record import RankRecord
from anatomy.traces.reading.trace import read_trace

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can import timeline_cases

MAIN, WORKER, OTHER_THREAD = 100, 200, 300
"""Threads: the one that trains, one of Gloo, and one more."""


class TraceBuilder:
    """One rank's trace; times are in microseconds, intervals are start and end."""

    def __init__(self, rank: int | None = 0, world_size: int | None = 1) -> None:
        self.content: dict[str, Any] = {"schemaVersion": 1, "traceEvents": []}
        stated = {"backend": "gloo", "rank": rank, "world_size": world_size}
        self.content["distributedInfo"] = {key: value for key, value in stated.items() if value is not None}
        self._correlation = 0

    def event(self, category: str, name: str, start: float, end: float, thread: int = MAIN, **args: Any) -> None:
        """One complete event."""
        self.content["traceEvents"].append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 1,
                "tid": thread,
                "ts": start,
                "dur": end - start,
                "args": args,
            }
        )

    def step(self, number: int, start: float, end: float) -> None:
        self.event("user_annotation", f"ProfilerStep#{number}", start, end)

    def phase(self, name: str, start: float, end: float, thread: int = MAIN) -> None:
        self.event("user_annotation", f"phase:{name}", start, end, thread)

    def op(self, name: str, start: float, end: float, thread: int = MAIN) -> None:
        self.event("cpu_op", name, start, end, thread)

    def gloo(self, kind: str, start: float, end: float, thread: int = WORKER, **args: Any) -> None:
        self.event("user_annotation", f"gloo:{kind}", start, end, thread, **args)

    def kernel(self, name: str, start: float, end: float, stream: int = 7, launch: float | None = None, **args) -> None:
        """Work on the GPU, with the launch that caused it where `launch` says when that was."""
        self._correlation += 1
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        self.event(category, name, start, end, stream, stream=stream, correlation=self._correlation, **args)
        if launch is not None:
            self.event("cuda_runtime", "cudaLaunchKernel", launch, launch + 1, correlation=self._correlation)

    def text(self) -> str:
        return json.dumps(self.content)

    def write(self, folder: Path, name: str) -> Path:
        """Write the trace, gzipped where its name ends in .gz."""
        folder.mkdir(parents=True, exist_ok=True)
        data = self.text().encode()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return folder / name


@pytest.fixture(scope="session")
def new_trace() -> type[TraceBuilder]:
    """The class with which tests write traces."""
    return TraceBuilder


@pytest.fixture(scope="session")
def examined() -> Callable[..., RankRecord]:
    """A function from a written trace to the record of its rank."""

    def run(trace: TraceBuilder, **options: Any) -> RankRecord:
        parse_options = ParseOptions(**options)
        with tempfile.TemporaryDirectory() as folder:
            return examine(read_trace(trace.write(Path(folder), "rank0.json"), parse_options), parse_options)

    return run

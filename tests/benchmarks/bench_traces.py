"""Reading traces with this project beside HolisticTraceAnalysis 0.5.0, on the same files, one after the other.

    python tests/benchmarks/bench_traces.py

makes the environment that HTA needs (once, in tests/benchmarks/.hta), makes traces of a million events over two ranks,
and measures on them and on the eight ranks of a real job (--shared): seconds and memory of both programs as a user
would run them, interpreter and imports included, in turns. HTA loads the traces and makes its temporal breakdown,
overlap and kernel breakdown without plots; ours is parse_traces.py, which writes all of its tables. Then a trace of
2 GB is read by ours alone, and the answers of both are compared with a plain count. Prints Markdown, and with --page
writes it into docs/traces-benchmark.md. Exit status 1 if a limit is missed or an answer is off by more than 0.1%
without a known reason.

Seconds are medians of runs that nothing watches; memory is that of all processes together, seen in further runs.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from agreement import compare, inputs
from made_traces import make_traces
from watching import Run, memory_of, run

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "traces-benchmark.md"
BEGIN, END = "<!-- measured: written by bench_traces.py --page -->", "<!-- end of what is measured -->"
HTA_PACKAGES = ("HolisticTraceAnalysis==0.5.0", "pandas==2.3.3", "numpy==2.3.5", "plotly==7.1.0")
"""With pandas 3 it is as fast, and fails where all correlation numbers fit into 16 bits but the rows do not."""

MAX_BYTES_BIG = 500e6


@dataclass(frozen=True)
class Measured:
    """Medians of one program on one folder; `start_up` is a run that only imports."""

    seconds: float
    cpu_seconds: float
    start_up: float
    pss: float
    rss: float
    num_processes: int


class Ours:
    name = "this project"

    def __init__(self, work: Path) -> None:
        self.out = work / "tables"
        self.command = [sys.executable, str(ROOT / "workflow" / "scripts" / "parse_traces.py")]

    def start_up(self) -> list[str]:
        return [*self.command, "--help"]

    def job(self, folder: Path) -> list[str]:
        shutil.rmtree(self.out, ignore_errors=True)
        return [*self.command, "--traces", str(folder), "--out", str(self.out)]


class Hta:
    def __init__(self, python: Path, *options: str) -> None:
        self.name = "HTA" if not options else "HTA, one process"
        self.command, self.options = hta_program(python), options

    def start_up(self) -> list[str]:
        return self.command

    def job(self, folder: Path) -> list[str]:
        return [*self.command, str(folder), *self.options]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="runs per program and folder, in turns")
    parser.add_argument("--num-events", type=int, default=1_000_000)
    parser.add_argument("--gigabytes", type=float, default=2, help="size of the big trace as JSON; 0 leaves it out")
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared" / "data", help="folder with real traces")
    parser.add_argument("--hta-env", type=Path, default=HERE / ".hta", help="virtual environment, made where missing")
    parser.add_argument("--keep", type=Path, help="folder for the made traces, which are used again if already there")
    parser.add_argument("--page", action="store_true", help="write the result into docs/traces-benchmark.md")
    arguments = parser.parse_args()
    python = hta_environment(arguments.hta_env)
    with tempfile.TemporaryDirectory(prefix="bench-traces-") as work:
        text, missed = measure(arguments, python, Path(work))
    print(text)
    if arguments.page:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    raise SystemExit(int(bool(missed)))


def hta_environment(folder: Path) -> Path:
    """The Python that has HTA, in a virtual environment of its own."""
    python = folder / "bin" / "python"
    if not python.exists():
        uv = str(Path(sys.executable).with_name("uv"))
        uv = uv if Path(uv).exists() else "uv"
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
        subprocess.run(
            [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python), *HTA_PACKAGES], check=True
        )
    return python


def measure(arguments: argparse.Namespace, python: Path, work: Path) -> tuple[str, list[str]]:
    """The result as Markdown, and what missed its limit."""
    store, missed = arguments.keep or work, []
    million = made(store / "million", num_ranks=2, num_events=arguments.num_events)
    real = arguments.shared / "traces" / "dlrm-8rank"
    ours, default, single = Ours(work), Hta(python), Hta(python, "--one-process")
    parts = [machine(python)]
    for title, folder, repeat, limits in (
        (f"{arguments.num_events:,} events, 2 ranks", million, 1, {"seconds": 15, "pss": 10}),
        ("dlrm-8rank, 8 real ranks", real, arguments.repeat, {"seconds": 4}),
    ):
        if folder.is_dir():
            found = side_by_side([default, ours], folder, arguments.repeat, repeat)
            found |= side_by_side([single], folder, 1, 1)
            parts.append(speed_table(title, found))
            missed += [f"{title}: {line}" for line in below(found[default.name], found[ours.name], limits)]
    if arguments.gigabytes:
        big = made(store / "big", num_ranks=1, num_bytes=int(arguments.gigabytes * 1e9))
        found = side_by_side([ours], big, 1, 1)
        parts.append(speed_table(f"{arguments.gigabytes:g} GB of JSON, 1 rank", found))
        if found[ours.name].pss > MAX_BYTES_BIG:
            missed.append(f"big trace: {found[ours.name].pss / 1e6:.0f} MB, at most {MAX_BYTES_BIG / 1e6:.0f}")
    for traces in inputs(million, arguments.shared / "traces", work):
        run(ours.job(traces.folder))
        text, off = compare(traces, hta_program(python), ours.out)
        parts.append(text)
        missed += off
    return "\n\n".join(parts), missed


def hta_program(python: Path) -> list[str]:
    return [str(python), "-W", "ignore", str(HERE / "hta_program.py")]


def made(folder: Path, **size: int) -> Path:
    if not folder.is_dir():
        make_traces(folder, **size)
    return folder


def side_by_side(programs: list[Any], folder: Path, repeat: int, repeat_memory: int) -> dict[str, Measured]:
    """Programs on the same traces, in turns."""
    for program in programs:
        run(program.start_up())
    runs: dict[str, list[Run]] = {program.name: [] for program in programs}
    starts: dict[str, list[float]] = {program.name: [] for program in programs}
    for _ in range(repeat):
        for program in programs:
            runs[program.name].append(run(program.job(folder)))
            starts[program.name].append(run(program.start_up()).seconds)
    result = {}
    for program in programs:
        seen = [memory_of(program.job(folder)) for _ in range(repeat_memory)]
        result[program.name] = Measured(
            median(one.seconds for one in runs[program.name]),
            median(one.cpu_seconds for one in runs[program.name]),
            median(starts[program.name]),
            median(memory.pss for memory in seen),
            median(memory.rss for memory in seen),
            max(memory.num_processes for memory in seen),
        )
    return result


def below(theirs: Measured, ours: Measured, limits: dict[str, float]) -> list[str]:
    """Limits that our advantage does not reach."""
    ratios = {name: getattr(theirs, name) / getattr(ours, name) for name in limits}
    return [
        f"{name} {ratios[name]:.1f} times less, wanted {limit}"
        for name, limit in limits.items()
        if ratios[name] < limit
    ]


def speed_table(title: str, found: dict[str, Measured]) -> str:
    """Seconds and memory of each program, and how often ours goes into them."""
    ours = found[Ours.name]
    columns = ("program", "seconds", "without start-up", "CPU seconds", "MB", "MB, sum of peaks", "processes")
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for name, row in sorted(found.items(), key=lambda item: item[1] is not ours):
        cells = [
            times(row.seconds, ours.seconds, "{:.2f}"),
            times(row.seconds - row.start_up, ours.seconds - ours.start_up, "{:.2f}"),
            times(row.cpu_seconds, ours.cpu_seconds, "{:.2f}"),
            times(row.pss / 1e6, ours.pss / 1e6, "{:.0f}"),
            times(row.rss / 1e6, ours.rss / 1e6, "{:.0f}"),
            str(row.num_processes),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([f"### {title}", "", *lines])


def times(value: float, ours: float, style: str) -> str:
    return style.format(value) + (f" ({value / ours:.1f}x)" if value != ours else "")


def machine(python: Path) -> str:
    """What it was measured on, and with."""
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in facts if line.startswith("model name")), "unknown CPU")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    ours = versions(Path(sys.executable), "numpy", "msgspec", "isal", "pandas", "pyarrow")
    theirs = versions(python, "HolisticTraceAnalysis", "numpy", "pandas")
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB; {platform.system()}, "
        f"Python {platform.python_version()}. Ours with {ours}; HTA with {theirs}."
    )


def versions(python: Path, *packages: str) -> str:
    code = "import importlib.metadata as m, sys; print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
    return run([str(python), "-c", code, *packages]).output.strip()


if __name__ == "__main__":
    main()

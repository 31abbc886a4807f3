"""Seconds and memory of a program and of everything that it starts."""

import os
import resource
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

PERIOD_S = 0.005

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Programs may keep their compiled modules, as on a user's machine, instead of compiling them anew in each run."""


@dataclass(frozen=True)
class Memory:
    """Peak memory in bytes over all processes of a program.

    pss: the largest sum, at one instant, of proportional set sizes, in which a page that n processes share counts 1/n
    rss: the sum of every process's own largest resident set, whenever that was; shared pages count in each
    num_processes: how many processes there were
    """

    pss: int
    rss: int
    num_processes: int


@dataclass(frozen=True)
class Run:
    """Seconds from start to end, CPU seconds of a program and all that it started, and what it printed."""

    seconds: float
    cpu_seconds: float
    output: str


def run(command: list[str], environment: dict[str, str] | None = None) -> Run:
    """Run a program undisturbed."""
    before, start = _cpu_seconds_of_children(), time.perf_counter()
    done = subprocess.run(command, env=ENVIRONMENT | (environment or {}), capture_output=True, text=True)
    seconds = time.perf_counter() - start
    _demand_success(command, done.returncode, done.stderr)
    return Run(seconds, _cpu_seconds_of_children() - before, done.stdout)


def memory_of(command: list[str], environment: dict[str, str] | None = None) -> Memory:
    """Peak memory of a program, looked up in /proc every 5 ms, or as often as the kernel answers."""
    peak, resident = 0, {}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, env=ENVIRONMENT | (environment or {}), stdout=output, stderr=output)
        while process.poll() is None:
            tree = _tree(process.pid)
            peak = max(peak, sum(_kilobytes(pid, "smaps_rollup", "Pss:") for pid in tree))
            for pid in tree:
                resident[pid] = max(resident.get(pid, 0), _kilobytes(pid, "status", "VmHWM:"))
            time.sleep(PERIOD_S)
        output.seek(0)
        _demand_success(command, process.returncode, output.read())
    return Memory(peak * 1024, sum(resident.values()) * 1024, len(resident))


def _cpu_seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _demand_success(command: list[str], status: int, said: str) -> None:
    if status != 0:
        raise SystemExit(f"{' '.join(command)} ended with status {status}:\n{said[-3000:]}")


def _tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for parent in found:
        for thread in _listed(Path(f"/proc/{parent}/task")):
            found.extend(int(child) for child in _text(thread / "children").split())
    return found


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    """What a file in /proc says; nothing once its process has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _kilobytes(pid: int, file: str, key: str) -> int:
    lines = (line.split() for line in _text(Path(f"/proc/{pid}/{file}")).splitlines())
    return next((int(words[1]) for words in lines if words and words[0] == key), 0)

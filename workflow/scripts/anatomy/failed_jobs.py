"""The logs of failed jobs in one folder, `results/logs/failed/`, named after what failed, until it succeeds."""

import contextlib
import logging
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from snakemake_interface_logger_plugins.common import LogEvent

FOLDER = "failed"
_ROOM_BYTES = 2**20
"""With less than that on its disk a log may have ended before the error."""
_STATE = re.compile(r"SLURM-job '(?P<job>[\d_]+)'.*?SLURM status is: '(?P<state>[A-Z_]+)'", re.DOTALL)
_FOLLOWS = re.compile(r"For further error details|sbatch call:")
"""What an executor adds to its words, which is no news here."""
_ERRORS = (
    re.compile(r"^error: "),
    re.compile(r"^(slurmstepd|srun|sbatch)(-\S+)?: error: |oom-kill|Traceback|^\S*(Error|Exception)\b.*:|: error: "),
)
_MEANT_BY_STATE = {
    "TIMEOUT": "its time limit was reached",
    "NODE_FAIL": "its host failed",
    "OUT_OF_MEMORY": "its memory was not enough",
    "CANCELLED": "it was cancelled",
    "PREEMPTED": "other jobs took its place",
}


class FailedJobs(logging.Handler):
    """Listens to Snakemake's log, keeps the logs of failed jobs, and drops those of a job that succeeds later."""

    def __init__(self, logs: Path) -> None:
        super().__init__()
        self._logs = logs
        self._places: dict[int, Path] = {}

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        with contextlib.suppress(OSError):  # a full disk is no reason to fail twice
            if event == LogEvent.JOB_INFO and record.log:
                self._places[record.jobid] = place_of(self._logs, record.log[0])
            elif event == LogEvent.JOB_ERROR:
                self._places[record.jobid] = keep(self._logs, record.log, record.rule_msg)
            elif event == LogEvent.JOB_FINISHED and (place := self._places.get(getattr(record, "job_id", None))):
                place.unlink(missing_ok=True)


def place_of(logs: Path, log: str) -> Path:
    """Where the log of a failed job is kept: `runs/{run}.timed.log` as `{run}.timed.log`, others with their folder."""
    path = Path(log)
    parts = path.relative_to(logs).parts if path.is_relative_to(logs) else (path.name,)
    return logs / FOLDER / "-".join(parts[1:] if parts[0] == "runs" else parts)


def keep(logs: Path, files: Sequence[str], words: str | None) -> Path:
    """Put a failed job's logs, the rule's first, and what is known of its end into one file, and return its path."""
    kept = place_of(logs, files[0] if files else "job.log")
    kept.parent.mkdir(parents=True, exist_ok=True)
    parts = [f"{line}\n" for line in reasons(words)]
    parts += [f"--- {file}\n{text}\n" for file in files if (text := _text(file))]
    kept.write_text("".join(parts) or "nothing was logged\n", encoding="utf-8")
    return kept


def reasons(words: str | None) -> list[str]:
    """What the executor said of a job's end, in one line; nothing where it only says that the job failed."""
    said = " ".join(_FOLLOWS.split(words or "")[0].split())
    found = _STATE.search(said)
    if found is None:
        return [f"error: {said}"] if said else []
    meant = _MEANT_BY_STATE.get(found["state"])
    return [f"error: SLURM job {found['job']}: {found['state']}, {meant}"] if meant else []


def first_error(files: Iterable[str], words: str | None) -> str:
    """The line that says best why a job failed: what SLURM did to it, a full disk, or the first error of its logs."""
    files = list(files)
    if said := reasons(words) or _full_disks(files):
        return said[0]
    lines = [line for file in files for line in _text(file).splitlines() if line.strip()]
    for pattern in _ERRORS:
        for line in lines:
            if pattern.search(line):
                return line.strip()
    return lines[-1].strip() if lines else "no log was written"


def _full_disks(files: Iterable[str]) -> list[str]:
    found = []
    for folder in dict.fromkeys(Path(file).parent for file in files):
        with contextlib.suppress(OSError):
            if shutil.disk_usage(folder).free < _ROOM_BYTES:
                found.append(f"error: {folder}: no space left on device; make room, and call again")
    return found


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace").rstrip()
    except OSError:
        return ""


def collect_failed(logger: Any, logs: Path) -> None:
    """Have the logs of failed jobs kept below `logs`, the study's folder of logs."""
    logger.handlers.insert(0, FailedJobs(logs))  # before the one that tells the person where they lie

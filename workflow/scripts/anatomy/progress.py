"""What a person sees while Snakemake works: a line for each job that starts, and how many are done.

    14:03:07   12 of 96 done   train powerlaw.metis-2.minibatch.sage.s0

A job that fails shows where its logs are kept, its first error and its log, and what is not news is left out.
`--verbose`, `--printshellcmds` and dry runs keep Snakemake's own words.
"""

import logging
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from snakemake.logging import DefaultFormatter, show_logs
from snakemake_interface_logger_plugins.common import LogEvent

from anatomy.failed_jobs import first_error, place_of

_EVENTS_NOT_NEWS = (LogEvent.JOB_STARTED, LogEvent.RESOURCES_INFO)
_NOT_NEWS = (
    "Select jobs to execute",
    "Assuming unrestricted shared filesystem",
    "Using workflow specific profile",
    "Building DAG of jobs",
    "Using shell:",
    "Conda environments: ignored",
    "Complete log(s)",
    "SLURM run ID",
    "Cleaning up SLURM log files",
)


class ProgressFormatter(DefaultFormatter):
    """Snakemake's formatter, with one line per job; an empty string is not shown."""

    def __init__(self, default: DefaultFormatter, logs: Path) -> None:
        super().__init__(default.quiet, default.show_failed_logs)
        self._logs = logs
        self._done = 0
        self._total = 0
        self._started: dict[int, str] = {}

    def format(self, record: logging.LogRecord) -> str:
        event = getattr(record, "event", None)
        if event in _EVENTS_NOT_NEWS or (event in (None, LogEvent.ERROR) and _is_not_news(str(record.msg))):
            return ""
        return super().format(record)

    def format_run_info(self, msg: dict[str, Any]) -> str:
        """How often each rule will run, as Snakemake says it."""
        self._total = msg["stats"]["total"]
        return super().format_run_info(msg)

    def format_job_info(self, msg: dict[str, Any]) -> str:
        """The line of a job that starts; rules that only gather others are not worth one."""
        if not msg["rule_msg"]:
            return ""
        self._started[msg["jobid"]] = msg["rule_msg"]
        return f"{datetime.now():%H:%M:%S}  {self._done:4d} of {self._total} done   {msg['rule_msg']}"

    def format_job_finished(self, msg: dict[str, Any]) -> str:
        """Nothing: the next line says how many are done."""
        return ""

    def format_progress(self, msg: dict[str, Any]) -> str:
        """Only the last one is news of its own."""
        self._done, self._total = msg["done"], msg["total"]
        return f"{datetime.now():%H:%M:%S}  {self._done:4d} of {self._total} done" if self._done == self._total else ""

    def format_job_error(self, msg: dict[str, Any]) -> str:
        """What failed, where its logs are kept, its first error, and what its own log says."""
        lines = [f"{datetime.now():%H:%M:%S}  FAILED: {self._started.get(msg['jobid'], msg['rule_name'])}"]
        if not msg["log"]:
            return "\n".join(lines + self._format_job_error(msg))
        lines.append(f"{place_of(self._logs, msg['log'][0])}: {first_error(msg['log'], msg['rule_msg'])}")
        written = [file for file in msg["log"] if file and Path(file).is_file() and Path(file).stat().st_size]
        return "\n".join([*lines, *show_logs(written[:1])])


def _is_not_news(message: str) -> bool:
    # A failed command is reported with its log; the same as an exception of Snakemake's adds nothing.
    return (
        message.startswith(_NOT_NEWS)
        or ("CalledProcessError" in message and "exit status" in message)
        or "has been submitted with SLURM jobid" in message
    )


class _Terminal:
    """Writes what Snakemake writes, less the empty lines that it puts between jobs."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        if text != "\n" or self._after_text:
            self._stream.write(text)
        self._after_text = text != "\n"

    _after_text = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def show_progress(logger: logging.Logger, logs: Path) -> None:
    """Have the handler that writes to the terminal show progress in this form; log files keep Snakemake's own.

    `logs` is the study's folder of logs.
    """
    for handler in logger.handlers:
        if getattr(handler, "stream", None) in (sys.stdout, sys.stderr) and isinstance(
            handler.formatter, DefaultFormatter
        ):
            handler.setFormatter(ProgressFormatter(handler.formatter, logs))
            handler.setStream(_Terminal(handler.stream))

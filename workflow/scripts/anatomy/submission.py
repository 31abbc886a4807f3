"""Snakemake's SLURM executor, with what a study needs settled: nothing lost, nothing left behind, nothing guessed.

The executor's own code decides how a job is submitted and when it has ended. Here is what it does otherwise: it loses
the jobs of which it could not ask the state, waits for ever for a job whose submission raised an exception or of which
SLURM knows nothing any more, asks for an account where none is needed, asks more and more seldom, and cancels only the
jobs that it has counted so far.
"""

import asyncio
import getpass
import hashlib
import shlex
import subprocess
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_slurm import Executor
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from anatomy.files import withdraw_all_attempts, withdraw_attempts

LONGEST_WAIT_S = 25
"""Between two looks at the jobs; SLURM forgets ended jobs after MinJobAge, which is 300 s where nobody changed it."""
LOST_AFTER_S = 120
"""After so long a job that SLURM has no record of has failed."""
ASK_AGAIN_S = 2
"""SLURM, which does not answer, before a job is submitted."""
COMMAND_TIMEOUT_S = 60


def use_study_executor(results: Path) -> None:
    """Have `--executor slurm` submit a study's jobs by StudyExecutor; `results` is its folder, whose lock is held."""
    StudyExecutor.results = results
    ExecutorPluginRegistry().get_plugin("slurm").executor = StudyExecutor


class StudyExecutor(Executor):
    """The executor of a study; its jobs' names begin with what no other study's do."""

    results: Path

    def __init__(self, workflow: Any, logger: Any) -> None:
        # Before anything else: the thread that watches jobs is started in there, and ends silently by an exception.
        self._settled: dict[int, SubmittedJobInfo] = {}
        self._last_known: dict[str, float] = {}
        self._cancelled = False
        super().__init__(workflow, logger)

    def __post_init__(self, test_mode: bool = False) -> None:
        settings = self.workflow.executor_settings
        settings.jobname_prefix = name_prefix(self.results)
        settings.logdir = (self.results / "logs" / "slurm").resolve()
        super().__post_init__(test_mode)
        self._cancel_left_behind()

    # Submission

    @property
    def _failed_nodes(self) -> set[str]:
        """Hosts that no job is to run on: those that a person named, and none besides.

        The executor adds all hosts of a job that lost one. SLURM leaves out that one without being told; without the
        others too, there may not be as many left as the next attempt needs, which then waits for ever.
        """
        return set(self._hosts_to_avoid)

    @_failed_nodes.setter
    def _failed_nodes(self, hosts: set[str]) -> None:
        self._hosts_to_avoid = frozenset(hosts)

    def run_jobs(self, jobs: list[Any]) -> None:
        for job in jobs:
            self.run_job_pre(job)  # says that the job starts
        super().run_jobs(jobs)

    def run_job(self, job: Any) -> None:
        """Submit a job, in a thread of its own, once SLURM answers; whatever goes wrong is the job's failure."""
        while not self._cancelled and jobs_in_queue(self.run_uuid) is None:
            time.sleep(ASK_AGAIN_S)
        if self._cancelled:
            return
        try:
            super().run_job(job)
        except Exception as error:
            words = " ".join(str(error).split()) or type(error).__name__
            self._report_job_error_threadsafe(SubmittedJobInfo(job), f"not submitted: {words}")

    def additional_general_args(self) -> str:
        """Options of the Snakemake in a job: it leaves it to this one to remove what a failed job wrote.

        A job that SLURM thought lost would remove what the next attempt has published.
        """
        return f"{super().additional_general_args()} --keep-incomplete"

    def get_account_arg(self, job: Any) -> Iterator[str]:
        """The account as given. SLURM checks it; where none is given, SLURM takes the user's own."""
        account = job.resources.get("slurm_account")
        yield f" -A {shlex.quote(str(account))}" if account else ""

    # Watching

    @property
    def next_seconds_between_status_checks(self) -> float:
        return min(super().next_seconds_between_status_checks, LONGEST_WAIT_S)

    @next_seconds_between_status_checks.setter
    def next_seconds_between_status_checks(self, value: float) -> None:
        self._next_seconds_between_status_checks = value

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Yield the jobs that go on: all that were not reported as ended."""
        if not active_jobs:
            return  # perhaps this executor is still being made
        self._settled.clear()
        async for _ in super().check_active_jobs(active_jobs):
            pass
        going_on = [job for job in active_jobs if id(job) not in self._settled]
        lost = await asyncio.to_thread(self._lost, [job.external_jobid for job in going_on])
        for job in going_on:
            if job.external_jobid in lost:
                self.report_job_error(job, msg=f"SLURM job {job.external_jobid}: SLURM knows nothing of it any more.")
            else:
                yield job

    def report_job_success(self, job_info: SubmittedJobInfo) -> None:
        self._settled[id(job_info)] = job_info
        super().report_job_success(job_info)

    def report_job_error(self, job_info: SubmittedJobInfo, msg: str | None = None, **kwargs: Any) -> None:
        self._settled[id(job_info)] = job_info
        _end_attempts(job_info)
        super().report_job_error(job_info, msg, **kwargs)

    def _lost(self, job_ids: list[str]) -> set[str]:
        """Jobs that SLURM has had no record of for some time, though it answers."""
        known = jobs_in_queue(self.run_uuid) if job_ids else {}
        now = time.monotonic()
        for job_id in job_ids:
            if known is None or job_id in known or job_id not in self._last_known:
                self._last_known[job_id] = now
        return {job_id for job_id in job_ids if now - self._last_known[job_id] > LOST_AFTER_S}

    # The end

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Cancel all jobs of this call, also those that are being submitted."""
        self._cancelled = True
        self._job_submission_executor.shutdown(wait=True, cancel_futures=True)
        command = ["scancel", f"--user={getpass.getuser()}", f"--name={self.run_uuid}"]
        if (problem := _problem_of(command)) is not None:
            self.logger.error(f"jobs may go on; cancel them by `{shlex.join(command)}` ({problem})")
        for job_info in active_jobs:
            _end_attempts(job_info)

    def _cancel_left_behind(self) -> None:
        """Cancel what an earlier call of this study left when it was killed: this one holds the study's lock."""
        left = [job for job, name in (jobs_in_queue() or {}).items() if name.startswith(name_prefix(self.results))]
        if left:
            problem = _problem_of(["scancel", *left])
            done = "cancelled" if problem is None else f"could not be cancelled ({problem})"
            self.logger.warning(f"jobs that an earlier call left behind, {done}: {', '.join(left)}")
        withdraw_all_attempts(self.results)


def _end_attempts(job_info: SubmittedJobInfo) -> None:
    """What is left of a job that was given up, on a host that SLURM can't reach, say, publishes nothing any more."""
    for output in map(Path, job_info.job.output):
        withdraw_attempts(output.parent, output.name)


def name_prefix(results: Path) -> str:
    """How the names of all jobs of a study begin; a study is known by its folder of results."""
    return f"anatomy-{hashlib.sha256(str(results.resolve()).encode()).hexdigest()[:12]}"


def jobs_in_queue(name: str | None = None) -> dict[str, str] | None:
    """This user's jobs that SLURM has in its memory, by number, with their names; None where it does not answer.

    With `name` these are all of that name, those that ended a short while ago included, otherwise all that have not
    ended.
    """
    chosen = ["--states=all", f"--name={name}"] if name else []
    command = ["squeue", "--noheader", f"--user={getpass.getuser()}", "--format=%i|%j", *chosen]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return dict(line.split("|", 1) for line in answer.stdout.splitlines() if "|" in line)


def _problem_of(command: list[str]) -> str | None:
    """Run a command; None, or why it failed."""
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True)
    except subprocess.CalledProcessError as error:
        return error.stderr.strip() or f"exit status {error.returncode}"
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return None

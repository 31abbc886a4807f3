"""One study at a time in a folder, and no job that outlives its study."""

import contextlib
import fcntl
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import psutil

from anatomy.errors import StudyError

_OWNER = "ANATOMY_OWNER"
_SLURMS = {"sbatch", "scancel", "squeue", "scontrol"}
"""Programs by which jobs elsewhere are ended, or about to be known; they are let finish."""
_held: list[int] = []


def check_folder(root: Path) -> None:
    """Raise StudyError unless the working directory is the project's root, to which all paths are relative."""
    if Path.cwd().resolve() != root.resolve():
        raise StudyError(f"{Path.cwd()}: snakemake was started here, expected the project's root; run it in {root}")


def hold(results: Path) -> None:
    """Take the lock of a results folder until this process ends, however it ends.

    The kernel releases the lock with the process, so that a study which was killed leaves nothing to unlock.

    Raises StudyError where another study holds it, or the folder cannot be written.
    """
    try:
        results.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(results / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StudyError(
            f"{results}: cannot be written ({error.strerror}); make it writable or free its disk"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(descriptor, 32).decode() or "unknown"
        os.close(descriptor)
        raise StudyError(
            f"{results}: another study (process {owner}) is at work here; wait for it or stop it"
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    _held.append(descriptor)


def put_python_first() -> None:
    """Have jobs find the Python that runs Snakemake, whether or not its environment is activated.

    Conda, where it is used, puts its own in front of it.
    """
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def end_when_told() -> None:
    """Have SIGTERM and SIGHUP end Snakemake as Ctrl-C does in a terminal: its jobs first, then itself.

    Snakemake's own handler of SIGTERM waits until all running jobs have ended, which SLURM's may do days later.
    """
    from snakemake.scheduling.job_scheduler import JobScheduler

    schedule = JobScheduler.schedule

    def told(scheduler: Any, *_: object) -> None:
        scheduler._user_kill = "told to end"
        threading.Thread(target=_end_children, daemon=True).start()
        scheduler._open_jobs.release()

    def schedule_until_told(scheduler: Any) -> bool:
        wait = scheduler._open_jobs.acquire

        def wait_unless_told(*arguments: Any) -> bool:
            # Only here, between two rounds, is it safe to stop: what runs then is cancelled.
            if scheduler._user_kill:
                raise KeyboardInterrupt
            return wait(*arguments)

        scheduler._open_jobs.acquire = wait_unless_told
        if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # nohup ignores it, and so shall we
            signal.signal(signal.SIGHUP, scheduler.exit_gracefully)
        return schedule(scheduler)

    JobScheduler.exit_gracefully = told
    JobScheduler.schedule = schedule_until_told


def look_again_once() -> None:
    """Have Snakemake's scheduler keep one timer at most that wakes it.

    It starts one in every round, to see whether its limit of jobs per second allows more by then, and each makes a
    round of its own a second later. Every job that ends adds a chain of such rounds, so that after a hundred jobs the
    scheduler keeps a core busy on which ranks are to be measured (Snakemake 9.27).
    """
    from snakemake.scheduling.job_scheduler import JobScheduler

    def wake_later(scheduler: Any, delay_s: float) -> None:
        if getattr(scheduler, "_is_woken_later", False):
            return
        scheduler._is_woken_later = True

        def wake() -> None:
            scheduler._is_woken_later = False
            scheduler._open_jobs.release()

        timer = threading.Timer(delay_s, wake)
        timer.daemon = True
        timer.start()

    JobScheduler._schedule_reevalutation = wake_later


def measure_in_rounds(seed_of: Callable[[str], int | None]) -> None:
    """Have Snakemake start all runs of one seed before those of the next, in another order for each seed.

    By itself it starts what has the largest inputs first, and so all seeds of one strategy one after the other. What
    slows a machine for some minutes would fall on that strategy alone, and its repetitions would agree on it. In rounds
    it falls on a seed of many, and the interval of a verdict shows it. `seed_of` is of a run's name, None for what is
    none. Jobs of no run go first.
    """
    from snakemake.scheduling.greedy import Scheduler

    def reward(scheduler: Any, job: Any, input_sizes: Any) -> tuple[int, bool, int, int]:
        wildcards = getattr(job, "wildcards", {})
        name = str(wildcards.get("run") or wildcards.get("traces") or "")
        seed = seed_of(name)
        return job.priority, seed is None, -(seed or 0), crc32(name.encode())

    Scheduler.job_reward = reward


def _end_children(interval_s: float = 0.2) -> None:
    """End the local jobs, also those that are just being started, until this process ends.

    In a terminal Ctrl-C reaches them as well; a signal to Snakemake alone does not.
    """
    while True:
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if not _SLURMS.intersection(Path(word).name for word in child.cmdline()[:2]):
                    for process in [child, *child.children(recursive=True)]:
                        process.terminate()
        time.sleep(interval_s)


def end_with(owner: int) -> None:
    """Have every job started on this host from here on end by itself when the process `owner` is gone."""
    os.environ[_OWNER] = f"{_place()}:{owner}:{psutil.Process(owner).create_time()}"


def watch_owner(interval_s: float = 0.5) -> None:
    """In a job: end this process and its children once the study that started it is gone.

    Does nothing by hand, and nothing in a job of SLURM's, which runs where the study's process can't be seen.
    """
    place, _, owner = os.environ.get(_OWNER, "").partition(":")
    if owner and place == _place():
        threading.Thread(target=_watch, args=(owner, interval_s), daemon=True).start()


def _place() -> str:
    """Where processes see one another: a host, and on it one job of SLURM's or none."""
    return f"{platform.node()}/{os.environ.get('SLURM_JOB_ID', '')}"


def _watch(owner: str, interval_s: float) -> None:
    pid, created = owner.split(":")
    while _is_alive(int(pid), float(created)):
        time.sleep(interval_s)
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def _is_alive(pid: int, created: float) -> bool:
    """Whether the process is still the same one: its number may have been given to another."""
    try:
        process = psutil.Process(pid)
        return process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

"""One study at a time in a folder, and no job that outlives its study."""

import contextlib
import fcntl
import os
import signal
import sys
import threading
import time
from pathlib import Path

from anatomy.errors import StudyError

_OWNER = "ANATOMY_OWNER"
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


def end_with(owner: int) -> None:
    """Have every job started from here on end by itself when the process `owner` is gone."""
    import psutil  # slow to import, and of no use to a program that is run by hand

    os.environ[_OWNER] = f"{owner}:{psutil.Process(owner).create_time()}"


def watch_owner(interval_s: float = 0.5) -> None:
    """In a job: end this process and its children once the study that started it is gone. Does nothing by hand."""
    owner = os.environ.get(_OWNER)
    if owner:
        threading.Thread(target=_watch, args=(owner, interval_s), daemon=True).start()


def _watch(owner: str, interval_s: float) -> None:
    import psutil

    pid, created = owner.split(":")
    while _is_alive(int(pid), float(created)):
        time.sleep(interval_s)
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def _is_alive(pid: int, created: float) -> bool:
    """Whether the process is still the same one: its number may have been given to another."""
    import psutil

    try:
        process = psutil.Process(pid)
        return process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

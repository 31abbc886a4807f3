"""What DGL's graph server leaves in /dev/shm when it is killed, and how it is taken away."""

import fcntl
import os
import time
from pathlib import Path

FOLDER = Path("/dev/shm")
PREFIX = "anatomy-distdgl-"
_GRACE_S = 60
"""A lock file younger than this may belong to a server that is about to take it."""


def hold(name: str) -> None:
    """Say, until this process ends, that the shared memory of graph `name` is in use."""
    descriptor = os.open(_lock(name), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def remove(name: str) -> None:
    """Remove the shared memory of graph `name`, which is part of the name of each piece."""
    for path in FOLDER.glob(f"*{name}*"):
        path.unlink(missing_ok=True)


def remove_abandoned() -> None:
    """Remove what servers left that were killed together with their trainers."""
    for lock in FOLDER.glob(f"{PREFIX}*.lock"):
        try:
            with open(lock, "r+b") as file:
                if time.time() - lock.stat().st_mtime < _GRACE_S:
                    continue
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(lock.name.removesuffix(".lock"))
        except (BlockingIOError, FileNotFoundError, PermissionError):
            continue  # in use, gone, or somebody else's


def _lock(name: str) -> Path:
    return FOLDER / f"{name}.lock"

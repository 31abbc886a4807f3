"""What ends a run: the first error among the many that follow it, want of memory, and being asked to end."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import psutil

OUT_OF_MEMORY = "out of memory"
TIME_LIMIT = "time limit"

INTERRUPTED_STATUS = 75
"""Exit status of a rank that ended because it was asked to and can go on later (EX_TEMPFAIL of sysexits.h)."""

_VICTIM_DELAY_S = 3
"""How long a rank that merely lost its peers waits before it fails: the launcher sees the peer's own end before."""

STRAGGLER_S = 10
"""How long ranks may outlive the first of them that ended; in good order they end together."""

_TIMED_OUT = "Timed out waiting"
_LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    _TIMED_OUT,
    "Socket closed",
)
_NO_MEMORY = (
    "MemoryError",
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
    "Cannot allocate memory",
)


class Interrupted(SystemExit):
    """A rank was asked to end, and has ended in good order; its process leaves with INTERRUPTED_STATUS."""

    def __init__(self, message: str) -> None:
        super().__init__(INTERRUPTED_STATUS)
        self.message = message


class RunFailed(RuntimeError):
    """A run ended without a result. `status` is None for a crash; the message begins with the first error."""

    def __init__(self, message: str, status: str | None = None) -> None:
        super().__init__(message)
        self.status = status


class PeerTimeout(RuntimeError):
    """A rank waited in vain for the others."""


@contextmanager
def culprits_first() -> Iterator[None]:
    """Let the rank whose error ends the run fail before the ranks that only notice it.

    Raises PeerTimeout, in words, where the others did not answer in time.
    """
    try:
        yield
    except RuntimeError as error:
        if any(text in str(error) for text in _LOST_PEER):
            time.sleep(_VICTIM_DELAY_S)
        if _TIMED_OUT in str(error):
            raise PeerTimeout(
                "waited for the other ranks as long as training.peer_timeout_s allows; one of them is stopped, hangs "
                "or can't be reached"
            ) from error
        raise


@contextmanager
def end_requests(heeded: bool) -> Iterator[Callable[[], bool]]:
    """Where `heeded`, have SIGTERM end nothing in this block; gives a function that says whether it came."""
    if not heeded:
        yield lambda: False
        return
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def time_limit(limit_s: float) -> Iterator[None]:
    """In the launcher: raise RunFailed in the block when its time is up."""

    def expire(*_: object) -> NoReturn:
        raise RunFailed(f"not finished after its time limit of {limit_s:g} s", TIME_LIMIT)

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def stragglers_end(grace_s: float = STRAGGLER_S) -> Iterator[None]:
    """In the launcher: kill children that are still there so long after the first of them ended, while in this block.

    torch's launcher asks the other ranks to end (SIGTERM) when one has failed, and waits for them without a limit; a
    rank that is stopped (SIGSTOP) or hangs never does.
    """
    over = threading.Event()
    watch = threading.Thread(target=_end_stragglers, args=(over, grace_s), daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def _end_stragglers(over: threading.Event, grace_s: float) -> None:
    most, deadline = 0, float("inf")
    while not over.wait(0.2):
        alive = [child for child in psutil.Process().children() if not _has_ended(child)]
        most = max(most, len(alive))
        if len(alive) == most:
            deadline = time.monotonic() + grace_s
        elif time.monotonic() > deadline:
            for child in alive:
                with suppress(psutil.NoSuchProcess):
                    child.kill()


def _has_ended(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def is_out_of_memory(message: str) -> bool:
    """Whether an exception's text, `Type: message`, says that memory ran out."""
    return any(text in message for text in _NO_MEMORY)


def kernel_kills_for_memory() -> int:
    """How many processes Linux has killed for want of memory since it started; 0 where it does not say."""
    statistics = Path("/proc/vmstat")
    if not statistics.exists():
        return 0
    return sum(int(line.split()[1]) for line in statistics.read_text().splitlines() if line.startswith("oom_kill "))


_told: list[Callable[[BaseException], None]] = []
"""Who is told of an error that ends this process by `fail`, beside its standard error."""


@contextmanager
def told_of_failures(tell: Callable[[BaseException], None]) -> Iterator[None]:
    """Have `tell` called with the error if this process ends by `fail` in this block."""
    _told.append(tell)
    try:
        yield
    finally:
        _told.remove(tell)


def fail(error: BaseException) -> NoReturn:
    """End this process, from any of its threads, as by an error that nothing caught.

    For a thread that sees why the main thread, which waits inside a library, will never go on.
    """
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    for tell in _told:
        tell(error)
    get_error_handler().record_exception(error)  # for torchrun
    leave_process(1)


def leave_process(status: int) -> NoReturn:
    """End this process without taking it apart, which may never end with a process group; see `run.join_ranks`."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

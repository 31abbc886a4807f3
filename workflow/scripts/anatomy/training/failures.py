"""What ends a run: recognising the first error among the many that follow it, and want of memory among errors."""

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

OUT_OF_MEMORY = "out of memory"
TIME_LIMIT = "time limit"

_VICTIM_DELAY_S = 3
"""How long a rank that merely lost its peers waits before it fails: the launcher sees the peer's own end before."""

_LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
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


@contextmanager
def culprits_first() -> Iterator[None]:
    """Let the rank whose error ends the run fail before the ranks that only notice it."""
    try:
        yield
    except RuntimeError as error:
        if any(text in str(error) for text in _LOST_PEER):
            time.sleep(_VICTIM_DELAY_S)
        raise


def is_out_of_memory(message: str) -> bool:
    """Whether an exception's text, `Type: message`, says that memory ran out."""
    return any(text in message for text in _NO_MEMORY)


def kernel_kills_for_memory() -> int:
    """How many processes Linux has killed for want of memory since it started; 0 where it does not say."""
    statistics = Path("/proc/vmstat")
    if not statistics.exists():
        return 0
    return sum(int(line.split()[1]) for line in statistics.read_text().splitlines() if line.startswith("oom_kill "))


def leave_process(status: int) -> NoReturn:
    """End this process without taking it apart, which may never end with a process group; see `run.join_ranks`."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

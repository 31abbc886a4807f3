"""Memory that is free in this process, given back to the system."""

import ctypes
from functools import cache


def give_back() -> None:
    """Return free memory to the system; does nothing where the C library can't.

    glibc keeps what freed arrays of up to some tens of megabytes leave, in the hope of using it again. Over steps that
    each need large arrays of their own, that adds up to a multiple of what any of them needs.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> "ctypes._CFuncPtr | None":
    return getattr(ctypes.CDLL(None), "malloc_trim", None)

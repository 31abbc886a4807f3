"""Functions of Python as machine code."""

import functools
from collections.abc import Callable
from typing import Any


@functools.cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function over NumPy arrays as machine code, kept on disk; numba is loaded only when it is needed.

    It holds no lock of Python's while it runs.
    """
    import numba

    return numba.njit(function, nogil=True, cache=True)

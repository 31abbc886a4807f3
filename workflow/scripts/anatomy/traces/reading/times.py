"""Time stamps of traces, in microseconds, as integer nanoseconds, exactly.

Profilers have written microseconds since 1970 as integers (1694128201554123) and with a fraction
(1694128201554123.456), and count from a base time nearer by since (4458676416788.066). float64 holds the nanoseconds of
the last, but not of the second, of which only the text is exact.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

LARGEST_TIME = 2**62
EXACT_FLOAT = 2.0**43
"""Microseconds below which float64, whose steps are 2**-10 here, tells nanoseconds apart."""

LARGEST_FLOAT = LARGEST_TIME / 1000.0
TIME_TEXT = re.compile(r"(-?)(\d+)(?:\.(\d+))?")
NUM_DIGITS = 16
"""Decimal digits of microseconds that can be small enough. Nanoseconds of as many that aren't are negative in int64, or
recognisably too large."""

BAD = 0
"""Stands for a time stamp that is none."""


def nanoseconds(value: Any) -> int | None:
    """Microseconds, as an integer, a float or decimal text, in integer nanoseconds; None where it is no usable
    number."""
    if isinstance(value, str):
        match = TIME_TEXT.fullmatch(value.strip())
        if match is None:
            return nanoseconds(_float(value))
        sign, whole, fraction = match.groups()
        digits = (fraction or "").ljust(4, "0")
        result = int(whole) * 1000 + int(digits[:3]) + (digits[3] >= "5")
        result = -result if sign else result
    elif isinstance(value, int) and not isinstance(value, bool):
        result = value * 1000
    elif isinstance(value, float) and abs(value) < LARGEST_TIME:
        result = round(value * 1000)
    else:
        return None
    return result if abs(result) < LARGEST_TIME else None


def of_numbers(values: Sequence[int | float]) -> np.ndarray | None:
    """Time stamps in int64 ns, `BAD` where there is none (NaN) or none that is positive and small enough.

    None where a number is such that only its text is exact.
    """
    try:
        numbers = np.fromiter(values, dtype=np.float64, count=len(values))
    except OverflowError:
        return None
    if not (numbers >= EXACT_FLOAT).any():
        numbers = np.where(numbers > 0, numbers, BAD)
        whole = np.floor(numbers)
        return whole.astype(np.int64) * 1000 + ((numbers - whole) * 1000 + 0.5).astype(np.int64)
    integers = np.array(values)
    if integers.dtype != np.int64:
        return None
    usable = (integers > 0) & (integers < LARGEST_TIME // 1000)
    return np.where(usable, integers, BAD) * 1000


def of_texts(texts: Sequence[Any]) -> np.ndarray:
    """As `of_numbers`, from bytes-like objects that spell JSON numbers or strings."""
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    result = np.empty(len(texts), dtype=np.int64)
    for length in set(lengths.tolist()):
        rows = np.flatnonzero(lengths == length)
        same = texts if len(rows) == len(texts) else [texts[row] for row in rows.tolist()]
        result[rows] = _of_equally_long(same)
    return np.where((result > 0) & (result < LARGEST_TIME), result, BAD)


def of_durations(values: Sequence[float]) -> np.ndarray:
    """Durations in int64 ns, `LARGEST_TIME` where there is none (NaN) or none that is small enough."""
    numbers = np.fromiter(values, dtype=np.float64, count=len(values))
    usable = np.abs(numbers) < LARGEST_FLOAT
    if usable.all():
        return np.rint(numbers * 1000).astype(np.int64)
    return np.where(usable, np.rint(np.where(usable, numbers, 0) * 1000).astype(np.int64), LARGEST_TIME)


def _of_equally_long(texts: Sequence[Any]) -> np.ndarray:
    """Times from texts of one length: those with the point in one place by arithmetic on digits, others one by one."""
    length = len(texts[0])
    characters = np.frombuffer(b"".join(texts), dtype=np.uint8).reshape(len(texts), length)
    point = bytes(texts[0]).find(b".")
    whole = length if point < 0 else point
    digits = characters - np.uint8(ord("0"))
    weights = np.zeros(length, dtype=np.int64)
    weights[:whole] = 1000 * 10 ** np.arange(whole - 1, -1, -1)
    decimals = digits[:, whole + 1 : whole + 4]
    weights[whole + 1 : whole + 4] = [100, 10, 1][: decimals.shape[1]]
    plain = (digits <= 9).sum(axis=1) == length - (point >= 0)
    if point >= 0:
        plain &= characters[:, point] == ord(".")
    if not 0 < whole <= NUM_DIGITS:
        plain[:] = False
    result = digits @ weights
    if length > whole + 4:
        result += digits[:, whole + 4] >= 5
    for row in np.flatnonzero(~plain).tolist():
        result[row] = nanoseconds(bytes(texts[row]).decode(errors="replace").strip(' "')) or BAD
    return result


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")

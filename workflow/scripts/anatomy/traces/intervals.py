"""Algebra over half-open intervals of time, vectorised.

`spans` are int64 arrays [n, 2] of starts and ends; a *disjoint* array is sorted and its spans neither overlap nor
touch, which is what every function here that returns spans returns. Spans that end at or before their start are empty
and are dropped. Nothing changes its input.
"""

import numpy as np

EMPTY = np.empty((0, 2), dtype=np.int64)


def spans_of(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Spans [n, 2] from two arrays [n]."""
    return np.column_stack([np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)])


def union(spans: np.ndarray) -> np.ndarray:
    """The instants covered by at least one span, as disjoint spans."""
    spans = spans[spans[:, 1] > spans[:, 0]]
    if len(spans) == 0:
        return EMPTY
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    first = np.flatnonzero(np.append(True, spans[1:, 0] > reach[:-1]))
    return np.column_stack([spans[first, 0], reach[np.append(first[1:], len(spans)) - 1]])


def intersection(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The instants covered by both of two disjoint arrays."""
    bounds = bounds_of(first, second)
    return _where(bounds, covers(first, bounds[:-1]) & covers(second, bounds[:-1]))


def subtraction(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The instants covered by the first of two disjoint arrays and not by the second."""
    bounds = bounds_of(first, second)
    return _where(bounds, covers(first, bounds[:-1]) & ~covers(second, bounds[:-1]))


def total_length(spans: np.ndarray) -> int:
    """The sum of the spans' lengths; of disjoint spans, the time that they cover."""
    return int((spans[:, 1] - spans[:, 0]).sum())


def clip(spans: np.ndarray, start: int, end: int) -> np.ndarray:
    """What of disjoint spans lies in [start, end)."""
    clipped = np.clip(spans, start, end)
    return clipped[clipped[:, 1] > clipped[:, 0]]


def bounds_of(*arrays: np.ndarray) -> np.ndarray:
    """All instants at which any of the spans starts or ends, sorted, each once [k]."""
    return np.unique(np.concatenate([array.ravel() for array in arrays]))


def index_at(spans: np.ndarray, instants: np.ndarray) -> np.ndarray:
    """For each instant, the index of the span of a disjoint array that covers it, or -1 [k]."""
    if len(spans) == 0:
        return np.full(len(instants), -1, dtype=np.int64)
    index = np.searchsorted(spans[:, 0], instants, side="right") - 1
    return np.where((index >= 0) & (instants < spans[index, 1]), index, -1)


def covers(spans: np.ndarray, instants: np.ndarray) -> np.ndarray:
    """For each instant, whether a disjoint array covers it, bool [k]."""
    return index_at(spans, instants) >= 0


def innermost(spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cut overlapping or nested spans into pieces that belong to the span that started last.

    Of spans with equal starts the shorter one counts as the inner one.

    Returns the pieces, sorted and not overlapping [k, 2], and for each the index of the span it belongs to [k]. A span
    within which others lie has several pieces, or none where they cover it wholly.
    """
    if len(spans) == 0:
        return EMPTY, np.empty(0, dtype=np.int64)
    bounds = bounds_of(spans)
    order = np.lexsort([-spans[:, 1], spans[:, 0]])
    first, last = np.searchsorted(bounds, spans[order, 0]), np.searchsorted(bounds, spans[order, 1])
    owner = np.full(len(bounds), -1, dtype=np.int64)
    for index, start, end in zip(order.tolist(), first.tolist(), last.tolist(), strict=True):
        owner[start:end] = index
    changes = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
    pieces = np.column_stack([bounds[changes], bounds[np.append(changes[1:], len(bounds) - 1)]])
    owned = owner[changes] >= 0
    return pieces[owned], owner[changes][owned]


def _where(bounds: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Disjoint spans from elementary pieces between `bounds` [k] of which `inside` [k-1] are kept."""
    edges = np.diff(np.concatenate([[False], inside, [False]]).astype(np.int8))
    return np.column_stack([bounds[np.flatnonzero(edges == 1)], bounds[np.flatnonzero(edges == -1)]])

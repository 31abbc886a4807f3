"""Algebra over half-open intervals of time, vectorised.

`spans` are int64 arrays [n, 2] of starts and ends; a *disjoint* array is sorted and its spans neither overlap nor
touch, which is what every function here that returns spans returns, unless it says otherwise. Spans that end at or
before their start are empty and are dropped. Nothing changes its input.
"""

from collections.abc import Iterator

import numpy as np

EMPTY = np.empty((0, 2), dtype=np.int64)

CHUNK = 1 << 17
"""Spans that are looked at together: few enough for the processor's cache, enough to make each call worth it."""


def spans_of(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Spans [n, 2] from two arrays [n]."""
    return np.column_stack([np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)])


def union(spans: np.ndarray) -> np.ndarray:
    """The instants covered by at least one span, as disjoint spans."""
    spans = spans[spans[:, 1] > spans[:, 0]]
    if len(spans) == 0:
        return EMPTY
    starts, ends = spans[:, 0], spans[:, 1]
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    first = np.flatnonzero(np.append(True, starts[1:] > reach[:-1]))
    return np.column_stack([starts[first], reach[np.append(first[1:], len(starts)) - 1]])


def covered_before(spans: np.ndarray, instants: np.ndarray) -> np.ndarray:
    """For each instant, how much of the time before it a disjoint array covers, int64 [k]."""
    if len(spans) == 0:
        return np.zeros(len(instants), dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(spans[:, 1] - spans[:, 0])])
    index = np.searchsorted(spans[:, 0], instants, side="right")
    last_end = spans[np.maximum(index - 1, 0), 1]
    return before[index] - np.where(index > 0, np.maximum(last_end - instants, 0), 0)


def cut(spans: np.ndarray, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut sorted spans that do not overlap at the bounds of sorted windows [w, 2] that do not overlap either.

    Both may touch. Returns the pieces that lie in a window, sorted [k, 2], and for each the index of its span [k] and
    of its window [k].
    """
    first = np.searchsorted(windows[:, 1], spans[:, 0], side="right")
    last = np.searchsorted(windows[:, 0], spans[:, 1], side="left")
    count = np.where(spans[:, 1] > spans[:, 0], np.maximum(last - first, 0), 0)
    span = np.repeat(np.arange(len(spans)), count)
    window = first[span] + np.arange(len(span)) - np.repeat(np.cumsum(count) - count, count)
    starts = np.maximum(spans[span, 0], windows[window, 0])
    return np.column_stack([starts, np.minimum(spans[span, 1], windows[window, 1])]), span, window


def bounds_of(*arrays: np.ndarray) -> np.ndarray:
    """All instants at which any of the spans starts or ends, sorted, each once [k]."""
    # Each array is in order or nearly so, of which the stable sort makes use.
    instants = np.sort(np.concatenate([array.ravel() for array in arrays]), kind="stable")
    is_first = np.ones(len(instants), dtype=bool)
    is_first[1:] = instants[1:] != instants[:-1]
    return instants[is_first]


def index_at(spans: np.ndarray, instants: np.ndarray) -> np.ndarray:
    """For each instant, the index of the span of a disjoint array that covers it, or -1 [k].

    Spans that touch are as good, where they are sorted and do not overlap.
    """
    if len(spans) == 0:
        return np.full(len(instants), -1, dtype=np.int64)
    index = np.searchsorted(spans[:, 0], instants, side="right") - 1
    index[instants >= spans[index, 1]] = -1
    return index


def covers(spans: np.ndarray, instants: np.ndarray) -> np.ndarray:
    """For each instant, whether a disjoint array covers it, bool [k]."""
    return index_at(spans, instants) >= 0


def innermost(spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cut overlapping or nested spans into pieces that belong to the span that started last.

    Of spans with equal starts the shorter one counts as the inner one, and of equal spans the last one.

    Returns the pieces, sorted and not overlapping [k, 2], and for each the index of the span it belongs to [k]. A span
    within which others lie has several pieces, or none where they cover it wholly.
    """
    kept = np.flatnonzero(spans[:, 1] > spans[:, 0])
    starts, ends = spans[kept, 0], spans[kept, 1]
    if len(kept) == 0:
        return EMPTY, np.empty(0, dtype=np.int64)
    if not is_nesting_order(starts, ends):
        order = np.lexsort([-ends, starts])
        kept, starts, ends = kept[order], starts[order], ends[order]
    moments, owner = _latest(starts, ends)
    changes = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
    pieces = np.column_stack([moments[changes], moments[np.append(changes[1:], len(owner))]])
    owned = owner[changes] >= 0
    return pieces[owned], kept[owner[changes[owned]]]


def is_nesting_order(starts: np.ndarray, ends: np.ndarray) -> bool:
    """Whether spans are sorted by start, and of those that start together the longest first, as `parents` needs them.

    Both are [n].
    """
    later = starts[1:] > starts[:-1]
    return bool((later | ((starts[1:] == starts[:-1]) & (ends[1:] <= ends[:-1]))).all())


def parents(starts: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
    """For each span the index of the smallest one around it, or -1, int32 [n].

    Spans must be in nesting order, and none empty. None where two overlap and neither lies in the other.
    """
    if ((starts[1:] < ends[:-1]) & (ends[1:] > ends[:-1])).any():
        return None
    index = np.arange(len(starts), dtype=np.int32)
    depth = (index - np.searchsorted(np.sort(ends, kind="stable"), starts, side="right")).astype(np.int32)
    deepest = int(depth.max(initial=0))
    # Only arrays of small integers are sorted in linear time.
    by_depth = np.argsort(depth.astype(np.int16) if deepest < 1 << 15 else depth, kind="stable").astype(np.int32)
    edges = np.concatenate([[0], np.cumsum(np.bincount(depth, minlength=deepest + 1))])
    parent = np.full(len(starts), -1, dtype=np.int32)
    # Where all nest, what encloses a span is the last to start before it among those one less deep.
    for level in range(1, deepest + 1):
        around, own = by_depth[edges[level - 1] : edges[level]], by_depth[edges[level] : edges[level + 1]]
        parent[own] = around[np.searchsorted(around, own) - 1]
    inner = np.flatnonzero(parent >= 0)
    return parent if (ends[parent[inner]] >= ends[inner]).all() else None


def separate(starts: np.ndarray, ends: np.ndarray, rows: np.ndarray, size: int = CHUNK) -> Iterator[np.ndarray]:
    """Split some spans into parts, such that no span of one part overlaps a span of another.

    Yields parts of `rows`, which must be sorted by start. Each has about `size` spans; more, where there is no instant
    at which none is open.
    """
    first = 0
    while first < len(rows):
        last, length = first, size
        while last == first:
            end = min(first + length, len(rows))
            reach = np.maximum.accumulate(ends[rows[first:end]])
            closed = np.flatnonzero(starts[rows[first + 1 : end + 1]] >= reach[: len(rows) - first - 1])
            last = len(rows) if end == len(rows) else first + 1 + int(closed[-1]) if len(closed) else first
            length *= 2
        yield rows[first:last]
        first = last


def _latest(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All starts and ends in order of time, each once [k], and which span in nesting order is the last of those open
    between them, -1 where none is [k-1].

    A span covers a run of the k-1 pieces, which two blocks of a power of two pieces cover as well: it is entered at the
    starts of these. From the largest blocks to the smallest, what holds for one is handed on to its two halves.
    """
    moments = bounds_of(starts, ends)
    first = np.searchsorted(moments, starts).astype(np.int32)
    last = np.searchsorted(moments, ends).astype(np.int32)
    exponent = (np.frexp(last - first)[1] - 1).astype(np.int8)
    owner = np.full(len(moments) - 1, -1, dtype=np.int32)
    for power in range(int(exponent.max()), -1, -1):
        size = 1 << power
        spans = np.flatnonzero(exponent == power).astype(np.int32)
        np.maximum.at(owner, first[spans], spans)
        np.maximum.at(owner, last[spans] - size, spans)
        if power:
            halved = owner.copy()
            np.maximum(halved[size // 2 :], owner[: -(size // 2)], out=halved[size // 2 :])
            owner = halved
    return moments, owner

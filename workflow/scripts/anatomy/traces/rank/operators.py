"""Self time of operators and GPU kernels."""

from collections.abc import Callable, Iterator

import numpy as np

from anatomy.traces.columns import Columns
from anatomy.traces.intervals import (
    CHUNK,
    covered_before,
    index_at,
    innermost,
    is_nesting_order,
    parents,
    separate,
    spans_of,
    union,
)
from anatomy.traces.naming import Category
from anatomy.traces.rank.annotations import numbers_of, windows_of
from anatomy.traces.rank.communication import WORK_PREFIXES
from anatomy.traces.rank.record import Steps
from anatomy.traces.reading.events import Events, Kind

CATEGORIES = tuple(Category)
UNCLASSIFIED = CATEGORIES.index(Category.UNCLASSIFIED)
COMMUNICATION = CATEGORIES.index(Category.COMMUNICATION)


def operator_times(
    events: Events, steps: Steps, blocking: np.ndarray, category_of: Callable[[str], Category]
) -> Columns:
    """Calls and self time by step, category, name and device.

    An operator's self time is what it spends outside of the operators that it calls on its thread. Operators that may
    block in communication (`blocking`, bool [n]) do not count the time in which the backend's threads work for them,
    which is the backend's self time; those of no other category are communication. A kernel's is its duration, so
    kernels that run at the same time both count. What starts within a step belongs to it.

    Columns [k]: step int64; category, name and device (cpu or cuda) object (str); calls and self_ns int64.
    """
    categories = np.array([CATEGORIES.index(category_of(name)) for name in events.names], dtype=np.int8)
    windows, num_codes = windows_of(steps), 4 * len(events.names)
    parts = []
    for rows, self_ns in _self_times(events, blocking):
        step = index_at(windows, events.start_ns[rows])
        inside = step >= 0
        rows, step, self_ns = rows[inside], step[inside], self_ns[inside]
        name = events.name[rows].astype(np.int64)
        blocks = blocking[rows] & (categories[name] == UNCLASSIFIED)
        parts.append(_tally(step * num_codes + name * 4 + events.on_gpu[rows] * 2 + blocks, self_ns))
    codes, calls, self_ns = (np.concatenate(column) for column in zip(*parts, strict=True)) if parts else _nothing()
    calls, (codes, _, self_ns) = _tally(codes, calls)[2], _tally(codes, self_ns)
    step, rest = np.divmod(codes, num_codes)
    name, rest = np.divmod(rest, 4)
    category = np.where(rest % 2 == 1, COMMUNICATION, categories[name])
    by_text = np.argsort(np.argsort(np.array(events.names, dtype=object), kind="stable"), kind="stable")
    order = np.lexsort([rest, by_text[name], category, step])
    return {
        "step": numbers_of(steps)[step[order]],
        "category": np.array([category.value for category in CATEGORIES], dtype=object)[category[order]],
        "name": np.array(events.names, dtype=object)[name[order]],
        "device": np.array(["cpu", "cuda"], dtype=object)[rest[order] // 2],
        "calls": calls[order],
        "self_ns": self_ns[order],
    }


def _self_times(events: Events, blocking: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of operators, of the backend's work and of work on the GPU, and the self time in ns of each, in parts."""
    backend = (events.kind == Kind.ANNOTATION) & events.starting_with(*WORK_PREFIXES)
    work = union(spans_of(events.start_ns[backend], events.end_ns[backend]))
    on_cpu = np.flatnonzero((events.kind == Kind.OP) | backend).astype(np.int32)
    thread = events.thread[on_cpu]
    for number in np.unique(thread):
        for rows in separate(events.start_ns, events.end_ns, on_cpu[thread == number]):
            yield rows, _nested_self_times(events.start_ns[rows], events.end_ns[rows], blocking[rows], work)
    on_gpu = np.flatnonzero(events.on_gpu)
    for first in range(0, len(on_gpu), CHUNK):
        rows = on_gpu[first : first + CHUNK]
        yield rows, events.end_ns[rows] - events.start_ns[rows]


def _nested_self_times(starts: np.ndarray, ends: np.ndarray, blocking: np.ndarray, work: np.ndarray) -> np.ndarray:
    """Self times in ns of spans of one thread [n]; those `blocking` lose what lies within `work`, disjoint spans."""
    result = np.zeros(len(starts), dtype=np.int64)
    filled = np.flatnonzero(ends > starts)
    starts, ends, blocking = starts[filled], ends[filled], blocking[filled]
    around = parents(starts, ends) if is_nesting_order(starts, ends) else None
    if around is None:
        pieces, owner = innermost(spans_of(starts, ends))
        around = np.full(len(owner), -1)
    else:
        pieces, owner = spans_of(starts, ends), np.arange(len(starts))
    result[filled] = _sums(pieces[:, 1] - pieces[:, 0], owner, around, len(filled))
    if len(work) and blocking.any():
        blocked = covered_before(work, pieces[:, 1]) - covered_before(work, pieces[:, 0])
        result[filled] -= np.where(blocking, _sums(blocked, owner, around, len(filled)), 0)
    return result


def _sums(values: np.ndarray, owner: np.ndarray, around: np.ndarray, count: int) -> np.ndarray:
    """Sum of the values of each owner, less those of what lies directly `around` it [count]."""
    result = np.zeros(count, dtype=np.int64)
    np.add.at(result, owner, values)
    inner = np.flatnonzero(around >= 0)
    np.subtract.at(result, around[inner], values[inner])
    return result


def _tally(codes: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct codes, sorted; how often each occurs; and the sum of its values; all int64."""
    if len(codes) == 0:
        return _nothing()
    lowest = int(codes.min())
    size = int(codes.max()) - lowest + 1
    if size > 8 * len(codes) + CHUNK:
        distinct, places = np.unique(codes, return_inverse=True)
    else:
        distinct, places = np.arange(lowest, lowest + size), codes - lowest
    counts = np.bincount(places, minlength=len(distinct))
    sums = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(sums, places, values)
    found = np.flatnonzero(counts)
    return distinct[found], counts[found], sums[found]


def _nothing() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (np.empty(0, dtype=np.int64),) * 3

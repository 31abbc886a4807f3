"""What is kept of a rank's pieces: sums by step and phase, communication in flight, and intervals to look at."""

from collections.abc import Iterator

import numpy as np

from anatomy.traces.columns import Columns
from anatomy.traces.intervals import cut, index_at, spans_of, union
from anatomy.traces.rank.activity import border_copies
from anatomy.traces.rank.annotations import PHASES, PhaseTimeline, numbers_of, windows_of
from anatomy.traces.rank.communication import is_work
from anatomy.traces.rank.decomposition import (
    CATEGORIES,
    COMMUNICATION,
    COPY_CATEGORY,
    NOT_COMMUNICATING,
    PHASE_CATEGORY,
    merge_pieces,
)
from anatomy.traces.rank.record import Steps
from anatomy.traces.reading.events import Events

WHOLE_RANK = "rank"
"""The stream of intervals that stand for the rank as a whole."""

COMPUTATION, COPY, TRAFFIC = range(3)
STREAM_CATEGORY = np.stack([PHASE_CATEGORY, COPY_CATEGORY, np.full_like(PHASE_CATEGORY, COMMUNICATION)])
"""The category of what a stream shows, by its sort (one of the three above) and its phase."""

INTERVALS = {
    "step": np.int32,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "category": np.int8,
    "phase": np.int8,
    "stream": np.int16,
}
"""Columns of intervals while they are collected; `step` is the place of the step, `stream` that of the stream."""


def sum_pieces(pieces: Columns, steps: Steps) -> Columns:
    """How long each step was in each phase and category, where it was at all.

    `pieces` are those of `decompose`. Columns [n]: step, phase, category, ns, all int64; sorted by time of the step,
    phase and category.
    """
    shape = (len(steps), len(PHASES), len(CATEGORIES))
    total = np.zeros(shape, dtype=np.int64)
    np.add.at(total, (pieces["step"], pieces["phase"], pieces["category"]), pieces["end_ns"] - pieces["start_ns"])
    step, phase, category = np.nonzero(total)
    return {"step": numbers_of(steps)[step], "phase": phase, "category": category, "ns": total[step, phase, category]}


def count_calls(phases: Columns, steps: Steps) -> Columns:
    """How many annotations of each phase start in each step, where any does.

    `phases` are those of `find_phases`. Columns [n]: step, phase, calls, all int64.
    """
    index = index_at(windows_of(steps), phases["start_ns"])
    inside = index >= 0
    counts = np.zeros((len(steps), len(PHASES)), dtype=np.int64)
    np.add.at(counts, (index[inside], phases["phase"][inside]), 1)
    step, phase = np.nonzero(counts)
    return {"step": numbers_of(steps)[step], "phase": phase, "calls": counts[step, phase]}


def communicating_pieces(pieces: Columns, steps: Steps) -> Columns:
    """When communication was in flight within the steps, in pieces that do not overlap.

    The phase of what is exposed is that of its piece, so that both sum up alike; the phase of what is overlapped is
    that of the communication, whatever was computed meanwhile. Columns [n]: step, phase, start_ns and end_ns int64,
    overlapped bool.
    """
    chosen = np.flatnonzero(pieces["communication"] != NOT_COMMUNICATING)
    found = {name: column[chosen] for name, column in pieces.items()}
    found["phase"] = np.where(found["overlapped"], found["communication"], found["phase"])
    merged = merge_pieces(found, ("step", "phase", "overlapped"))
    return merged | {"step": numbers_of(steps)[merged["step"]], "phase": merged["phase"].astype(np.int64)}


def find_stretches(pieces: Columns, steps: Steps) -> Columns:
    """The rank's time in stretches of one phase, in order: either of communication that nothing hides or of all else.

    `pieces` are those of `decompose`. Columns [n]: step, start_ns and end_ns int64; phase; category, that which fills
    most of the stretch.
    """
    communicates = pieces["category"] == COMMUNICATION
    merged = merge_pieces(pieces | {"communicates": communicates}, ("step", "phase", "communicates"))
    spent = np.zeros((len(merged["step"]), len(CATEGORIES)), dtype=np.int64)
    stretch = np.searchsorted(merged["start_ns"], pieces["start_ns"], side="right") - 1
    np.add.at(spent, (stretch, pieces["category"]), pieces["end_ns"] - pieces["start_ns"])
    times = {name: merged[name] for name in ("start_ns", "end_ns", "phase")}
    return {"step": numbers_of(steps)[merged["step"]], **times, "category": np.argmax(spent, axis=1)}


def find_intervals(
    pieces: Columns, events: Events, steps: Steps, timeline: PhaseTimeline
) -> tuple[Columns, tuple[str, ...]]:
    """What the rank as a whole did, without gap or overlap; what each GPU stream did, and when each CPU thread
    communicated, by category and phase, united and cut at steps.

    Returns step (its number, int64), start_ns, end_ns, category, phase and stream (index) [n], by stream and start, and
    the names of the streams.
    """
    sort = np.where(border_copies(events), np.int8(COPY), np.int8(COMPUTATION))
    sort[is_work(events)] = TRAFFIC
    names, parts = [WHOLE_RANK], [merge_pieces(pieces, ("step", "category", "phase"))]
    for name, rows in _streams(events):
        names.append(name)
        parts.append(_stream_intervals(events, rows, sort[rows], windows_of(steps), timeline))
    lengths = [len(part["step"]) for part in parts]
    # Column by column, each leaving the parts as it goes: these are the largest table there is of a rank.
    columns = {
        name: np.concatenate([part.pop(name) for part in parts]).astype(dtype, copy=False)
        for name, dtype in INTERVALS.items()
        if name in parts[0]
    }
    stream = np.repeat(np.arange(len(parts), dtype=INTERVALS["stream"]), lengths)
    return columns | {"step": numbers_of(steps)[columns["step"]], "stream": stream}, tuple(names)


def _streams(events: Events) -> Iterator[tuple[str, np.ndarray]]:
    """Names of streams and the rows of what they show: those of the GPU by number, then threads of the CPU."""
    rows = np.flatnonzero(events.on_gpu).astype(np.int32)
    numbers = events.stream[rows]
    for number in np.unique(numbers):
        yield f"gpu stream {number}", rows[numbers == number]
    rows = np.flatnonzero(is_work(events) & ~events.on_gpu)
    threads = events.thread[rows]
    labels = {thread: events.threads[thread].rpartition("/")[2] for thread in np.unique(threads)}
    for label in sorted(set(labels.values())):
        yield f"cpu thread {label}", rows[np.isin(threads, [thread for thread in labels if labels[thread] == label])]


def _stream_intervals(
    events: Events, rows: np.ndarray, sort: np.ndarray, windows: np.ndarray, timeline: PhaseTimeline
) -> Columns:
    """What a stream did in order of time; `sort` is of `STREAM_CATEGORY` [k], `step` is the place of the step."""
    phase = timeline.at(events.launched_at(rows)).astype(np.int8)
    kind = STREAM_CATEGORY[sort, phase].astype(np.int16) * len(PHASES) + phase
    parts = []
    for code in np.unique(kind):
        chosen = rows[kind == code]
        spans, _, step = cut(union(spans_of(events.start_ns[chosen], events.end_ns[chosen])), windows)
        parts.append((spans, step, np.full(len(step), code, dtype=np.int16)))
    spans, step, code = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(spans[:, 0], kind="stable")
    return {
        "step": step[order].astype(np.int32),
        "start_ns": spans[order, 0],
        "end_ns": spans[order, 1],
        "category": (code[order] // len(PHASES)).astype(np.int8),
        "phase": (code[order] % len(PHASES)).astype(np.int8),
    }

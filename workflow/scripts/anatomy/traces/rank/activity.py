"""When a rank computed, communicated and copied."""

from dataclasses import dataclass

import numpy as np

from anatomy.phases import Phase
from anatomy.traces.columns import Columns
from anatomy.traces.intervals import CHUNK, EMPTY, innermost, separate, spans_of, union
from anatomy.traces.naming import is_transfer
from anatomy.traces.rank.annotations import NO_PHASE, PHASES, PhaseTimeline, training_threads
from anatomy.traces.rank.communication import is_call, is_work, may_block
from anatomy.traces.reading.events import Events, Kind

COMMUNICATION_PHASES = [PHASES.index(phase) for phase in (Phase.FETCH, Phase.EXCHANGE, Phase.SYNC)]


@dataclass(frozen=True)
class Activity:
    """What a rank did, as sorted spans [n, 2] that do not overlap but may touch, and the phase of each.

    Phases are int8 [n], indices into `PHASES`: of what was launched from several phases, that of what started last.
    `gpu` says whether the rank's work runs on a GPU. Without one, the phase of a computation is not in
    `compute_phases`, which are `NO_PHASE`, but in the phase timeline; copies are then computations. `blocking` is when
    communication may have kept it waiting; with a GPU that is all the time.
    """

    gpu: bool
    compute: np.ndarray
    compute_phases: np.ndarray
    communication: np.ndarray
    communication_phases: np.ndarray
    copies: np.ndarray
    copy_phases: np.ndarray
    blocking: np.ndarray


def find_activity(events: Events, blocking: np.ndarray, timeline: PhaseTimeline, gpu: bool) -> Activity:
    """What a rank's events say about when it computed, communicated and copied.

    `blocking` is of `blocking_operators`; `gpu` says whether any event is on a GPU.
    """
    work = is_work(events)
    if gpu:
        copies = border_copies(events)
        computing = np.flatnonzero(events.on_gpu & ~work & ~copies)
        # What the CPU spends on launching NCCL is not communication of the GPU.
        communicating, copying = np.flatnonzero(work), np.flatnonzero(copies)
        blocking = communicating
    else:
        called = is_call(events) & np.isin(events.thread, training_threads(events))
        computing = computing_operators(events, blocking)
        communicating, copying = np.flatnonzero(work | called), computing[:0]
        blocking = np.flatnonzero(may_block(events) | called)
    return Activity(
        gpu,
        *_pieces(events, computing, timeline if gpu else None),
        *_pieces(events, communicating, timeline),
        *_pieces(events, copying, timeline),
        union(spans_of(events.start_ns[blocking], events.end_ns[blocking])),
    )


def border_copies(events: Events) -> np.ndarray:
    """Which events are copies between a GPU and the host or another GPU, bool [n]."""
    return (events.kind == Kind.MEMCPY) & events.by_name(is_transfer)


def computing_operators(events: Events, blocking: np.ndarray) -> np.ndarray:
    """The rows of the operators that show that a training thread computes; `blocking` is of `blocking_operators`."""
    training = np.isin(events.thread, training_threads(events))
    return np.flatnonzero((events.kind == Kind.OP) & training & ~blocking)


def blocking_operators(events: Events, phases: Columns) -> np.ndarray:
    """Which operators may block in communication, bool [n]: their own time shows nothing, that of those in them does.

    These are the ones that start communication, and on the threads that train also those within which it is started or
    a phase of communication begins.
    """
    result = is_call(events)
    moments = np.flatnonzero(result | is_work(events))
    exchanging = np.isin(phases["phase"], COMMUNICATION_PHASES)
    for thread in training_threads(events):
        begun = phases["start_ns"][exchanging & (phases["thread"] == thread)]
        called = events.start_ns[moments[events.thread[moments] == thread]]
        instants = np.sort(np.concatenate([begun, called]))
        if len(instants):
            rows = np.flatnonzero((events.kind == Kind.OP) & (events.thread == thread))
            for first in range(0, len(rows), CHUNK):
                part = rows[first : first + CHUNK]
                result[part[_any_within(instants, events.start_ns[part], events.end_ns[part])]] = True
    return result


def _any_within(instants: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Whether any of the sorted instants lies between start and end, and at neither, bool [n]."""
    following = np.append(instants, np.iinfo(np.int64).max)
    return following[np.searchsorted(instants, starts, side="right")] < ends


def _pieces(events: Events, rows: np.ndarray, timeline: PhaseTimeline | None) -> tuple[np.ndarray, np.ndarray]:
    """What some events cover, in pieces of one phase, and that phase; of events at the same time the later one counts.

    The rows are in the order of the events. Without a timeline all phases are `NO_PHASE`.
    """
    spans, codes = [EMPTY], [np.empty(0, dtype=np.int8)]
    for part in separate(events.start_ns, events.end_ns, rows):
        phases = np.full(len(part), NO_PHASE) if timeline is None else timeline.at(events.launched_at(part))
        pieces, phases = _merged(spans_of(events.start_ns[part], events.end_ns[part]), phases.astype(np.int8))
        spans.append(pieces)
        codes.append(phases)
    return np.concatenate(spans), np.concatenate(codes)


def _merged(spans: np.ndarray, phases: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Spans cut into pieces of one phase, that of the innermost; pieces that touch and have the same phase are one."""
    if (phases == phases[0]).all():
        pieces = union(spans)
        return pieces, np.full(len(pieces), phases[0])
    pieces, owner = innermost(spans)
    codes = phases[owner]
    changes = (codes[1:] != codes[:-1]) | (pieces[1:, 0] > pieces[:-1, 1])
    first = np.flatnonzero(np.append(len(codes) > 0, changes))
    last = np.append(first[1:], len(codes))[: len(first)] - 1
    return np.column_stack([pieces[first, 0], pieces[last, 1]]), codes[first]

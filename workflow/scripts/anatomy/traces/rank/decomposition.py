"""Every instant of a step given to exactly one category, so that the parts add up to its wall time.

A step is cut wherever anything starts or ends. Within a piece nothing changes, so one decision per piece is exact, and
overlapping work is united by construction. The decision, first match wins:

where the rank has a GPU
  1. a compute kernel runs: the phase that launched it decides (see below);
  2. NCCL (or Gloo) communicates: exposed communication;
  3. memory crosses the device's border: preparation where an annotated phase of preparation launched it, else copy;
  4. the GPU is idle: preparation where the CPU is in a phase of preparation, for which the GPU waits; else idle.

where it has none
  1. communication is in flight that the rank may be waiting for, and no training thread is within an operator of its
     own: exposed communication. An operator that itself communicates, such as the backward pass of a halo exchange,
     blocks and is not computing; an emulated slow rank that sleeps in `disturb` is;
  2. the innermost phase decides (see below), but in `exchange`, in `sync` and outside of every phase only operators are
     compute, and the rest is other. Nothing shows that a CPU is idle, so idle is 0.

by phase
  `sample`, `fetch`, `gather` and `copy` are preparation; `evaluate` is other; all else is compute.

Communication while anything else is done is overlapped.
"""

import numpy as np

from anatomy.phases import PREPARATION, Phase
from anatomy.traces.columns import Columns
from anatomy.traces.intervals import bounds_of, covers, index_at
from anatomy.traces.rank.activity import Activity
from anatomy.traces.rank.annotations import PHASES, PhaseTimeline, windows_of
from anatomy.traces.rank.record import Steps

CATEGORIES = ("compute", "communication", "preparation", "copy", "idle", "other")
COMPUTE, COMMUNICATION, PREPARING, COPYING, IDLE, OTHER = range(len(CATEGORIES))

PHASE_CATEGORY = np.array(
    [PREPARING if phase in PREPARATION else OTHER if phase == Phase.EVALUATE else COMPUTE for phase in PHASES],
    dtype=np.int8,
)
"""The category of work by its phase [number of phases]."""

COPY_CATEGORY = np.where(PHASE_CATEGORY == PREPARING, PREPARING, COPYING).astype(np.int8)
"""The category of a copy over the device's border by its phase [number of phases]."""

IDLE_CATEGORY = np.where(PHASE_CATEGORY == PREPARING, PREPARING, IDLE).astype(np.int8)
"""The category of a GPU without work by the phase that the CPU is in [number of phases]."""

OPERATORS_ONLY = np.array([phase in (Phase.EXCHANGE, Phase.SYNC, Phase.OTHER) for phase in PHASES])
"""Phases in which a CPU computes only while it is within an operator [number of phases]."""

EMULATED = PHASES.index(Phase.DISTURB)
"""The phase in which a slow rank sleeps for what it would still be computing."""

NOT_COMMUNICATING = -1

DECIDED_AT_ONCE = 1 << 18
"""Pieces whose category is decided together: what is needed meanwhile takes a multiple of their memory."""

KEYS = ("step", "category", "phase", "communication")
"""What makes two pieces that touch different."""


def decompose(steps: Steps, activity: Activity, timeline: PhaseTimeline) -> Columns:
    """The pieces of all steps of one rank, in order of time, neighbours that are alike merged.

    Columns [n]: step int32 (the place of the step in `steps`); start_ns and end_ns int64; category (index into
    `CATEGORIES`) and phase (index into `PHASES`) int8; communication int8, the phase of the communication in flight,
    `NOT_COMMUNICATING` where there is none; overlapped bool, whether something is computed meanwhile. The pieces of a
    step cover it without gap or overlap.
    """
    windows = windows_of(steps)
    bounds = bounds_of(
        windows, activity.compute, activity.communication, activity.copies, timeline.pieces, activity.blocking
    )
    bounds = bounds[np.searchsorted(bounds, windows[0, 0]) : np.searchsorted(bounds, windows[-1, 1]) + 1]
    parts = [
        _decide(bounds[first : first + DECIDED_AT_ONCE + 1], windows, activity, timeline)
        for first in range(0, len(bounds) - 1, DECIDED_AT_ONCE)
    ]
    pieces = merge_pieces({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, KEYS)
    overlapped = (pieces["communication"] != NOT_COMMUNICATING) & (pieces["category"] != COMMUNICATION)
    return pieces | {"overlapped": overlapped}


def merge_pieces(pieces: Columns, keys: tuple[str, ...]) -> Columns:
    """Pieces in order of time, those that touch and have equal `keys` made one; other columns are left out."""
    starts, ends = pieces["start_ns"], pieces["end_ns"]
    if len(starts) == 0:
        return {name: pieces[name] for name in (*keys, "start_ns", "end_ns")}
    changes = starts[1:] != ends[:-1]
    for key in keys:
        changes |= pieces[key][1:] != pieces[key][:-1]
    first = np.flatnonzero(np.append(True, changes))
    last = np.append(first[1:], len(starts)) - 1
    return {key: pieces[key][first] for key in keys} | {"start_ns": starts[first], "end_ns": ends[last]}


def _decide(bounds: np.ndarray, windows: np.ndarray, activity: Activity, timeline: PhaseTimeline) -> Columns:
    """The pieces between neighbouring bounds [k+1] that lie in a step, as in `decompose`."""
    left, right = bounds[:-1], bounds[1:]
    step = index_at(windows, left)
    inside = step >= 0
    if not inside.all():
        left, right, step = left[inside], right[inside], step[inside]
    communication = _phase_at(activity.communication, activity.communication_phases, left)
    decide = _decide_gpu if activity.gpu else _decide_cpu
    category, phase = decide(left, activity, timeline, communication)
    return {
        "step": step.astype(np.int32),
        "start_ns": left,
        "end_ns": right,
        "category": category,
        "phase": phase,
        "communication": communication,
    }


def _decide_gpu(
    left: np.ndarray, activity: Activity, timeline: PhaseTimeline, communication: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Category and phase of each piece of a rank with a GPU, int8 [k]."""
    phase = timeline.at(left).astype(np.int8)
    category = IDLE_CATEGORY[phase]
    # From the last that could match to the first, which wins.
    layers = (
        (_phase_at(activity.copies, activity.copy_phases, left), COPY_CATEGORY),
        (communication, np.full(len(PHASES), COMMUNICATION, dtype=np.int8)),
        (_phase_at(activity.compute, activity.compute_phases, left), PHASE_CATEGORY),
    )
    for found, category_of_phase in layers:
        chosen = found >= 0
        phase = np.where(chosen, found, phase)
        category = np.where(chosen, category_of_phase[found], category)
    return category, phase


def _decide_cpu(
    left: np.ndarray, activity: Activity, timeline: PhaseTimeline, communication: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Category and phase of each piece of a rank without a GPU, int8 [k]."""
    phase = timeline.at(left).astype(np.int8)
    computing, blocking = covers(activity.compute, left) | (phase == EMULATED), covers(activity.blocking, left)
    category = np.where(OPERATORS_ONLY[phase] & ~computing, np.int8(OTHER), PHASE_CATEGORY[phase])
    category[(communication != NOT_COMMUNICATING) & ~computing & blocking] = COMMUNICATION
    return category, phase


def _phase_at(spans: np.ndarray, phases: np.ndarray, instants: np.ndarray) -> np.ndarray:
    """The phase of the span that covers each instant, -1 where none does, int8 [k]."""
    return np.append(phases, np.int8(-1))[index_at(spans, instants)]

"""Every instant of a step given to exactly one category, so that the parts add up to its wall time.

A step is cut wherever anything starts or ends. Within a piece nothing changes, so one decision per piece is exact, and
overlapping work is united by construction. The decision, first match wins:

where the job has GPUs
  1. a compute kernel runs: the phase that launched it decides (see below);
  2. NCCL (or Gloo) communicates: exposed communication;
  3. memory crosses the device's border: preparation, `copy`, or what the annotated phase that launched it says;
  4. the GPU is idle: preparation where the CPU is in a phase of preparation, for which the GPU waits; else idle.

where it has none
  1. communication is in flight, and no training thread is within an operator of its own: exposed communication. An
     operator that itself communicates, such as the backward pass of a halo exchange, blocks and is not computing;
  2. the innermost phase decides (see below), but in `exchange`, in `sync` and outside of every phase only operators are
     compute, and the rest is other. Nothing shows that a CPU is idle, so idle is 0.

by phase
  `sample`, `fetch`, `gather` and `copy` are preparation; `evaluate` is other; all else is compute.

Communication under an overlapping computation is overlapped. Exposed communication is waiting while all collectives in
flight wait for a rank that has not arrived, and transfer otherwise; where one could not be matched, it is not known.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from anatomy.phases import PREPARATION, Phase
from anatomy.traces.annotations import NO_PHASE, PHASES, PhaseTimeline, training_threads
from anatomy.traces.communication import is_call, is_work
from anatomy.traces.intervals import bounds_of, covers, index_at, innermost, spans_of, union
from anatomy.traces.naming import is_transfer
from anatomy.traces.reading import GPU_KINDS, by_name

CATEGORIES = ("compute", "communication", "preparation", "idle", "other")
COMPUTE, COMMUNICATION, PREPARING, IDLE, OTHER = range(len(CATEGORIES))

PHASE_CATEGORY = np.array(
    [PREPARING if phase in PREPARATION else OTHER if phase == Phase.EVALUATE else COMPUTE for phase in PHASES]
)
"""The category of work by its phase [number of phases]."""

OPERATORS_ONLY = np.array([phase in (Phase.EXCHANGE, Phase.SYNC, Phase.OTHER) for phase in PHASES])
"""Phases in which a CPU computes only while it is within an operator [number of phases]."""

COMMUNICATION_PHASES = [PHASES.index(phase) for phase in (Phase.FETCH, Phase.EXCHANGE, Phase.SYNC)]

WAITING, TRANSFERRING, UNKNOWN = range(3)


@dataclass(frozen=True)
class Activity:
    """What a rank did, as sorted spans [n, 2] that do not overlap, with the phase (index) of each [n].

    `gpu` says whether the job's work runs on GPUs.
    """

    gpu: bool
    compute: np.ndarray
    compute_phases: np.ndarray
    communication: np.ndarray
    communication_phases: np.ndarray
    copies: np.ndarray
    copy_phases: np.ndarray


def find_activity(events: pd.DataFrame, phases: pd.DataFrame, timeline: PhaseTimeline, gpu: bool) -> Activity:
    """What a rank's events say about when it computed, communicated and copied."""
    work, call = is_work(events), is_call(events)
    if gpu:
        copies = (events["kind"] == "memcpy").to_numpy() & by_name(events, is_transfer)
        compute = events["kind"].isin(GPU_KINDS).to_numpy() & ~work & ~copies
        # What the CPU spends on launching NCCL is not communication of the GPU.
        communication = work
    else:
        compute = computing_operators(events, phases, work | call)
        copies = np.zeros(len(events), dtype=bool)
        communication = work | (call & events["thread"].isin(training_threads(events)).to_numpy())
    parts = (_with_phases(events[chosen], timeline) for chosen in (compute, communication, copies))
    return Activity(gpu, *(array for part in parts for array in part))


def computing_operators(events: pd.DataFrame, phases: pd.DataFrame, communicates: np.ndarray) -> np.ndarray:
    """Which operators show that a training thread computes, bool [n].

    An operator within which communication is called, or a phase of communication begins, may block in it: its own time
    shows nothing, that of the operators within it does.
    """
    chosen = (events["kind"] == "op").to_numpy() & ~communicates
    starts, ends = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
    blocking = phases[phases["phase"].isin(COMMUNICATION_PHASES)]
    result = np.zeros(len(events), dtype=bool)
    for thread in training_threads(events):
        own = (events["thread"] == thread).to_numpy()
        inside = blocking.loc[blocking["thread"] == thread, "start_ns"].to_numpy()
        moments = np.sort(np.concatenate([starts[own & communicates], inside]))
        first = np.searchsorted(moments, starts, side="right")
        last = np.searchsorted(moments, ends, side="left")
        result |= own & chosen & (first == last)
    return result


def decompose(
    steps: dict[int, tuple[int, int]], activity: Activity, timeline: PhaseTimeline, collectives: pd.DataFrame
) -> pd.DataFrame:
    """The pieces of all steps of one rank, in order of time.

    `collectives` are the rank's rows of `match_collectives`. Columns: step, start_ns, end_ns, category (index into
    `CATEGORIES`), phase (index into `PHASES`), overlapped (bool: communication under a computation), state (of exposed
    communication: `WAITING`, `TRANSFERRING` or `UNKNOWN`). The pieces of a step cover it without gap or overlap.
    """
    windows = np.array(list(steps.values()), dtype=np.int64).reshape(-1, 2)
    states = _communication_states(collectives)
    layers = [windows, activity.compute, activity.communication, activity.copies, timeline.pieces, *states]
    bounds = bounds_of(*layers)
    bounds = bounds[(bounds >= windows.min()) & (bounds <= windows.max())]
    left, right = bounds[:-1], bounds[1:]
    step = index_at(windows, left)
    left, right, step = left[step >= 0], right[step >= 0], step[step >= 0]
    decide = _decide_gpu if activity.gpu else _decide_cpu
    category, phase = decide(left, activity, timeline)
    communicating, computing = covers(activity.communication, left), covers(activity.compute, left)
    waiting, transferring, unknown = (covers(spans, left) for spans in states)
    # What is in no collective is the call that starts one (CPU), or was launched before the steps (GPU).
    elsewhere = UNKNOWN if activity.gpu else TRANSFERRING
    return pd.DataFrame(
        {
            "step": np.array(list(steps), dtype=np.int64)[step],
            "start_ns": left,
            "end_ns": right,
            "category": category,
            "phase": phase,
            "overlapped": communicating & computing & (category != COMMUNICATION),
            "state": np.select([transferring, unknown, waiting], [TRANSFERRING, UNKNOWN, WAITING], elsewhere),
        }
    )


def _decide_gpu(left: np.ndarray, activity: Activity, timeline: PhaseTimeline) -> tuple[np.ndarray, np.ndarray]:
    """Category and phase of each piece of a rank with a GPU."""
    compute, communication, copy = (
        index_at(spans, left) for spans in (activity.compute, activity.communication, activity.copies)
    )
    conditions = [compute >= 0, communication >= 0, copy >= 0]
    chosen = (activity.compute_phases, activity.communication_phases, activity.copy_phases)
    found = [
        phases[index] if len(phases) else np.full(len(left), NO_PHASE)
        for phases, index in zip(chosen, (compute, communication, copy), strict=True)
    ]
    found[2] = np.where(found[2] == NO_PHASE, PHASES.index(Phase.COPY), found[2])
    phase = np.select(conditions, found, timeline.at(left))
    idle = np.where(PHASE_CATEGORY[phase] == PREPARING, PREPARING, IDLE)
    by_phase = PHASE_CATEGORY[phase]
    return np.select(conditions, [by_phase, np.full(len(left), COMMUNICATION), by_phase], idle), phase


def _decide_cpu(left: np.ndarray, activity: Activity, timeline: PhaseTimeline) -> tuple[np.ndarray, np.ndarray]:
    """Category and phase of each piece of a rank without a GPU."""
    computing, communicating = covers(activity.compute, left), covers(activity.communication, left)
    phase = timeline.at(left)
    unexplained = OPERATORS_ONLY[phase] & ~computing
    conditions = [communicating & ~computing, unexplained]
    return np.select(conditions, [COMMUNICATION, OTHER], PHASE_CATEGORY[phase]), phase


def _communication_states(collectives: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """When a rank's collectives wait, transfer, and do what is not known, as disjoint spans."""
    matched = collectives[collectives["matched"]]
    boundary = matched["start_ns"] + matched["wait_ns"].astype(np.int64)
    unmatched = collectives[~collectives["matched"]]
    return (
        union(spans_of(matched["start_ns"], boundary)),
        union(spans_of(boundary, matched["end_ns"])),
        union(spans_of(unmatched["start_ns"], unmatched["end_ns"])),
    )


def _with_phases(events: pd.DataFrame, timeline: PhaseTimeline) -> tuple[np.ndarray, np.ndarray]:
    """What events cover, in pieces of one phase, and that phase; of events at the same time the later one counts."""
    pieces, owner = innermost(spans_of(events["start_ns"], events["end_ns"]))
    phases = timeline.at(events["launched_ns"].to_numpy())[owner] if len(owner) else owner
    return pieces, phases

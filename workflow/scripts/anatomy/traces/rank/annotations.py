"""Steps and phases of a rank, from the annotations in its trace."""

import numpy as np

from anatomy.phases import ANNOTATION_PREFIX, Phase
from anatomy.traces.columns import Columns
from anatomy.traces.intervals import covers, index_at, innermost, spans_of, union
from anatomy.traces.naming import STEP_PREFIX
from anatomy.traces.rank.record import Steps
from anatomy.traces.reading.events import Events, Kind

WHOLE_WINDOW = 0
"""The step number given to the whole window of a trace that has no steps."""

MOST_DIGITS = 18
"""Digits of a step's number that int64 always holds."""

PHASES: tuple[str, ...] = tuple(phase.value for phase in Phase)
NO_PHASE = PHASES.index(Phase.OTHER)
"""Where a table has a phase as a number, it is the index into `PHASES`; `other` is where no phase is annotated."""

AUTOGRAD_PREFIX = "autograd::engine"


def find_steps(events: Events) -> Steps:
    """Start and end in ns of each profiled step, by its number, in order of time; empty where none is annotated.

    The CPU's annotation counts. The profiler repeats it on the GPU's streams; that one is read only where the CPU's is
    missing. Of two annotations of the same step on the CPU (by two threads) the longer one is the step.
    """
    named = events.by_name(lambda name: _step_number(name) is not None)
    for kind in (Kind.ANNOTATION, Kind.GPU_ANNOTATION):
        rows = np.flatnonzero(named & (events.kind == kind))
        rows = rows[events.end_ns[rows] > events.start_ns[rows]]
        rows = rows[np.argsort(events.end_ns[rows] - events.start_ns[rows], kind="stable")]
        windows = zip(events.name[rows], events.start_ns[rows].tolist(), events.end_ns[rows].tolist(), strict=True)
        longest = {_step_number(events.names[name]): (start, end) for name, start, end in windows}
        if longest:
            return _without_overlap(dict(sorted(longest.items(), key=lambda item: item[1][0])))
    return {}


def whole_window(events: Events) -> Steps:
    """The window from the first event to the last end, as one step."""
    start, end = int(events.start_ns.min()), int(events.end_ns.max())
    return {WHOLE_WINDOW: (start, max(end, start + 1))}


def windows_of(steps: Steps) -> np.ndarray:
    """The steps' start and end, int64 [number of steps, 2]: sorted and without overlap, but they may touch."""
    return np.array(list(steps.values()), dtype=np.int64).reshape(-1, 2)


def numbers_of(steps: Steps) -> np.ndarray:
    """The steps' numbers in order of time, int64 [number of steps]."""
    return np.array(list(steps), dtype=np.int64)


def main_thread(events: Events) -> int | None:
    """The thread that trains, as index into `threads`: the one with the steps, else with the most phases, else with the
    most operators."""
    annotated = events.kind == Kind.ANNOTATION
    for prefix in (STEP_PREFIX, ANNOTATION_PREFIX):
        thread = _most_frequent(events.thread[annotated & events.starting_with(prefix)])
        if thread is not None:
            return thread
    return _most_frequent(events.thread[events.kind == Kind.OP])


def training_threads(events: Events) -> np.ndarray:
    """The main thread and those on which the autograd engine runs the backward pass, sorted indices into `threads`."""
    engine = events.thread[(events.kind == Kind.OP) & events.starting_with(AUTOGRAD_PREFIX)]
    main = main_thread(events)
    return np.unique(np.append(engine, [] if main is None else main).astype(np.int32))


def find_phases(events: Events) -> Columns:
    """The phases annotated on the threads that train, in order of time.

    Columns [n]: phase int64 (index into `PHASES`), start_ns and end_ns int64, thread int32 (index into `threads`).

    A phase of another thread (a prefetching sampler) runs beside the step and does not say what the step waits for. The
    autograd engine's threads count only while the main thread is in `backward`, for which they work. An unknown name
    counts as `other`.
    """
    rows = np.flatnonzero((events.kind == Kind.ANNOTATION) & events.starting_with(ANNOTATION_PREFIX))
    codes = {name: _phase_code(events.names[name]) for name in np.unique(events.name[rows])}
    found = {
        "phase": np.array([codes[name] for name in events.name[rows]], dtype=np.int64),
        "start_ns": events.start_ns[rows],
        "end_ns": events.end_ns[rows],
        "thread": events.thread[rows],
    }
    own = found["thread"] == main_thread(events)
    backward = own & (found["phase"] == PHASES.index(Phase.BACKWARD))
    inside = covers(union(spans_of(found["start_ns"][backward], found["end_ns"][backward])), found["start_ns"])
    kept = own | (np.isin(found["thread"], training_threads(events)) & inside)
    return {name: column[kept] for name, column in found.items()}


def unknown_phases(events: Events) -> list[str]:
    """Annotated phases that are none of the study's."""
    names = {name.removeprefix(ANNOTATION_PREFIX) for name in events.names if name.startswith(ANNOTATION_PREFIX)}
    return sorted(names - set(PHASES))


class PhaseTimeline:
    """Which phase a rank was in at any instant: of nested phases, the innermost.

    `pieces` are sorted spans [n, 2] that do not overlap, and `codes` the phase of each, index into `PHASES` [n].
    """

    def __init__(self, phases: Columns) -> None:
        self.pieces, owner = innermost(spans_of(phases["start_ns"], phases["end_ns"]))
        self.codes = phases["phase"][owner]

    def at(self, instants: np.ndarray) -> np.ndarray:
        """Index into `PHASES` for each instant, int64 [k]; `NO_PHASE` outside every phase."""
        result = np.full(len(instants), NO_PHASE, dtype=np.int64)
        if len(self.codes):
            index = index_at(self.pieces, instants)
            inside = index >= 0
            result[inside] = self.codes[index[inside]]
        return result


def _step_number(name: str) -> int | None:
    """The number of the step that an annotation's name states; None where it states none that int64 holds."""
    digits = name.removeprefix(STEP_PREFIX)
    stated = digits != name and digits.isascii() and digits.isdecimal() and len(digits) <= MOST_DIGITS
    return int(digits) if stated else None


def _phase_code(name: str) -> int:
    """Index into `PHASES` of the phase that an annotation's name states, `NO_PHASE` for an unknown one."""
    phase = name.removeprefix(ANNOTATION_PREFIX)
    return PHASES.index(phase) if phase in PHASES else NO_PHASE


def _most_frequent(threads: np.ndarray) -> int | None:
    return int(np.bincount(threads).argmax()) if len(threads) else None


def _without_overlap(steps: Steps) -> Steps:
    """End a step where the next one starts: rounding to microseconds can let one reach a moment into the next."""
    numbers = list(steps)
    following = [steps[number][0] for number in numbers[1:]]
    ends = [min(steps[number][1], start) for number, start in zip(numbers, following, strict=False)]
    ends += [steps[numbers[-1]][1]]
    return {
        number: (steps[number][0], end) for number, end in zip(numbers, ends, strict=True) if end > steps[number][0]
    }

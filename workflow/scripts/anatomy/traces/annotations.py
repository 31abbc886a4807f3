"""Steps and phases of a rank, from the annotations in its trace."""

import numpy as np
import pandas as pd

from anatomy.phases import ANNOTATION_PREFIX, Phase
from anatomy.traces.intervals import EMPTY, covers, innermost, spans_of, union
from anatomy.traces.naming import STEP_PREFIX

WHOLE_WINDOW = 0
"""The step number given to the whole window of a trace that has no steps."""

PHASES: tuple[str, ...] = tuple(phase.value for phase in Phase)
NO_PHASE = PHASES.index(Phase.OTHER)
"""Where a table has a phase as a number, it is the index into `PHASES`; `other` is where no phase is annotated."""

AUTOGRAD_PREFIX = "autograd::engine"


def find_steps(events: pd.DataFrame) -> dict[int, tuple[int, int]]:
    """Start and end in ns of each profiled step, by its number, in order of time; empty where none is annotated.

    The CPU's annotation counts. The profiler repeats it on the GPU's streams; that one is read only where the CPU's is
    missing. Of two annotations of the same step on the CPU (by two threads) the longer one is the step.
    """
    for kind in ("annotation", "gpu annotation"):
        chosen = events[(events["kind"] == kind) & events["name"].str.startswith(STEP_PREFIX)]
        numbers = pd.to_numeric(chosen["name"].str.removeprefix(STEP_PREFIX), errors="coerce")
        chosen = chosen.assign(step=numbers, length_ns=chosen["end_ns"] - chosen["start_ns"])
        chosen = chosen[chosen["step"].notna() & (chosen["length_ns"] > 0)].sort_values("length_ns", kind="stable")
        chosen = chosen.drop_duplicates("step", keep="last").sort_values("start_ns")
        if len(chosen):
            rows = zip(chosen["step"], chosen["start_ns"], chosen["end_ns"], strict=True)
            return _without_overlap({int(step): (int(start), int(end)) for step, start, end in rows})
    return {}


def whole_window(events: pd.DataFrame) -> dict[int, tuple[int, int]]:
    """The window from the first event to the last end, as one step."""
    start, end = int(events["start_ns"].min()), int(events["end_ns"].max())
    return {WHOLE_WINDOW: (start, max(end, start + 1))}


def main_thread(events: pd.DataFrame) -> str | None:
    """The thread that trains: the one with the steps, else with the most phases, else with the most operators."""
    annotated = events[events["kind"] == "annotation"]
    for prefix in (STEP_PREFIX, ANNOTATION_PREFIX):
        threads = annotated.loc[annotated["name"].str.startswith(prefix), "thread"]
        if len(threads):
            return str(threads.value_counts().index[0])
    operators = events.loc[events["kind"] == "op", "thread"]
    return str(operators.value_counts().index[0]) if len(operators) else None


def training_threads(events: pd.DataFrame) -> list[str]:
    """The main thread and those on which the autograd engine runs the backward pass."""
    engine = events.loc[events["name"].str.startswith(AUTOGRAD_PREFIX), "thread"].astype(str).unique()
    main = main_thread(events)
    return sorted({*engine, *([] if main is None else [main])})


def find_phases(events: pd.DataFrame) -> pd.DataFrame:
    """The phases annotated on the threads that train: phase (index into `PHASES`), start_ns, end_ns, thread.

    A phase of another thread (a prefetching sampler) runs beside the step and does not say what the step waits for. The
    autograd engine's threads count only while the main thread is in `backward`, for which they work. An unknown name
    counts as `other`.
    """
    found = events[(events["kind"] == "annotation") & events["name"].str.startswith(ANNOTATION_PREFIX)]
    names = found["name"].str.removeprefix(ANNOTATION_PREFIX)
    phases = pd.DataFrame(
        {
            "phase": names.map({phase: code for code, phase in enumerate(PHASES)}).fillna(NO_PHASE).astype(np.int64),
            "start_ns": found["start_ns"],
            "end_ns": found["end_ns"],
            "thread": found["thread"].astype(str),
        }
    )
    main = main_thread(events)
    own = phases["thread"] == main
    backward = phases[own & (phases["phase"] == PHASES.index(Phase.BACKWARD))]
    inside = covers(union(_spans(backward)), phases["start_ns"].to_numpy())
    engine = phases["thread"].isin(training_threads(events))
    return phases[own | (engine & inside)].reset_index(drop=True)


def unknown_phases(events: pd.DataFrame) -> list[str]:
    """Annotated phases that are none of the study's."""
    names = events.loc[events["name"].str.startswith(ANNOTATION_PREFIX), "name"].str.removeprefix(ANNOTATION_PREFIX)
    return sorted(set(names) - set(PHASES))


class PhaseTimeline:
    """Which phase a rank was in at any instant: of nested phases, the innermost."""

    def __init__(self, phases: pd.DataFrame) -> None:
        self.pieces, owner = innermost(_spans(phases))
        self.codes = phases["phase"].to_numpy()[owner] if len(owner) else np.empty(0, dtype=np.int64)

    def at(self, instants: np.ndarray) -> np.ndarray:
        """Index into `PHASES` for each instant [k]; `NO_PHASE` outside every phase."""
        if len(self.pieces) == 0:
            return np.full(len(instants), NO_PHASE, dtype=np.int64)
        index = np.searchsorted(self.pieces[:, 0], instants, side="right") - 1
        inside = (index >= 0) & (instants < self.pieces[index, 1])
        return np.where(inside, self.codes[index], NO_PHASE)


def _spans(frame: pd.DataFrame) -> np.ndarray:
    return spans_of(frame["start_ns"], frame["end_ns"]) if len(frame) else EMPTY


def _without_overlap(steps: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """End a step where the next one starts: rounding to microseconds can let one reach a moment into the next."""
    numbers = list(steps)
    following = [steps[number][0] for number in numbers[1:]]
    ends = [min(steps[number][1], start) for number, start in zip(numbers, following, strict=False)]
    ends += [steps[numbers[-1]][1]]
    return {
        number: (steps[number][0], end) for number, end in zip(numbers, ends, strict=True) if end > steps[number][0]
    }

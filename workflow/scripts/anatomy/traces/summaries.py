"""Sums of a rank's pieces: by step, by phase, and merged into intervals."""

import numpy as np
import pandas as pd

from anatomy.phases import PREPARATION, Phase
from anatomy.traces.annotations import NO_PHASE, PHASES, PhaseTimeline
from anatomy.traces.communication import WORK_PREFIXES, is_work
from anatomy.traces.decomposition import (
    CATEGORIES,
    COMMUNICATION,
    COMPUTE,
    IDLE,
    OTHER,
    PHASE_CATEGORY,
    PREPARING,
    TRANSFERRING,
    UNKNOWN,
    WAITING,
)
from anatomy.traces.intervals import index_at, spans_of, union
from anatomy.traces.naming import is_transfer
from anatomy.traces.reading import GPU_KINDS, by_name

WHOLE_RANK = "rank"
"""The stream of intervals that stand for the rank as a whole."""


def step_table(pieces: pd.DataFrame, communicates: bool) -> pd.DataFrame:
    """One row per step of one rank, with the columns of `steps` but rank.

    `communicates` says whether the rank communicates at all: where not, communication is missing rather than 0.
    """
    groups = pieces.groupby("step", sort=True)
    result = _sums(pieces, ["step"], communicates)
    result.insert(0, "start_ns", groups["start_ns"].min())
    result.insert(1, "wall_ns", groups["end_ns"].max() - result["start_ns"])
    return result.reset_index()


def phase_table(pieces: pd.DataFrame, communicates: bool, annotated: pd.DataFrame) -> pd.DataFrame:
    """One row per step and phase that occurs in the rank, with the columns of `phases` but rank and their order.

    `annotated` has one row per annotation within the steps: step and phase.
    """
    result = _sums(pieces, ["step", "phase"], communicates)
    names = {name: name.replace("_exposed", "") for name in result.columns}
    result = result.rename(columns=names | {"comm_exposed_ns": "comm_ns"})
    calls = annotated.groupby(["step", "phase"]).size()
    every = pd.MultiIndex.from_product(
        [pieces["step"].unique(), sorted({*pieces["phase"], *annotated["phase"]})], names=["step", "phase"]
    )
    absent = every.difference(result.index)
    result = result.reindex(every)
    result.loc[absent] = 0
    if not communicates:
        _forget(result, [name for name in result if name.startswith("comm_")])
    result["calls"] = calls.reindex(every, fill_value=0)
    result["total_ns"] = _lengths(pieces).groupby([pieces["step"], pieces["phase"]]).sum().reindex(every, fill_value=0)
    result = result.reset_index()
    return result.assign(phase=np.array(PHASES, dtype=object)[result["phase"]])


def interval_table(pieces: pd.DataFrame) -> pd.DataFrame:
    """The pieces of a rank, neighbours of the same step, category and phase merged."""
    keys = pieces[["step", "category", "phase"]].to_numpy()
    first = np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]).any(axis=1)))
    last = np.append(first[1:], len(pieces)) - 1
    return pd.DataFrame(
        {
            "step": pieces["step"].to_numpy()[first],
            "start_ns": pieces["start_ns"].to_numpy()[first],
            "end_ns": pieces["end_ns"].to_numpy()[last],
            "category": np.array(CATEGORIES, dtype=object)[pieces["category"].to_numpy()[first]],
            "phase": np.array(PHASES, dtype=object)[pieces["phase"].to_numpy()[first]],
            "stream": WHOLE_RANK,
        }
    )


def stream_table(events: pd.DataFrame, steps: dict[int, tuple[int, int]], timeline: PhaseTimeline) -> pd.DataFrame:
    """What each GPU stream did, and when each CPU thread communicated, by category and phase, united and cut at
    steps."""
    work, on_gpu = is_work(events), events["kind"].isin(GPU_KINDS).to_numpy()
    shown = events[work | on_gpu]
    copies = (shown["kind"] == "memcpy").to_numpy() & by_name(shown, is_transfer)
    phase = timeline.at(shown["launched_ns"].to_numpy())
    phase = np.where(copies & (phase == NO_PHASE), PHASES.index(Phase.COPY), phase)
    category = np.where(work[work | on_gpu], COMMUNICATION, PHASE_CATEGORY[phase])
    threads = "cpu thread " + shown["thread"].astype(str).str.split("/").str[-1]
    stream = np.where(shown["name"].str.startswith(WORK_PREFIXES), threads, "gpu stream " + shown["stream"].astype(str))
    parts = []
    for (name, code, index), rows in shown.groupby([stream, category, phase], sort=True):
        for step, (start, end) in steps.items():
            spans = union(np.clip(spans_of(rows["start_ns"], rows["end_ns"]), start, end))
            parts.append(
                pd.DataFrame(
                    {
                        "step": step,
                        "start_ns": spans[:, 0],
                        "end_ns": spans[:, 1],
                        "category": CATEGORIES[code],
                        "phase": PHASES[index],
                        "stream": name,
                    }
                )
            )
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def annotations_within(phases: pd.DataFrame, steps: dict[int, tuple[int, int]]) -> pd.DataFrame:
    """Step and phase of the annotations that start within a step."""
    windows = np.array(list(steps.values()), dtype=np.int64).reshape(-1, 2)
    index = index_at(windows, phases["start_ns"].to_numpy())
    inside = index >= 0
    numbers = np.array(list(steps), dtype=np.int64)[index[inside]]
    return pd.DataFrame({"step": numbers, "phase": phases["phase"].to_numpy()[inside]})


def _sums(pieces: pd.DataFrame, keys: list[str], communicates: bool) -> pd.DataFrame:
    """Time in ns by category, indexed by `keys`, nullable integers."""
    category, state, length = pieces["category"], pieces["state"], _lengths(pieces)
    exposed = category == COMMUNICATION
    parts = {
        "compute_ns": category == COMPUTE,
        "comm_exposed_ns": exposed,
        "comm_exposed_wait_ns": exposed & (state == WAITING),
        "comm_exposed_transfer_ns": exposed & (state == TRANSFERRING),
        "comm_overlapped_ns": pieces["overlapped"],
        "preparation_ns": category == PREPARING,
        **{
            f"prep_{phase}_ns": (category == PREPARING) & (pieces["phase"] == PHASES.index(phase))
            for phase in PREPARATION
        },
        "idle_ns": category == IDLE,
        "other_ns": category == OTHER,
        "unknown": exposed & (state == UNKNOWN),
    }
    lengths = pd.DataFrame({name: length.where(chosen, 0) for name, chosen in parts.items()})
    sums = lengths.groupby([pieces[key] for key in keys], sort=True).sum().astype("Int64")
    split = ["comm_exposed_wait_ns", "comm_exposed_transfer_ns"]
    sums.loc[sums.pop("unknown") > 0, split] = pd.NA
    if not communicates:
        _forget(sums, ["comm_exposed_ns", "comm_overlapped_ns", *split])
    return sums


def _forget(frame: pd.DataFrame, columns: list[str]) -> None:
    """Make columns missing, and keep them integers."""
    for column in columns:
        frame[column] = pd.array([pd.NA] * len(frame), dtype="Int64")


def _lengths(pieces: pd.DataFrame) -> pd.Series:
    return pieces["end_ns"] - pieces["start_ns"]

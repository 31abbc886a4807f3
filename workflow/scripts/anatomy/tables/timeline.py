"""What every rank did during one step, and which of it determined how long the step took."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import NANOSECONDS_PER_S, Study, StudyRun, without_traces

SUMMARY = (
    "one profiled step of each run, the one of median length over all ranks: what each rank did, and the critical path "
    "through the ranks. Profiled steps are longer than timed ones"
)
INPUTS = ("traces",)
OPTIONS = {"properties": {}, "required": []}
MOST_INTERVALS = 500
"""Of one rank; more than that nobody can tell apart in a figure."""
MOST_ELEMENTS = 2000
"""Of a path, unless more of it are transfers."""
KEY = ("run", "kind", "rank", "place")
COLUMNS = RUN_COLUMNS | {
    "kind": Column(
        "string",
        "",
        "`interval`: what the rank did, without gap or overlap; `path`: an element of the critical path, the chain of "
        "work and collectives across ranks that determined when the step ended",
    ),
    "rank": Column("Int64", "", "rank; of a transfer on the path, the one that goes on from there"),
    "place": Column("Int64", "", "place in the order of time: of the rank's intervals, or of the path's elements"),
    "step": Column(
        "Int64",
        "",
        "number of the step: of the profiled steps, ordered by their length from the first rank's start to the last "
        "rank's end and then by number, the middle one, and of two the shorter",
    ),
    "num_steps": Column("Int64", "", "profiled steps that it is chosen from"),
    "annotated": Column("boolean", "", "whether the trace marks the step; else it is the whole window of the trace"),
    "category": Column("string", "", "compute, communication, preparation, copy, idle, other"),
    "phase": Column("string", "", "phase in which the rank was; `other` is outside of every phase"),
    "collective": Column("Int64", "", "of a transfer on the path, the collective's number in the trace tables"),
    "start_s": Column("Float64", "s", "start, from the first rank's start of the step, clocks of the ranks corrected"),
    "end_s": Column("Float64", "s", "end, likewise"),
    "length_s": Column("Float64", "s", "end_s - start_s"),
    "slack_s": Column(
        "Float64",
        "s",
        "of an element of the path: by how much it would have to shrink before another path takes over, which is what "
        "the step would gain without it; missing where elements are merged",
    ),
    "merged": Column(
        "boolean",
        "",
        "whether times are coarser than in the trace: of more than 500 intervals of a rank, each of 500 equal slices "
        "of its step shows what fills most of it; of more than 2000 elements of the path, those that are work on one "
        "rank and begin in the same one of 2000 slices are one, named by the longest. Neighbours of one category and "
        "phase are always one",
    ),
}
_WORK = ["category", "phase"]


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per interval and per element of the path; a run that failed or was not profiled is one row."""
    parts = [as_frame([], COLUMNS)]
    for run in study.runs:
        rows = without_traces(run)
        parts += [as_frame(rows, COLUMNS)] if rows else _step(run)
    return pd.concat(parts, ignore_index=True)


def _step(run: StudyRun) -> list[pd.DataFrame]:
    """The rows of each rank, and those of the path."""
    offsets = run.trace_table("clocks", ["rank", "offset_ns"]).set_index("rank")["offset_ns"].fillna(0).to_dict()
    steps = _on_one_clock(run.trace_table("steps", ["rank", "step", "annotated", "start_ns", "wall_ns"]), offsets)
    steps["end"] = steps["start"] + steps["wall_ns"]
    spans = steps.groupby("step").agg(start=("start", "min"), end=("end", "max"), annotated=("annotated", "all"))
    spans["length"] = spans["end"] - spans["start"]
    ordered = spans.reset_index().sort_values(["length", "step"], ignore_index=True)
    chosen = ordered.loc[(len(ordered) - 1) // 2]

    names = ["rank", "step", "start_ns", "end_ns", "category", "phase", "stream"]
    intervals = run.trace_table("intervals", names)
    intervals = intervals[(intervals["step"] == chosen["step"]) & (intervals["stream"] == "rank")]
    intervals = _on_one_clock(intervals, offsets).sort_values(["rank", "start"])
    names = ["step", "place", "rank", "category", "phase", "collective", "start_ns", "end_ns", "slack_to_next_ns"]
    path = run.trace_table("critical_path", names)
    path = _on_one_clock(path[path["step"] == chosen["step"]], {}).sort_values("place")

    facts = {"step": chosen["step"], "num_steps": len(spans), "annotated": chosen["annotated"]}
    parts = [_rank(part, MOST_INTERVALS) for _, part in intervals.groupby("rank")]
    parts.append(_path(path, MOST_ELEMENTS, int(chosen["length"])))
    timed = [_in_seconds(part, int(chosen["start"])) for part in parts]
    return [as_frame(part.assign(**facts, **run.columns), COLUMNS) for part in timed]


def _on_one_clock(rows: pd.DataFrame, offsets: Mapping[int, int]) -> pd.DataFrame:
    """`rows` with `start` and, where they have an end, `end`: int64, the rank's offset taken from its own times."""
    shift = np.array([offsets.get(rank, 0) for rank in rows["rank"].tolist()], dtype=np.int64)
    names = [name for name in ("start", "end") if f"{name}_ns" in rows]
    return rows.assign(**{name: rows[f"{name}_ns"].to_numpy(dtype=np.int64) - shift for name in names})


def _in_seconds(rows: pd.DataFrame, origin: int) -> pd.DataFrame:
    times = {"start": rows["start"] - origin, "end": rows["end"] - origin, "length": rows["end"] - rows["start"]}
    if "slack_to_next_ns" in rows:
        times["slack"] = rows["slack_to_next_ns"]
    return rows.assign(**{f"{name}_s": values.astype("Float64") / NANOSECONDS_PER_S for name, values in times.items()})


def _rank(intervals: pd.DataFrame, most: int) -> pd.DataFrame:
    """The intervals of one rank, at most `most` of them."""
    intervals = _united(intervals[["rank", *_WORK, "start", "end"]])
    merged = len(intervals) > most
    if merged:
        intervals = _united(_slices(intervals, most))
    return intervals.assign(kind="interval", place=np.arange(len(intervals)), merged=merged)


def _united(intervals: pd.DataFrame) -> pd.DataFrame:
    """Neighbours of one category and phase as one."""
    begins = (intervals[_WORK] != intervals[_WORK].shift()).any(axis=1).to_numpy(dtype=bool)
    begins[1:] |= intervals["start"].to_numpy()[1:] != intervals["end"].to_numpy()[:-1]
    groups = intervals.groupby(np.cumsum(begins))
    return groups.agg({"rank": "first", "category": "first", "phase": "first", "start": "first", "end": "last"})


def _slices(intervals: pd.DataFrame, count: int) -> pd.DataFrame:
    """Time in `count` equal slices, each with the category and phase that fill most of it.

    start  end  category  phase              start  end  category  phase
        0    7  compute   backward               0   10  compute   backward
        7   10  idle      other       ->        10   20  idle      other
       10   20  idle      other
    """
    start, end = intervals["start"].to_numpy(dtype=np.int64), intervals["end"].to_numpy(dtype=np.int64)
    edges = start[0] + (end[-1] - start[0]) * np.arange(count + 1) // count
    bounds = np.unique(np.concatenate([start, end, edges]))
    owner = np.searchsorted(start, bounds[:-1], side="right") - 1
    place = np.searchsorted(edges, bounds[:-1], side="right") - 1
    pieces = intervals[_WORK].iloc[owner].assign(place=place, lasts=np.diff(bounds))
    filled = pieces.groupby(["place", *_WORK], sort=True)["lasts"].sum().reset_index()
    most = filled.sort_values(["place", "lasts"], ascending=[True, False], kind="stable").drop_duplicates("place")
    place = most["place"].to_numpy()
    return most[_WORK].assign(rank=intervals["rank"].iloc[0], start=edges[place], end=edges[place + 1])


def _path(path: pd.DataFrame, most: int, length: int) -> pd.DataFrame:
    """The critical path; where it has more than `most` elements, short ones of one rank are put together."""
    columns = ["rank", *_WORK, "collective", "start", "end", "slack_to_next_ns"]
    merged = len(path) > most
    if merged:
        work = path["collective"].isna().to_numpy(dtype=bool)
        place = ((path["start"] - path["start"].min()) * most // max(length, 1)).to_numpy()
        rank = path["rank"].to_numpy()
        goes_on = work[1:] & work[:-1] & (rank[1:] == rank[:-1]) & (place[1:] == place[:-1])
        group = np.cumsum(np.append(True, ~goes_on))
        longest = (path["end"] - path["start"]).groupby(group).idxmax()
        groups = path.groupby(group)
        sizes = groups.size().to_numpy()
        path = path.loc[longest].assign(start=groups["start"].first().to_numpy(), end=groups["end"].last().to_numpy())
        path["slack_to_next_ns"] = path["slack_to_next_ns"].mask(sizes > 1)
    return path[columns].assign(kind="path", place=np.arange(len(path)), merged=merged)

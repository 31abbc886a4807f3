"""What each kind of collective costs: bytes, waiting, transfer, bandwidth."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import NANOSECONDS_PER_S, Study, StudyRun, without_traces

SUMMARY = (
    "collectives by phase, kind and process group, hidden by computation or not: how many, how large, how long ranks "
    "wait in them for later ones, how long the transfer itself takes, and how much could not be matched across ranks"
)
INPUTS = ("traces",)
OPTIONS = {"properties": {}, "required": []}
KEY = ("run", "phase", "kind", "group")
COLUMNS = RUN_COLUMNS | {
    "phase": Column("string", "", "phase in which they are launched; `other` is outside of every phase"),
    "kind": Column("string", "", "all_reduce, all_to_all, all_to_all_v, all_gather, …, send_recv, barrier, or other"),
    "group": Column("string", "", "process group; `default` where the trace names none"),
    "group_size": Column("Int64", "", "ranks in the group; missing where the trace does not say"),
    "calls_per_step": Column(
        "Float64", "", "of one rank: mean over the ranks that take part, and over all profiled steps of the run"
    ),
    "bytes_per_call": Column(
        "Float64",
        "B",
        "larger of what goes in and what comes out on a rank: mean over calls; missing where a call's is not known",
    ),
    "wait_s_per_call": Column(
        "Float64", "s", "from a rank's arrival to the last rank's: mean over ranks and calls that are matched"
    ),
    "transfer_s_per_call": Column(
        "Float64", "s", "from the last rank's arrival to the end: mean over ranks and calls that are matched"
    ),
    "wait_share": Column("Float64", "", "of the time in matched calls, what is waiting"),
    "bus_bandwidth_bytes_per_s": Column(
        "Float64",
        "B/s",
        "as NCCL's tests define it: median over ranks and calls whose size is known; without waiting where calls are "
        "matched, else with it, so that it is a lower bound",
    ),
    "unmatched_share": Column("Float64", "", "of the calls, those that could not be matched across ranks"),
}


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run, phase, kind and group; a run without any communication is one row without numbers."""
    rows: list[dict[str, Any]] = []
    for run in study.runs:
        rows += without_traces(run) or list(_kinds(run)) or [run.columns]
    return as_frame(rows, COLUMNS)


def _kinds(run: StudyRun) -> Iterator[dict[str, Any]]:
    num_steps = run.trace_table("steps", ["step"])["step"].nunique()
    needed = [*KEY[1:], "rank", "group_size", "bytes", "wait_ns", "transfer_ns", "matched", "bus_bandwidth"]
    for place, calls in run.trace_table("collectives", needed).groupby(list(KEY[1:]), dropna=False):
        sizes = calls["group_size"].dropna().unique()
        row = dict(zip(KEY[1:], place, strict=True))
        row["group_size"] = sizes[0] if len(sizes) == 1 else None
        row["calls_per_step"] = len(calls) / calls["rank"].nunique() / num_steps
        row["bytes_per_call"] = calls["bytes"].mean(skipna=False)
        if calls["bus_bandwidth"].notna().any():
            row["bus_bandwidth_bytes_per_s"] = calls["bus_bandwidth"].median()
        row["unmatched_share"] = 1 - calls["matched"].mean()
        yield run.columns | row | _split(calls[calls["matched"]])


def _split(matched: pd.DataFrame) -> dict[str, Any]:
    """Waiting and transfer of calls that are matched across ranks."""
    if matched.empty:
        return {}
    wait_ns, transfer_ns = matched["wait_ns"].sum(), matched["transfer_ns"].sum()
    return {
        "wait_s_per_call": wait_ns / len(matched) / NANOSECONDS_PER_S,
        "transfer_s_per_call": transfer_ns / len(matched) / NANOSECONDS_PER_S,
        "wait_share": wait_ns / (wait_ns + transfer_ns) if wait_ns + transfer_ns else None,
    }

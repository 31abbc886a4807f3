"""Where the time of a step goes, by phase."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from anatomy.errors import StudyError
from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import NANOSECONDS_PER_S, Study, StudyRun, without_traces

SUMMARY = (
    "mean wall time of a profiled step by group and phase; the rows of a run add up to its step. Profiled times "
    "are longer than timed ones: read shares, and take epoch times from the other tables"
)
INPUTS = ("traces",)
OPTIONS = {"properties": {}, "required": []}
KEY = ("run", "group", "phase")
GROUPS = {
    "preparation": "preparation_ns",
    "compute": "compute_ns",
    "communication": "comm_ns",
    "copy": "copy_ns",
    "idle": "idle_ns",
    "other": "other_ns",
}
"""What a rank can be doing in a phase, and the columns of the trace table that say for how long."""
COLUMNS = RUN_COLUMNS | {
    "phase": Column("string", "", "phase in which the rank was; `other` is outside of every phase"),
    "group": Column(
        "string",
        "",
        "what it did there: preparation, compute, exposed communication (waiting for other ranks in), copy (between "
        "host and device, outside of preparation), idle, or other; with the phase it makes the row: `fetch` has one "
        "row for packing features (preparation) and one for their transfer (communication)",
    ),
    "seconds_per_step": Column(
        "Float64", "s", "wall time per profiled step: mean over ranks and steps; profiler's warm-up out"
    ),
    "share": Column("Float64", "", "of the mean step's wall time; the rows of a run sum to 1"),
    "wait_share": Column(
        "Float64",
        "",
        "of communication: the share of it until the last rank had arrived; missing where some of it could not be "
        "matched across ranks, and for the other groups",
    ),
}


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run, group and phase; a run that failed or was not profiled is one row without numbers."""
    rows: list[dict[str, Any]] = []
    for run in study.runs:
        rows += without_traces(run) or _phases(run)
    return as_frame(rows, COLUMNS)


def _phases(run: StudyRun) -> Iterator[dict[str, Any]]:
    steps = run.trace_table("steps", ["rank", "step", "wall_ns"])
    phases = run.trace_table("phases", ["phase", *GROUPS.values(), "comm_wait_ns"])
    spent = phases.groupby("phase")[list(GROUPS.values())].sum()
    wait_share = _wait_shares(phases)
    found_ns, wall_ns = int(spent.sum().sum()), int(steps["wall_ns"].sum())
    if found_ns != wall_ns:
        raise StudyError(
            f"{run.results / 'traces' / run.name}: phases add up to {found_ns} ns, steps to {wall_ns} ns; expected the "
            "same; parse the traces again"
        )
    for group, column in GROUPS.items():
        for phase, spent_ns in spent.loc[spent[column] > 0, column].items():
            seconds = spent_ns / len(steps) / NANOSECONDS_PER_S
            numbers = {"seconds_per_step": seconds, "share": spent_ns / wall_ns}
            if group == "communication":
                numbers["wait_share"] = wait_share.get(phase)
            yield run.columns | {"phase": phase, "group": group} | numbers


def _wait_shares(phases: pd.DataFrame) -> pd.Series:
    """Share of waiting in the communication of each phase in which all of it is known."""
    communicating = phases[phases["comm_ns"].fillna(0) > 0]
    known = communicating.groupby("phase").filter(lambda phase: phase["comm_wait_ns"].notna().all())
    sums = known.groupby("phase")[["comm_wait_ns", "comm_ns"]].sum()
    return sums["comm_wait_ns"] / sums["comm_ns"]

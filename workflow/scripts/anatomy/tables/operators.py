"""Which kinds of operators a rank's time goes into."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import NANOSECONDS_PER_S, Study, StudyRun, without_traces

SUMMARY = (
    "time in operators and GPU kernels by category, and the share that no rule classifies; summed over threads and "
    "streams, so that what overlaps counts twice: read shares, and take times of a step from the table `phases`"
)
INPUTS = ("traces",)
OPTIONS = {"properties": {}, "required": []}
KEY = ("run", "device", "category")
COLUMNS = RUN_COLUMNS | {
    "device": Column("string", "", "where it runs: cpu (operators) or cuda (kernels and copies)"),
    "category": Column(
        "string",
        "",
        "kind: sparse, sampling, dense, elementwise, reduction, copy, communication, or unclassified by every rule",
    ),
    "calls_per_step": Column("Float64", "", "how often they start: mean over ranks and profiled steps"),
    "self_s_per_step": Column(
        "Float64", "s", "time in them and not in operators that they call: mean over ranks and profiled steps"
    ),
    "share": Column("Float64", "", "of the time in all operators of the device; the rows of a run and device sum to 1"),
    "largest": Column("string", "", "name of the operator or kernel of this category that takes most time"),
    "largest_share": Column("Float64", "", "its part of the category's time"),
}


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run, device and category; a run without operators is one row without numbers."""
    rows: list[dict[str, Any]] = []
    for run in study.runs:
        rows += without_traces(run) or list(_categories(run)) or [run.columns]
    return as_frame(rows, COLUMNS)


def _categories(run: StudyRun) -> Iterator[dict[str, Any]]:
    steps = len(run.trace_table("steps", ["rank", "step"]))
    columns = ["device", "category", "name", "calls", "self_ns"]
    names = run.trace_table("operators", columns).groupby(columns[:3])[columns[3:]].sum().reset_index()
    total_ns = names.groupby("device")["self_ns"].sum()
    for (device, category), of_category in names.groupby(["device", "category"]):
        self_ns, largest = int(of_category["self_ns"].sum()), of_category.loc[of_category["self_ns"].idxmax()]
        yield run.columns | {
            "device": device,
            "category": category,
            "calls_per_step": of_category["calls"].sum() / steps,
            "self_s_per_step": self_ns / steps / NANOSECONDS_PER_S,
            "share": self_ns / total_ns[device] if total_ns[device] else None,
            "largest": largest["name"],
            "largest_share": largest["self_ns"] / self_ns if self_ns else None,
        }

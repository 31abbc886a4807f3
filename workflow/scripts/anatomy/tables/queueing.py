"""How well each GPU is kept busy: kernels, launch delays, and why it computes nothing."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import NANOSECONDS_PER_S, Study, StudyRun, without_traces

SUMMARY = (
    "kernels of each rank's GPU, how long they wait between launch and start, and the time in which it computes "
    "nothing, by cause; traces without a GPU have one row that says so"
)
INPUTS = ("traces",)
OPTIONS = {"properties": {}, "required": []}
KEY = ("run", "rank")
NO_GPU = "no GPU"
CAUSES = {
    "not_computing": "time in which the GPU computes nothing; the following sum to it",
    "communication_bound": "of it: communication is running",
    "copy_bound": "of it: else a copy between host and device is running",
    "synchronisation": "of it: the next work is not launched since the host waits for the GPU",
    "host_bound": "of it: the next work is not launched since the host does something else",
    "launched": "of it: the next work is launched and has not started",
    "unknown": "of it: the trace does not say when the next work was launched",
}
"""Why a GPU computes nothing, as the trace table `idle` names it."""
COLUMNS = (
    RUN_COLUMNS
    | {
        "rank": Column("Int64", "", "rank"),
        "kernels_per_step": Column("Float64", "", "kernels without communication, all streams: mean over steps"),
        "kernel_s": Column("Float64", "s", "duration of such a kernel: mean"),
        "short_kernel_share": Column(
            "Float64", "", "of them, those shorter than 10 us, which take no longer than their launch"
        ),
        "delay_s": Column(
            "Float64", "s", "from the launching call to the kernel's start: mean over kernels whose launch is known"
        ),
        "delay_p95_s": Column(
            "Float64", "s", "the same: 95th percentile of a step and stream, the largest over steps and streams"
        ),
    }
    | {
        f"{cause}_s_per_step": Column("Float64", "s", f"{meaning}: mean over profiled steps")
        for cause, meaning in CAUSES.items()
    }
)


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run and rank; a run without traces or without a GPU is one row without numbers."""
    rows: list[dict[str, Any]] = []
    for run in study.runs:
        rows += without_traces(run) or list(_ranks(run)) or [run.columns | {"status": NO_GPU}]
    return as_frame(rows, COLUMNS)


def _ranks(run: StudyRun) -> Iterator[dict[str, Any]]:
    steps = run.trace_table("steps", ["rank", "step"]).groupby("rank").size()
    sums = ["kernels", "kernel_ns", "short_kernels", "launched"]
    streams = run.trace_table("queueing", ["rank", *sums, "delay_mean_ns", "delay_p95_ns"])
    idle = run.trace_table("idle", ["rank", *(f"{cause}_ns" for cause in CAUSES)])
    for rank, num_steps in steps.items():
        own, spent = streams[streams["rank"] == rank], idle[idle["rank"] == rank]
        if own.empty and spent.empty:
            continue
        row = {"rank": rank, "kernels_per_step": own["kernels"].sum() / num_steps} | _lengths(own)
        for cause in CAUSES:
            row[f"{cause}_s_per_step"] = spent[f"{cause}_ns"].sum(min_count=1) / num_steps / NANOSECONDS_PER_S
        yield run.columns | row


def _lengths(streams: pd.DataFrame) -> dict[str, Any]:
    """Mean duration and delay of a rank's kernels; missing where it has none."""
    row: dict[str, Any] = {}
    kernels, launched = streams["kernels"].sum(), streams["launched"].sum()
    if kernels:
        row["kernel_s"] = streams["kernel_ns"].sum() / kernels / NANOSECONDS_PER_S
        row["short_kernel_share"] = streams["short_kernels"].sum() / kernels
    if launched:
        # A mean for each step and stream, weighted by what it is a mean of, is the mean of all.
        row["delay_s"] = (streams["delay_mean_ns"] * streams["launched"]).sum() / launched / NANOSECONDS_PER_S
        row["delay_p95_s"] = streams["delay_p95_ns"].max() / NANOSECONDS_PER_S
    return row

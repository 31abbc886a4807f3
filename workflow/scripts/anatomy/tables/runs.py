"""Every run at a glance, and what profiling it cost."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import NANOSECONDS_PER_S, Study, StudyRun, without_traces
from anatomy.tables.common.timing import epoch_seconds, throughput

SUMMARY = "every run: how it ended, its speed, its accuracy, its memory, and how much longer a profiled step takes"
INPUTS = ("traces",)
OPTIONS = {"properties": {}, "required": []}
KEY = ("run",)
COLUMNS = RUN_COLUMNS | {
    "reason": Column("string", "", "for a run that did not complete: why"),
    "epochs": Column("Int64", "", "epochs trained, warm-up in"),
    "resumptions": Column(
        "Int64",
        "",
        "times that the run was interrupted and went on from a checkpoint; where it did, there are no times, since an "
        "interrupted measurement is repeated, never put together from pieces",
    ),
    "epoch_s": Column(
        "Float64", "s", "wall time of an epoch: median over epochs, warm-up out, of the slowest rank's; evaluation out"
    ),
    "train_nodes_per_s": Column(
        "Float64",
        "nodes/s",
        "seed nodes per second: sum over ranks over the slowest rank's time; median over epochs, warm-up out",
    ),
    "final_loss": Column("Float64", "", "mean loss in the last epoch"),
    "final_val_accuracy": Column("Float64", "", "accuracy on the validation nodes after the last epoch"),
    "final_test_accuracy": Column("Float64", "", "accuracy on the test nodes after the last epoch"),
    "peak_memory_bytes": Column(
        "Int64", "B", "largest resident memory of a rank's process, evaluation in: max over ranks"
    ),
    "timed_step_s": Column(
        "Float64",
        "s",
        "wall time of a step without profiler: a rank's epoch over its steps, of the rank where that is longest; "
        "median over epochs, warm-up out",
    ),
    "profiled_step_s": Column(
        "Float64", "s", "wall time of a step under the profiler: median over its steps of the slowest rank's"
    ),
    "profiling_cost": Column(
        "Float64", "", "profiled_step_s / timed_step_s; why profiled times are never given as epoch times"
    ),
}


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run."""
    return as_frame([_row(run) for run in study.runs], COLUMNS)


def _row(run: StudyRun) -> dict[str, Any]:
    if run.recorded:
        return run.columns | {"profiled_step_s": _profiled_step_seconds(run)}
    row = run.columns | {"reason": run.metrics.get("reason")}
    if not run.completed:
        return row
    timed_step_s, profiled_step_s = _timed_step_seconds(run), _profiled_step_seconds(run)
    final = run.metrics["final"]
    return row | {
        "epochs": run.epochs["epoch"].nunique(),
        "resumptions": run.resumptions,
        "epoch_s": epoch_seconds(run),
        "train_nodes_per_s": throughput(run),
        "final_loss": final["loss"],
        "final_val_accuracy": final["val_accuracy"],
        "final_test_accuracy": final["test_accuracy"],
        "peak_memory_bytes": run.epochs["peak_memory_bytes"].max(),
        "timed_step_s": timed_step_s,
        "profiled_step_s": profiled_step_s,
        "profiling_cost": None if None in (timed_step_s, profiled_step_s) else profiled_step_s / timed_step_s,
    }


def _timed_step_seconds(run: StudyRun) -> float | None:
    epochs = run.timed_epochs[run.timed_epochs["steps"] > 0]
    step_s = (epochs["wall_s"] / epochs["steps"]).groupby(epochs["epoch"]).max()
    return None if step_s.empty else float(step_s.median())


def _profiled_step_seconds(run: StudyRun) -> float | None:
    if without_traces(run):
        return None
    steps = run.trace_table("steps", ["rank", "step", "wall_ns"])
    slowest = steps.groupby("step")["wall_ns"].max()
    return None if slowest.empty else float(slowest.median()) / NANOSECONDS_PER_S

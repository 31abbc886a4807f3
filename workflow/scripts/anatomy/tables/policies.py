"""What each policy of gradients gains and costs beside one dense all-reduce per step of the same strategy."""

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.phases import Phase
from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import NANOSECONDS_PER_S, Study, StudyRun, without_traces
from anatomy.tables.common.timing import epoch_seconds
from anatomy.tables.common.traffic import exposure
from anatomy.training.options import gradient_policy

SUMMARY = (
    "every run beside the run with one dense all-reduce per step of the same strategy, graph, partitioner, model, "
    "ranks and seed (the baseline): time in synchronisation, epoch time, bytes and accuracy"
)
INPUTS = ("traces",)
OPTIONS = {"properties": {}, "required": []}
KEY = ("run",)
BASELINE = "dense"
COLUMNS = RUN_COLUMNS | {
    "policy": Column("string", "", "policy of gradients, `dense` where none is named; missing for traces alone"),
    "bucket_mb": Column("Float64", "MB", "size at which a bucket is sent; missing for policies without"),
    "baseline_run": Column(
        "string", "", "run of the baseline that this one is compared with; missing where there is none that completed"
    ),
    "epoch_s": Column(
        "Float64", "s", "wall time of an epoch: median over epochs, warm-up out, of the slowest rank's; evaluation out"
    ),
    "epoch_ratio": Column("Float64", "", "epoch_s over the baseline's"),
    "profiled_step_s": Column(
        "Float64", "s", "wall time of a profiled step: mean over ranks and steps; profiler's warm-up out"
    ),
    "sync_s_per_step": Column(
        "Float64",
        "s",
        "of it, time that the training thread spends on synchronising gradients, waiting in: what is sent meanwhile is "
        "exposed; what is on its way at other times is not in it",
    ),
    "sync_share": Column("Float64", "", "sync_s_per_step / profiled_step_s"),
    "sync_ratio": Column("Float64", "", "sync_s_per_step over the baseline's"),
    "hidden_s_per_step": Column(
        "Float64", "s", "communication of any kind in a profiled step while something is computed; missing without any"
    ),
    "sent_weights_bytes_per_epoch": Column(
        "Float64", "B", "sent to synchronise gradients: sum over ranks, mean over epochs, warm-up and evaluation out"
    ),
    "sent_ratio": Column("Float64", "", "sent_weights_bytes_per_epoch over the baseline's"),
    "val_accuracy": Column("Float64", "", "accuracy on the validation nodes after the last epoch"),
    "accuracy_lost": Column("Float64", "", "the baseline's val_accuracy less this one's, after as many epochs"),
}


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run; what needs a baseline is missing where there is none."""
    baselines = {_compared_by(run): run for run in study.runs if _is_baseline(run)}
    return as_frame([_row(run, baselines) for run in study.runs], COLUMNS)


def _is_baseline(run: StudyRun) -> bool:
    return not run.recorded and run.completed and gradient_policy(run.spec["strategy"])[0] == BASELINE


def _compared_by(run: StudyRun) -> str:
    """What a run and its baseline have in common: all but the policy and the names."""
    names = ("graph", "partitioner", "model", "ranks", "hosts", "link_mbit", "seed", "platform")
    strategy = {key: value for key, value in run.spec["strategy"].items() if key not in ("name", "gradients")}
    return json.dumps([*(run.columns.get(name) for name in names), strategy], sort_keys=True, default=str)


def _row(run: StudyRun, baselines: Mapping[str, StudyRun]) -> dict[str, Any]:
    if run.recorded:
        return run.columns | ({} if without_traces(run) else _synchronisation(run))
    policy, chosen = gradient_policy(run.spec["strategy"])
    row = run.columns | {"policy": policy, "bucket_mb": chosen.get("bucket_mb")}
    if not run.completed:
        return row
    row |= _measured(run)
    baseline = baselines.get(_compared_by(run))
    if baseline is None:
        return row
    other = _measured(baseline)
    row |= {
        "baseline_run": baseline.name,
        "epoch_ratio": _ratio(row, other, "epoch_s"),
        "sync_ratio": _ratio(row, other, "sync_s_per_step"),
        "sent_ratio": _ratio(row, other, "sent_weights_bytes_per_epoch"),
    }
    accuracies = row["val_accuracy"], other["val_accuracy"]
    as_long = run.epochs["epoch"].nunique() == baseline.epochs["epoch"].nunique()
    return row | ({"accuracy_lost": accuracies[1] - accuracies[0]} if as_long and None not in accuracies else {})


def _measured(run: StudyRun) -> dict[str, Any]:
    sent = run.measured_epochs.groupby("epoch")["sent_weights_bytes"].sum()
    return {
        "epoch_s": epoch_seconds(run),
        "sent_weights_bytes_per_epoch": None if sent.empty else float(sent.mean()),
        "val_accuracy": run.metrics["final"]["val_accuracy"],
        **({} if without_traces(run) else _synchronisation(run)),
    }


def _synchronisation(run: StudyRun) -> dict[str, Any]:
    """Of a profiled run, per step, mean over ranks and steps."""
    seen = exposure(run)
    num_steps = len(run.trace_table("steps", ["step"]))
    phases = run.trace_table("phases", ["phase", "total_ns"])
    sync_s = phases.loc[phases["phase"] == Phase.SYNC, "total_ns"].sum() / num_steps / NANOSECONDS_PER_S
    numbers = {"profiled_step_s": seen["profiled_step_s"], "hidden_s_per_step": seen.get("hidden_s_per_step")}
    return numbers | {"sync_s_per_step": sync_s, "sync_share": sync_s / seen["profiled_step_s"]}


def _ratio(row: Mapping[str, Any], other: Mapping[str, Any], name: str) -> float | None:
    above, below = row.get(name), other.get(name)
    return above / below if above is not None and below else None

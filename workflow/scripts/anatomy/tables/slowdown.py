"""What one slow rank does to each strategy's speed, idle time and accuracy."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import Study, StudyRun
from anatomy.tables.common.timing import epoch_seconds

SUMMARY = (
    "every run beside the same one on a machine that nothing disturbs, and beside that of a strategy in which all "
    "ranks step together (the baseline) under the same condition: time, idle ranks and accuracy"
)
INPUTS = ()
OPTIONS = {
    "properties": {
        "baseline": {
            "type": "string",
            "default": "clustergcn",
            "description": "The strategy, as named in the config, that all others are compared with.",
        },
    },
    "required": [],
}
KEY = ("run",)
COLUMNS = RUN_COLUMNS | {
    "slow_factor": Column(
        "Float64", "", "by how much one rank is slowed; 1 where none is, missing for other conditions"
    ),
    "epoch_s": Column(
        "Float64", "s", "wall time of an epoch: median over epochs, warm-up out, of the slowest rank's; evaluation out"
    ),
    "speed_kept": Column(
        "Float64", "", "epoch_s of the same run without a condition / this epoch_s; missing where there is none"
    ),
    "idle_share": Column(
        "Float64",
        "",
        "of the ranks' time from an epoch's start until the last has ended it: what they were blocked in communication "
        "or had ended before; emulated slowness is no idleness. Sum over ranks, median over epochs, warm-up out",
    ),
    "slow_rank_nodes_share": Column(
        "Float64",
        "",
        "seed nodes that the slow rank trains over those of all: all epochs, warm-up out; missing without one",
    ),
    "val_accuracy": Column("Float64", "", "accuracy on the validation nodes after the last epoch"),
    "baseline_run": Column(
        "string", "", "run of the baseline that this one is compared with; missing where there is none that completed"
    ),
    "gain": Column("Float64", "", "the baseline's epoch_s / this epoch_s"),
    "accuracy_lost": Column("Float64", "", "the baseline's val_accuracy less this one's"),
}


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run; what needs another run is missing where that is missing or did not complete."""
    completed = [run for run in study.runs if run.completed and not run.recorded]
    undisturbed = {_alike(run, "strategy"): run for run in completed if run.columns["condition"] is None}
    baselines = {_alike(run, "condition"): run for run in completed if run.columns["strategy"] == options["baseline"]}
    rows = []
    for run in study.runs:
        row = run.columns | ({} if run.recorded else {"slow_factor": _slow_factor(run)})
        if run in completed:
            row |= _measured(run)
            row |= _compared(row, undisturbed.get(_alike(run, "strategy")), baselines.get(_alike(run, "condition")))
        rows.append(row)
    return as_frame(rows, COLUMNS)


def _alike(run: StudyRun, name: str) -> tuple[Any, ...]:
    """What a run has in common with the one that it is compared with, `name` among it."""
    names = ("graph", "partitioner", "num_parts", "model", "ranks", "hosts", "link_mbit", "seed", "platform", name)
    return tuple(run.columns.get(name) for name in names)


def _slow_factor(run: StudyRun) -> float | None:
    condition = run.spec.get("condition")
    return condition.get("slow", {}).get("factor") if condition else 1


def _measured(run: StudyRun) -> dict[str, Any]:
    return {
        "epoch_s": epoch_seconds(run),
        "idle_share": _idle_share(run),
        "slow_rank_nodes_share": _slow_rank_share(run),
        "val_accuracy": run.metrics["final"]["val_accuracy"],
    }


def _compared(row: Mapping[str, Any], undisturbed: StudyRun | None, baseline: StudyRun | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if undisturbed is not None:
        found["speed_kept"] = _ratio(epoch_seconds(undisturbed), row["epoch_s"])
    if baseline is not None:
        theirs, ours = baseline.metrics["final"]["val_accuracy"], row["val_accuracy"]
        found |= {"baseline_run": baseline.name, "gain": _ratio(epoch_seconds(baseline), row["epoch_s"])}
        found["accuracy_lost"] = None if None in (theirs, ours) else theirs - ours
    return found


def _idle_share(run: StudyRun) -> float | None:
    epochs = run.timed_epochs.groupby("epoch")
    last_s = epochs["wall_s"].max() * epochs["rank"].nunique()
    shares = 1 - (epochs["wall_s"].sum() - epochs["blocked_s"].sum()) / last_s
    return None if shares.empty else float(shares.median())


def _slow_rank_share(run: StudyRun) -> float | None:
    slow = (run.spec.get("condition") or {}).get("slow")
    epochs = run.measured_epochs
    if slow is None or not epochs["train_nodes"].sum():
        return None
    return float(epochs.loc[epochs["rank"] == slow["rank"], "train_nodes"].sum() / epochs["train_nodes"].sum())


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None

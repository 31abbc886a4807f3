"""What gradient-only training loses beside plain full-graph training, by how often a rank holds another chunk."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import Study, StudyRun

SUMMARY = "every run of grappa: its period and correction, and its accuracy beside that of full-graph training"
INPUTS = ()
OPTIONS = {
    "properties": {
        "baseline": {
            "type": "string",
            "default": "fullgraph",
            "description": "The strategy, as named in the config, that all others are compared with.",
        },
    },
    "required": [],
}
KEY = ("run",)
COLUMNS = RUN_COLUMNS | {
    "period": Column("Int64", "epochs", "epochs for which a rank keeps what it holds"),
    "correction": Column("string", "", "how a rank's gradient is weighed: none, proportional, inverse or shrinkage"),
    "neighbours": Column("Int64", "chunks", "chunks that a rank holds beside its own; -1: all"),
    "epochs": Column("Int64", "epochs", "epochs trained, warm-up in"),
    "turns": Column("Int64", "", "times that a rank was given what to hold: epochs / period, rounded up"),
    "val_accuracy": Column("Float64", "", "accuracy on the validation nodes after the last epoch"),
    "baseline_run": Column(
        "string", "", "run of the baseline that this one is compared with; missing where there is none that completed"
    ),
    "accuracy_lost": Column(
        "Float64", "", "the baseline's accuracy on the validation nodes less this one's, where both have as many epochs"
    ),
}
_COMPARED_BY = ("graph", "model", "ranks", "hosts", "link_mbit", "seed", "platform")
"""What a run and its baseline have in common; not the partitioner, of which a strategy may need its own."""


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run of grappa; one that failed is without accuracy."""
    ours = [run for run in study.runs if not run.recorded]
    baselines = {
        _compared_by(run): run for run in ours if run.completed and run.spec["strategy"]["name"] == options["baseline"]
    }
    grappa = [run for run in ours if run.spec["strategy"]["method"] == "grappa"]
    return as_frame([_row(run, baselines.get(_compared_by(run))) for run in grappa], COLUMNS)


def _compared_by(run: StudyRun) -> tuple[Any, ...]:
    return tuple(run.columns[name] for name in _COMPARED_BY)


def _row(run: StudyRun, baseline: StudyRun | None) -> dict[str, Any]:
    told = run.spec["strategy"]
    row = run.columns | {name: told[name] for name in ("period", "correction", "neighbours", "epochs")}
    row |= {"turns": -(-told["epochs"] // told["period"])}
    if not run.completed:
        return row
    row |= {"val_accuracy": run.metrics["final"]["val_accuracy"]}
    if baseline is None or baseline.spec["strategy"]["epochs"] != told["epochs"]:
        return row
    lost = baseline.metrics["final"]["val_accuracy"] - row["val_accuracy"]
    return row | {"baseline_run": baseline.name, "accuracy_lost": lost}

"""How loss and accuracy develop over training time."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import Study, StudyRun

SUMMARY = "loss and accuracy of every timed run after each epoch, against the training time spent until then"
INPUTS = ()
OPTIONS = {"properties": {}, "required": []}
KEY = ("run", "epoch")
COLUMNS = RUN_COLUMNS | {
    "epoch": Column("Int64", "", "epoch, from 0; warm-up epochs are in, since they train"),
    "train_s": Column(
        "Float64",
        "s",
        "training time from the start to the end of this epoch: sum over epochs, warm-up in, of the slowest rank's "
        "wall time; evaluation out. Missing for a run that was resumed from a checkpoint, whose times are of several "
        "pieces",
    ),
    "loss": Column("Float64", "", "mean loss over the seed nodes of all ranks in this epoch"),
    "val_accuracy": Column(
        "Float64", "", "accuracy on the validation nodes after this epoch; missing where not evaluated"
    ),
    "test_accuracy": Column("Float64", "", "accuracy on the test nodes after this epoch; missing where not evaluated"),
}


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run and epoch; a run that failed is one row without numbers."""
    rows = [row for run in study.runs for row in (_epochs(run) if run.completed else [run.columns])]
    return as_frame(rows, COLUMNS)


def _epochs(run: StudyRun) -> list[dict[str, Any]]:
    # Accuracies stand on the ranks that evaluated; `first` takes the first rank that has one.
    measures = ["loss", "val_accuracy", "test_accuracy"]
    epochs = run.epochs.sort_values(["epoch", "rank"]).groupby("epoch")
    train_s = pd.NA if run.resumptions else epochs["wall_s"].max().cumsum()
    frame = epochs[measures].first().assign(train_s=train_s).reset_index()
    return [run.columns | row for row in frame.to_dict("records")]

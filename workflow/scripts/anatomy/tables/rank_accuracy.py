"""How good a run is at the nodes of each rank's own part, beside how mixed the classes of that part are."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import Study, StudyRun

SUMMARY = "accuracy at the nodes of each rank's own part, and the entropy of the classes in that part"
INPUTS = ("partition",)
OPTIONS = {"properties": {}, "required": []}
KEY = ("run", "rank")
COLUMNS = RUN_COLUMNS | {
    "rank": Column("Int64", "", "rank"),
    "sampler": Column("string", "", "training nodes of an epoch: all, or balanced (eat), a third, rare classes first"),
    "shared": Column("Float64", "", "share of the epochs in which all ranks train one model; below 1 with eat alone"),
    "epochs": Column("Int64", "", "epochs trained, warm-up in"),
    "part_train_nodes": Column("Int64", "nodes", "training nodes of the rank's part"),
    "label_entropy_bits": Column("Float64", "bit", "Shannon entropy of the classes of the part's labelled nodes"),
    "val_accuracy": Column(
        "Float64", "", "accuracy on the validation nodes of the rank's part after the last epoch; missing without any"
    ),
    "test_accuracy": Column("Float64", "", "the same on its test nodes"),
    "run_test_accuracy": Column("Float64", "", "accuracy on the test nodes of all ranks; same for all of them"),
}


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run and rank; a run that failed is one row without numbers. Traces recorded elsewhere have none."""
    rows: list[dict[str, Any]] = []
    for run in study.runs:
        if not run.recorded:
            rows += _ranks(run) if run.completed else [run.columns | _settings(run)]
    return as_frame(rows, COLUMNS)


def _ranks(run: StudyRun) -> Iterator[dict[str, Any]]:
    parts = run.partition.manifest["parts"]
    last = run.epochs[run.epochs["epoch"] == run.epochs["epoch"].max()].sort_values("rank")
    for row in last.to_dict("records"):
        part = parts[row["rank"]]
        yield (
            run.columns
            | _settings(run)
            | {
                "rank": row["rank"],
                "part_train_nodes": part["train"],
                "label_entropy_bits": part["label_entropy_bits"],
                "val_accuracy": row["own_val_accuracy"],
                "test_accuracy": row["own_test_accuracy"],
                "run_test_accuracy": row["test_accuracy"],
            }
        )


def _settings(run: StudyRun) -> dict[str, Any]:
    told = run.spec["strategy"]
    own = told if told["method"] == "eat" else {}
    return {"sampler": own.get("sampler", "all"), "shared": own.get("shared", 1.0), "epochs": told.get("epochs")}

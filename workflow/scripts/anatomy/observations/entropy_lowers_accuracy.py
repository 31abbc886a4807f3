"""Is a rank the worse at its own nodes the more mixed the classes of its part are?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.beside_baseline import means, with_value
from anatomy.observations.common.evidence import (
    COMPLETED,
    CONFIGURATION,
    Inconclusive,
    Repetitions,
    chosen,
    repetitions,
)

CLAIM = (
    "Over the parts of all partitioners, accuracy at a part's own nodes falls with the entropy of its classes: their "
    "correlation is below -0.5."
)
SOURCE = (
    "EAT-DistGNN (Deshmukh et al., ICDM 2023, abstract): parts of a low total entropy improve the micro F1 score; the "
    "threshold is this study's own"
)
TABLE = "rank_accuracy"
FIGURE = "rank_accuracy"
STATISTIC = (
    "Pearson's correlation of the entropy of a part's classes and the test accuracy at its nodes, over ranks and "
    "partitioners, same graph, strategy, model and seed; the configuration with the largest"
)
UNIT = "correlation"
DIRECTION = "<"
THRESHOLD = -0.5
OPTIONS = {
    "properties": {
        "methods": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "default": ["minibatch"],
            "description": "Methods of the strategies that the claim is about.",
        },
    },
    "required": [],
}
MIN_PARTS = 3
_POOLED = tuple(name for name in CONFIGURATION if name != "partitioner")


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One correlation per seed, from the table `rank_accuracy`.

    Raises Inconclusive where fewer than MIN_PARTS parts differ in entropy, or all are as good.
    """
    rows = with_value(chosen(table, options, min_ranks=2, method=options["methods"]), "label_entropy_bits")
    rows = with_value(rows, "test_accuracy").sort_values(["run", "rank"])
    found = []
    for key, parts in rows.groupby([*_POOLED, "seed"], dropna=False):
        if parts["label_entropy_bits"].nunique() < MIN_PARTS or parts["test_accuracy"].nunique() < 2:
            raise Inconclusive(f"fewer than {MIN_PARTS} parts differ in entropy, or none in accuracy, for {key}")
        entropy, accuracy = (parts[name].astype("float64") for name in ("label_entropy_bits", "test_accuracy"))
        found += [
            dict(zip([*_POOLED, "seed"], key, strict=True)) | {"run": run, "value": entropy.corr(accuracy)}
            for run in parts["run"].unique()
        ]
    return repetitions(pd.DataFrame(found), DIRECTION, _POOLED)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean entropy of the parts by partitioner, and mean accuracy at their nodes by strategy and partitioner."""
    rows = chosen(table[table["status"] == COMPLETED], options, min_ranks=2)
    return {
        "entropy_bits_by_partitioner": means(rows, "label_entropy_bits", "partitioner"),
        "test_accuracy_by_strategy_and_partitioner": means(rows, "test_accuracy", "strategy", "partitioner"),
    }

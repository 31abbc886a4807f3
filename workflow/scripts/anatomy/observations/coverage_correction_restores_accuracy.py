"""Does weighing each rank's gradient by what it covers restore what gradient-only training loses?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.beside_baseline import means, with_value
from anatomy.observations.common.evidence import COMPLETED, CONFIGURATION, Repetitions, chosen, paired, repetitions

CLAIM = (
    "In training that sends nothing but gradients, weighing each rank's gradient by the inverse of what it covers, "
    "with shrinkage, gains more than 0.005 of validation accuracy."
)
SOURCE = (
    "Grappa (Xu et al., 2026, abstract) corrects gradients by coverage to recover the accuracy that isolation costs; "
    "the threshold is this study's own"
)
TABLE = "gradient_only"
FIGURE = "gradient_only"
STATISTIC = (
    "validation accuracy with the correction less that without, same graph, partitioner, model, ranks, seed, period "
    "and number of epochs; the configuration with the smallest difference"
)
UNIT = "accuracy"
DIRECTION = ">"
THRESHOLD = 0.005
OPTIONS = {
    "properties": {
        "correction": {
            "type": "string",
            "default": "shrinkage",
            "description": "The correction that the claim is about.",
        },
    },
    "required": [],
}
_PAIRS = (*(name for name in CONFIGURATION if name != "strategy"), "period", "epochs")


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One difference per seed, from the table `gradient_only`, of the periods at which there are both."""
    both = ["none", options["correction"]]
    rows = with_value(chosen(table, options, min_ranks=3, correction=both), "val_accuracy")
    periods = [set(rows.loc[rows["correction"] == correction, "period"]) for correction in both]
    rows = rows[rows["period"].isin(set.intersection(*periods))]
    pairs = paired(rows, "correction", options["correction"], "none", "val_accuracy", _PAIRS)
    pairs["value"] = pairs["val_accuracy"] - pairs["val_accuracy_of_baseline"]
    return repetitions(pairs, DIRECTION, _PAIRS)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean accuracy lost beside full-graph training, by period and correction."""
    rows = chosen(table[table["status"] == COMPLETED], options, min_ranks=3)
    return {"accuracy_lost_by_period_and_correction": means(rows, "accuracy_lost", "period", "correction")}

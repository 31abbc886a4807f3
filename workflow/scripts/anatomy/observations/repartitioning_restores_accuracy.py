"""Does holding another chunk in turn restore what gradient-only training loses?"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from anatomy.observations.common.beside_baseline import means, with_value
from anatomy.observations.common.evidence import COMPLETED, CONFIGURATION, Repetitions, chosen, paired, repetitions

CLAIM = (
    "In training that sends nothing but gradients, ranks that hold another chunk in turn reach more than 0.005 more "
    "validation accuracy than ranks that keep the first one."
)
SOURCE = (
    "Grappa (Xu et al., 2026, abstract) repartitions from time to time to recover the accuracy that isolation costs; "
    "the threshold is this study's own"
)
TABLE = "gradient_only"
FIGURE = "gradient_only"
STATISTIC = (
    "validation accuracy with the shortest period less that without any change, same graph, partitioner, model, ranks, "
    "seed and number of epochs, gradients not corrected; the configuration with the smallest difference"
)
UNIT = "accuracy"
DIRECTION = ">"
THRESHOLD = 0.005
OPTIONS = {
    "properties": {
        "correction": {
            "type": "string",
            "default": "none",
            "description": "The correction of the runs that the claim is about.",
        },
    },
    "required": [],
}
_PAIRS = (*(name for name in CONFIGURATION if name != "strategy"), "epochs")


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One difference per seed, from the table `gradient_only`; with two ranks there is nothing to change."""
    rows = with_value(chosen(table, options, min_ranks=3, correction=options["correction"]), "val_accuracy")
    changing = rows.loc[rows["turns"] > 1, "period"]
    kept = np.where(rows["turns"] == 1, "always", np.where(rows["period"] == changing.min(), "shortest", "between"))
    pairs = paired(rows.assign(kept=kept), "kept", "shortest", "always", "val_accuracy", _PAIRS)
    pairs["value"] = pairs["val_accuracy"] - pairs["val_accuracy_of_baseline"]
    return repetitions(pairs, DIRECTION, _PAIRS)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean accuracy lost beside full-graph training, by correction and period."""
    rows = chosen(table[table["status"] == COMPLETED], options, min_ranks=3)
    return {"accuracy_lost_by_correction_and_period": means(rows, "accuracy_lost", "correction", "period")}

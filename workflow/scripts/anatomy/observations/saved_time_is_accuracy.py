"""After the same training time, is any strategy behind plain full-graph training?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.beside_baseline import by_strategy, compared, means
from anatomy.observations.common.evidence import Repetitions, repetitions

CLAIM = (
    "After as much training time, no other strategy on the whole graph is 0.01 or more of validation accuracy behind "
    "plain full-graph training."
)
SOURCE = (
    "papers on these strategies report shorter epochs and an accuracy that is nearly kept, from which it would follow; "
    "that it does, for every strategy, and the margin, are this study's own hypothesis"
)
TABLE = "strategies"
FIGURE = "strategies"
STATISTIC = (
    "validation accuracy of plain full-graph training less that of the strategy, same graph, model, ranks and seed, "
    "each as last evaluated within the training time of the one that ended sooner; the configuration furthest behind"
)
UNIT = "accuracy"
DIRECTION = "<"
THRESHOLD = 0.01
"""As for equal epochs (`staleness_costs_no_accuracy`): with 0, one that is as good could never be shown to be."""
OPTIONS = {
    "properties": {
        "methods": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "default": [
                "bns",
                "broadcast",
                "cached",
                "chunked",
                "decentralised",
                "decoupled",
                "delayed",
                "featuresplit",
                "pipegcn",
                "pipeline",
            ],
            "description": "Methods of the strategies that the claim is about.",
        },
    },
    "required": [],
}


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One difference per seed, from the table `strategies`."""
    return repetitions(_lost(table, options), DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean accuracy lost in time by strategy, and by strategy and ranks; beside it the gain in an epoch's time."""
    rows = _lost(table, options)
    return {
        **by_strategy(rows, "accuracy_lost_in_time"),
        "gain_by_strategy": means(rows, "gain", "strategy"),
    }


def _lost(table: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    return compared(table, options, "accuracy_lost_in_time", timed=True, method=options["methods"])

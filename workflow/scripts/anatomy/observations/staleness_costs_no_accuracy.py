"""What do approximate strategies lose in accuracy after as many epochs?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.beside_baseline import by_strategy, compared, means
from anatomy.observations.common.evidence import Repetitions, repetitions

CLAIM = (
    "After as many epochs, no approximate strategy has lost 0.01 or more of the validation accuracy of plain "
    "full-graph training."
)
SOURCE = (
    "BNS-GCN (Wan et al., MLSys 2022), PipeGCN (Wan et al., ICLR 2022), CDFGNN (Zhang et al., 2024) and GNNPipe (Chen "
    "et al., 2023) each report an accuracy about as good as that of full-graph training; the threshold is this "
    "study's own"
)
TABLE = "strategies"
FIGURE = "strategies"
STATISTIC = (
    "validation accuracy of plain full-graph training less that of the strategy, same graph, model, ranks, seed and "
    "number of epochs; the configuration that loses most"
)
UNIT = "accuracy"
DIRECTION = "<"
THRESHOLD = 0.01
OPTIONS = {
    "properties": {
        "methods": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "default": ["bns", "cached", "decentralised", "decoupled", "delayed", "pipegcn", "pipeline"],
            "description": "Methods of the strategies that the claim is about.",
        },
    },
    "required": [],
}


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One difference per seed, from the table `strategies`; accuracy does not depend on how fast epochs are."""
    return repetitions(_lost(table, options), DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean accuracy lost by strategy, and by strategy and ranks; mean accuracy of each strategy."""
    rows = _lost(table, options)
    return {
        **by_strategy(rows, "accuracy_lost"),
        "val_accuracy_by_strategy": means(rows, "val_accuracy", "strategy"),
    }


def _lost(table: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    return compared(table, options, "accuracy_lost", method=options["methods"])

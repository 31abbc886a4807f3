"""Does gossip pay for its speed with accuracy?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.beside_baseline import compared, means
from anatomy.observations.common.evidence import Repetitions, repetitions

CLAIM = (
    "After as many epochs, gossip from a shared pool is less than 0.01 of validation accuracy behind an all-reduce in "
    "every step, with a slow rank or without."
)
SOURCE = (
    "Zhang and Goswami, Efficient asynchronous GCN training on a GPU cluster (ICPADS 2021): similar accuracy; the "
    "margin is this study's own"
)
TABLE = "slowdown"
FIGURE = "slowdown"
STATISTIC = (
    "validation accuracy of cluster mini-batches with an all-reduce less that of gossip, same batches, epochs, graph, "
    "model, ranks, seed and slow rank; the configuration furthest behind"
)
UNIT = "accuracy"
DIRECTION = "<"
THRESHOLD = 0.01
"""With 0, one that is as good could never be shown to be."""
OPTIONS = {"properties": {}, "required": []}


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One difference per seed, from the table `slowdown`."""
    return repetitions(_lost(table, options), DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean accuracy lost by strategy and slowdown."""
    rows = _lost(table, options).dropna(subset=["slow_factor"])
    return {"accuracy_lost_by_strategy_and_slowdown": means(rows, "value", "strategy", "slow_factor")}


def _lost(table: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    return compared(table, options, "accuracy_lost", method="gossip")

"""With one slow rank, is gossip from a shared pool faster than an all-reduce in every step?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.beside_baseline import compared, means
from anatomy.observations.common.evidence import Repetitions, repetitions

CLAIM = (
    "With one rank 4 times slower, an epoch of gossip from a shared pool takes at most two thirds of the time of an "
    "all-reduce in every step."
)
SOURCE = (
    "Zhang and Goswami, Efficient asynchronous GCN training on a GPU cluster (ICPADS 2021): faster than synchronous "
    "training with all-reduce where loads are uneven; the factors are this study's own hypothesis"
)
TABLE = "slowdown"
FIGURE = "slowdown"
STATISTIC = (
    "epoch time of cluster mini-batches with an all-reduce over that of gossip, same batches, graph, model, ranks, "
    "seed and slow rank; the configuration with the smallest ratio"
)
UNIT = "ratio"
DIRECTION = ">"
THRESHOLD = 1.5
"""With one of two ranks 4 times slower, 1.25 ranks' work is done without waiting, and 0.5 with an all-reduce: 2.5."""
OPTIONS = {
    "properties": {
        "slow_factor": {
            "type": "number",
            "exclusiveMinimum": 1,
            "default": 4,
            "description": "How many times slower the slow rank is in the runs that are judged.",
        },
    },
    "required": [],
}


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One ratio per seed, from the table `slowdown`."""
    rows = compared(table, options, "gain", timed=True, method="gossip", slow_factor=options["slow_factor"])
    return repetitions(rows, DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean speed kept and idle share by strategy and slowdown, of all runs of the table."""
    rows = table[~table["oversubscribed"].fillna(False).astype(bool)].dropna(subset=["slow_factor"])
    return {
        "speed_kept_by_strategy_and_slowdown": means(rows, "speed_kept", "strategy", "slow_factor"),
        "idle_share_by_strategy_and_slowdown": means(rows, "idle_share", "strategy", "slow_factor"),
    }

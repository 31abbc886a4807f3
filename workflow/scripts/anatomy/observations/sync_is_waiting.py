"""Is gradient synchronisation mostly waiting for the slowest rank?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.evidence import Repetitions, by_configuration, chosen, per_run, repetitions

CLAIM = "Most of the time in gradient synchronisation is waiting for the slowest rank, not moving bytes."
SOURCE = "this study's own: weights of GNNs are few, while batches and parts of a power-law graph differ in size"
TABLE = "imbalance"
FIGURE = "imbalance"
STATISTIC = (
    "time from a rank's arrival at a collective of weight gradients to the last rank's, over the time to the "
    "collective's end; sums over ranks and profiled steps; the configuration with the smallest share"
)
UNIT = "share of synchronisation"
DIRECTION = ">"
THRESHOLD = 0.5
OPTIONS = {"properties": {}, "required": []}


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One share per seed, from the table `imbalance`."""
    return repetitions(_shares(table, options), DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean share of waiting by configuration, and how unequal the ranks' compute is."""
    rows = chosen(table, options, min_ranks=2, timed=True)
    unequal = rows.rename(columns={"compute_imbalance": "value"}).dropna(subset=["value"])
    return {
        "wait_share_by_configuration": by_configuration(_shares(table, options)),
        "slowest_over_mean_compute_by_configuration": by_configuration(unequal),
    }


def _shares(table: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    rows = chosen(table, options, min_ranks=2, timed=True)
    return per_run(rows, "sync_wait_s_per_step", "sync_s_per_step")

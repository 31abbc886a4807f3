"""Does a rank need less memory where it exchanges a sample of its halo?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.beside_baseline import by_strategy, compared, means
from anatomy.observations.common.evidence import Repetitions, repetitions

CLAIM = (
    "With boundary-node sampling, the rank that needs most memory needs less than 0.8 of what it needs in plain "
    "full-graph training."
)
SOURCE = (
    "BNS-GCN (Wan et al., MLSys 2022) reports that sampling spares up to 58 % of a GPU's memory; there processes on "
    "CPUs, and their libraries and exact evaluation, do not count. The threshold is this study's own"
)
TABLE = "strategies"
FIGURE = "memory"
STATISTIC = (
    "largest resident memory of a rank's process, evaluation in, over that of plain full-graph training of the same "
    "graph, model, ranks and seed; the configuration with the largest ratio"
)
UNIT = "ratio"
DIRECTION = "<"
THRESHOLD = 0.8
OPTIONS = {"properties": {}, "required": []}


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One ratio per seed, from the table `strategies`; memory does not depend on how many cores there are."""
    return repetitions(_ratios(table, options), DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean ratio by strategy, and by strategy and ranks; mean peak by strategy and ranks."""
    rows = _ratios(table, options)
    return {
        **by_strategy(rows, "ratio"),
        "peak_memory_bytes_by_strategy_and_ranks": means(rows, "peak_memory_bytes", "strategy", "ranks"),
    }


def _ratios(table: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    return compared(table, options, "memory_ratio", method="bns")

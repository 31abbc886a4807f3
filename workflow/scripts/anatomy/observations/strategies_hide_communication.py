"""Do strategies that overlap or save communication take it out of the step's way?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.beside_baseline import by_strategy, compared, means
from anatomy.observations.common.evidence import Repetitions, repetitions

CLAIM = (
    "Strategies that overlap halo exchanges with computation, or leave some out, expose less than half of the "
    "communication time per step that plain full-graph training exposes."
)
SOURCE = (
    "PipeGCN (Wan et al., ICLR 2022) has boundary rows travel while layers are computed, MGG (Wang et al., OSDI 2023) "
    "pipelines small exchanges with sums; BNS-GCN (Wan et al., MLSys 2022) and CDFGNN (Zhang et al., 2024) send fewer "
    "rows. The threshold is this study's own"
)
TABLE = "strategies"
FIGURE = "strategies"
STATISTIC = (
    "communication of a profiled step while nothing is computed, waiting in, over that of plain full-graph training "
    "of the same graph, model, ranks and seed; the configuration with the largest ratio"
)
UNIT = "ratio"
DIRECTION = "<"
THRESHOLD = 0.5
OPTIONS = {
    "properties": {
        "methods": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "default": ["bns", "cached", "chunked", "pipegcn"],
            "description": "Methods of the strategies that the claim is about.",
        },
    },
    "required": [],
}


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One ratio per seed, from the table `strategies`."""
    return repetitions(_ratios(table, options), DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean ratio by strategy, and by strategy and ranks; share of a step that stays exposed."""
    rows = _ratios(table, options)
    return {
        **by_strategy(rows, "ratio"),
        "exposed_share_by_strategy_and_ranks": means(rows, "exposed_share", "strategy", "ranks"),
    }


def _ratios(table: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    return compared(table, options, "exposed_ratio", timed=True, method=options["methods"])

"""Does it pay to send gradients in buckets while the backward pass still runs?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.beside_baseline import compared, means
from anatomy.observations.common.evidence import Repetitions, repetitions

CLAIM = (
    "Whatever the size of the buckets, to all-reduce gradients in buckets during the backward pass leaves less than "
    "0.8 of the time in synchronisation that one all-reduce after it takes."
)
SOURCE = (
    "GradientFlow (Sun et al., 2019, arXiv 1902.06855) and MG-WFBP (Shi et al., INFOCOM 2019, arXiv 1811.11141) "
    "overlap all-reduces with the backward pass, and merge small ones, which cost more to start than they hide; their "
    "models have millions of weights. The threshold is this study's own"
)
TABLE = "policies"
FIGURE = "policies"
STATISTIC = (
    "time of a profiled step in which the training thread synchronises gradients, waiting in, over that of the run of "
    "the same strategy, graph, partitioner, model, ranks and seed with one all-reduce per step; the bucket size with "
    "the largest ratio"
)
UNIT = "ratio"
DIRECTION = "<"
THRESHOLD = 0.8
OPTIONS = {
    "properties": {
        "policies": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "default": ["buckets", "merged"],
            "description": "Policies of gradients that the claim is about.",
        },
    },
    "required": [],
}


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One ratio per seed, from the table `policies`."""
    return repetitions(_ratios(table, options), DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean ratio of the time in synchronisation, and of an epoch's, by strategy; share of a step by strategy."""
    rows = _ratios(table, options)
    return {
        "sync_ratio_by_strategy": means(rows, "value", "strategy"),
        "epoch_ratio_by_strategy": means(rows, "epoch_ratio", "strategy"),
        "sync_share_by_strategy": means(rows, "sync_share", "strategy"),
    }


def _ratios(table: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    return compared(table, options, "sync_ratio", timed=True, policy=options["policies"])

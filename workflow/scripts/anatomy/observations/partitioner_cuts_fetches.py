"""Does a good partitioner spare mini-batch training most of its feature traffic?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.evidence import Repetitions, by_configuration, repetitions
from anatomy.observations.common.volume import volume_ratios

CLAIM = "In mini-batch training, METIS's parts need less than half of the feature bytes that random parts need."
SOURCE = (
    "DistDGL (Zheng et al., 2020) partitions with METIS so that most sampled nodes are local; P3 (Gandhi and Iyer, "
    "OSDI 2021) argues that partitioning pays little for sampled neighbourhoods of several hops"
)
TABLE = "volume"
FIGURE = "volume"
STATISTIC = (
    "feature and request bytes sent per epoch with the partitioner over those with the baseline, same graph, "
    "parts, strategy, model and seed; the configuration with the largest ratio"
)
UNIT = "ratio"
DIRECTION = "<"
THRESHOLD = 0.5
OPTIONS = {
    "properties": {
        "partitioner": {
            "type": "string",
            "default": "metis",
            "description": "The partitioner, as named in the config.",
        },
        "baseline": {
            "type": "string",
            "default": "random",
            "description": "What it is compared with, as named in the config.",
        },
    },
    "required": [],
}

_KINDS = ("features", "requests")


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One ratio per seed, from the table `volume`."""
    return repetitions(volume_ratios(table, options, "minibatch", _KINDS), DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean ratio by configuration."""
    return {"ratio_by_configuration": by_configuration(volume_ratios(table, options, "minibatch", _KINDS))}

"""Does a good partitioner spare full-graph training most of its traffic?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.evidence import Repetitions, by_configuration, repetitions
from anatomy.observations.common.volume import volume_ratios

CLAIM = "In full-graph training, METIS's parts need less than half of the bytes that random parts need."
SOURCE = (
    "BNS-GCN (Wan et al., MLSys 2022): the traffic of partition-parallel training is its number of boundary nodes, "
    "which the partitioner decides"
)
TABLE = "volume"
FIGURE = "volume"
STATISTIC = (
    "activation and gradient bytes per epoch with the partitioner over those with the baseline, same graph, parts, "
    "model and seed; the configuration with the largest ratio. The partition decides it, so that repetitions agree"
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

_KINDS = ("activations", "gradients")


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One ratio per seed, from the table `volume`."""
    return repetitions(volume_ratios(table, options, "fullgraph", _KINDS), DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean ratio by configuration."""
    return {"ratio_by_configuration": by_configuration(volume_ratios(table, options, "fullgraph", _KINDS))}

"""Does the same work get done faster by more ranks?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.evidence import Repetitions, by_configuration, repetitions
from anatomy.observations.common.scaling import efficiencies

CLAIM = "With the graph unchanged, adding ranks keeps more than 0.7 of their efficiency."
SOURCE = (
    "DistDGL (Zheng et al., 2020) reports linear speedup of mini-batch training on up to 16 machines; the threshold is "
    "this study's own"
)
TABLE = "scaling"
FIGURE = "scaling"
STATISTIC = (
    "epoch time on one rank / (ranks x epoch time), at the largest number of ranks that have a core or GPU each; "
    "the configuration with the smallest"
)
UNIT = "parallel efficiency"
DIRECTION = ">"
THRESHOLD = 0.7
OPTIONS = {"properties": {}, "required": []}

_SERIES = ("graph", "partitioner", "strategy", "model", "condition")
"""What stays the same while ranks are added."""


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One efficiency per seed, from the table `scaling`."""
    return repetitions(efficiencies(table, options, "strong", _SERIES), DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean efficiency by configuration."""
    return {"efficiency_by_configuration": by_configuration(efficiencies(table, options, "strong", _SERIES))}

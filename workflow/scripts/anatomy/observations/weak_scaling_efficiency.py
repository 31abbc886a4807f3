"""Do more ranks do more work in the same time?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.evidence import Repetitions, by_configuration, repetitions
from anatomy.observations.common.scaling import efficiencies

CLAIM = "With a graph that grows with the ranks, adding ranks keeps more than 0.7 of their efficiency."
SOURCE = "this study's own: ranks that train on equal shares of larger graphs should lose nothing but communication"
TABLE = "scaling"
FIGURE = "scaling"
STATISTIC = (
    "training nodes per second over (ranks x those on one rank), at the largest number of ranks that have a core "
    "or GPU each; the configuration with the smallest"
)
UNIT = "parallel efficiency"
DIRECTION = ">"
THRESHOLD = 0.7
OPTIONS = {"properties": {}, "required": []}

_SERIES = ("partitioner", "strategy", "model", "condition")
"""What stays the same while ranks are added."""


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One efficiency per seed, from the table `scaling`."""
    return repetitions(efficiencies(table, options, "weak", _SERIES), DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean efficiency by configuration."""
    return {"efficiency_by_configuration": by_configuration(efficiencies(table, options, "weak", _SERIES))}

"""Does a cache of remote features take preparation out of a step?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common import preparation
from anatomy.observations.common.evidence import Repetitions, repetitions

CLAIM = "A cache of a fifth of the remote nodes takes more than a quarter of exposed preparation out of a step."
SOURCE = (
    "PaGraph (Lin et al., SoCC 2020), GNNLab (Yang et al., EuroSys 2022) and SALIENT++ (Kaler et al., MLSys 2023) find "
    "that static caches of features spare most of the time of loading them. The threshold is this study's own"
)
TABLE = "preparation"
FIGURE = "preparation"
STATISTIC = (
    "sample, fetch (exposed communication included), gather and copy of a profiled step, over that of the plain "
    "strategy with the same graph, parts, model, ranks and seed; the configuration with the largest ratio"
)
UNIT = "ratio"
DIRECTION = "<"
THRESHOLD = 0.75
OPTIONS = {
    "properties": {
        "strategy": {
            "type": "string",
            "default": "minibatch-cache",
            "description": "The strategy, as named in the config, that the claim is about.",
        },
        "baseline": {
            "type": "string",
            "default": "minibatch",
            "description": "The strategy, as named in the config, that it is compared with.",
        },
    },
    "required": [],
}


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One ratio per seed, from the table `preparation`."""
    return repetitions(preparation.ratios(table, options), DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """See `preparation.notes`."""
    return preparation.notes(table, options)

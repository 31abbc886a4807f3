"""Does preparing the next batches meanwhile take preparation out of a step?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common import preparation
from anatomy.observations.common.evidence import Repetitions, repetitions

CLAIM = "Prefetching takes more than a quarter of the exposed preparation out of a mini-batch step."
SOURCE = (
    "DistDGLv2 (Zheng et al., KDD 2022) and SALIENT (Kaler et al., MLSys 2022) prepare batches while others are "
    "trained on, and find most of preparation hidden. The threshold is this study's own"
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
            "default": "minibatch-prefetch",
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

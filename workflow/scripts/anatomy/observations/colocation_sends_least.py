"""Does the least travel where sampler, features and trainer of a part are together?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.evidence import (
    CONFIGURATION,
    Inconclusive,
    Repetitions,
    by_configuration,
    chosen,
    repetitions,
)

CLAIM = "Of all placements of samplers and feature stores, the one with all of a part together sends the least."
SOURCE = (
    "Luo, Bao and Wu (INFOCOM 2022, arXiv:2204.11224), abstract: existing systems put data and computation together, "
    "and where that cannot be, placement matters"
)
TABLE = "placement"
FIGURE = "placement"
STATISTIC = (
    "bytes between ranks per epoch, gradients left out, of the placement with all together over those of the other "
    "placement that sends least, same graph, partition, model and seed; the configuration with the largest ratio"
)
UNIT = "ratio"
DIRECTION = "<"
THRESHOLD = 1.0
OPTIONS = {"properties": {}, "required": []}

_MEASURE = "measured_bytes_per_epoch"
_SHARED = tuple(name for name in CONFIGURATION if name != "strategy")


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One ratio per seed."""
    return repetitions(_ratios(table, options), DIRECTION, _SHARED)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean ratio by configuration, and bytes by strategy."""
    sent = _sent(table, options).assign(value=lambda rows: rows[_MEASURE])
    return {
        "ratio_by_configuration": by_configuration(_ratios(table, options), _SHARED),
        "bytes_by_configuration": by_configuration(sent),
    }


def _sent(table: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run: what all its ranks send."""
    rows = chosen(table, options, min_ranks=2).dropna(subset=[_MEASURE])
    keys = ["run", *CONFIGURATION, "seed", "together"]
    return rows.groupby(keys, as_index=False, dropna=False)[_MEASURE].sum()


def _ratios(table: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    sent = _sent(table, options)
    pairs = [*_SHARED, "seed"]
    others = sent[~sent["together"]].sort_values(_MEASURE, kind="stable").drop_duplicates(pairs)
    together = sent[sent["together"]].drop_duplicates(pairs)
    both = together.merge(others, on=pairs, how="outer", suffixes=("", "_other"))
    if both.empty or both[[_MEASURE, f"{_MEASURE}_other"]].isna().any(axis=None):
        raise Inconclusive("some runs have no counterpart: a placement with all together, and another one, are needed")
    if both[f"{_MEASURE}_other"].eq(0).any():
        raise Inconclusive("a placement sends nothing, so that there is no ratio")
    return both.assign(value=both[_MEASURE] / both[f"{_MEASURE}_other"], baseline_run=both["run_other"])

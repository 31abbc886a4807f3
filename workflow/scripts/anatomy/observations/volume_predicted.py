"""Is the traffic exactly what can be computed without running anything?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.evidence import CONFIGURATION, Inconclusive, Repetitions, chosen, repetitions
from anatomy.words import listed

CLAIM = "The bytes sent equal, to the byte, those predicted from the partition, the sampled nodes and the model."
SOURCE = (
    "BNS-GCN (Wan et al., MLSys 2022) gives the closed form for full-graph training: halo nodes times layer "
    "widths; the rest follows from what is asked for and the ring all-reduce"
)
TABLE = "volume"
FIGURE = "volume"
STATISTIC = (
    "largest relative deviation of measured from predicted bytes per epoch over all kinds that have a prediction"
)
UNIT = "relative deviation"
DIRECTION = "<="
THRESHOLD = 0.0
OPTIONS = {"properties": {}, "required": []}

_PREDICTIONS = ("predicted_bytes_per_epoch", "declared_bytes_per_epoch")
"""Computed by the table, and announced by the training program: both must be right. Where the table knows no closed
form of a method, the former is the latter."""


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One deviation per seed, from the table `volume`: the largest of its runs."""
    deviations = _deviations(table, options)
    runs = deviations.groupby(["run", *CONFIGURATION, "seed"], as_index=False, dropna=False)["value"].max()
    return repetitions(runs, DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Largest deviation by method and kind."""
    largest = _deviations(table, options).groupby(["method", "kind"])["value"].max()
    return {"largest_deviation": {f"{method}: {kind}": float(value) for (method, kind), value in largest.items()}}


def _deviations(table: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    rows = chosen(table, options, min_ranks=2)
    rows = rows[rows[list(_PREDICTIONS)].notna().any(axis=1)]
    if rows.empty:
        raise Inconclusive("no run has a prediction")
    unmeasured = rows[rows["compared_bytes_per_epoch"].isna()]
    if not unmeasured.empty:
        raise Inconclusive(f"predicted but not measured: {listed(unmeasured['run'])}")
    deviations = [
        (rows["compared_bytes_per_epoch"] - rows[column]).abs() / rows[column].clip(lower=1) for column in _PREDICTIONS
    ]
    return rows.assign(value=pd.concat(deviations, axis=1).max(axis=1))

"""Is a mini-batch step mostly preparation?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.evidence import Repetitions, by_configuration, chosen, per_run, repetitions
from anatomy.phases import Phase

CLAIM = "In mini-batch training, bringing the batch together takes more than half of a step."
SOURCE = (
    "SALIENT (Kaler et al., MLSys 2022) finds batch preparation and transfer to bound GPU training; Yuan et al., "
    "Comprehensive Evaluation of GNN Training Systems: A Data Management Perspective (VLDB 2024), find "
    "that they take a large proportion of the time"
)
TABLE = "phases"
FIGURE = "phases"
STATISTIC = (
    "share of a profiled step's wall time spent in sample, fetch (communication included), gather and copy; the "
    "configuration with the smallest share"
)
UNIT = "share of the step"
DIRECTION = ">"
THRESHOLD = 0.5
OPTIONS = {"properties": {}, "required": []}


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One share per seed, from the table `phases`."""
    return repetitions(_shares(table, options), DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Share of preparation by configuration, and mean share of each group and of each phase within it."""
    rows = chosen(table, options, timed=True, method="minibatch")
    num_runs = rows["run"].nunique()
    shares = rows.groupby(["group", "phase"])["share"].sum() / num_runs
    return {
        "share_by_configuration": by_configuration(_shares(table, options)),
        "mean_share_by_group": {group: float(share) for group, share in shares.groupby("group").sum().items()},
        "mean_share_by_phase": {f"{group}: {phase}": float(share) for (group, phase), share in shares.items()},
    }


def _shares(table: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    rows = chosen(table, options, timed=True, method="minibatch")
    fetched = (rows["group"] == "communication") & (rows["phase"] == Phase.FETCH)
    prepares = (rows["group"] == "preparation") | fetched
    rows = rows.assign(preparation_s=rows["seconds_per_step"].where(prepares, 0.0))
    return per_run(rows, "preparation_s", "seconds_per_step")

"""Parallel efficiency where it can be judged."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from anatomy.observations.common.evidence import Inconclusive, chosen
from anatomy.words import listed


def efficiencies(table: pd.DataFrame, options: Mapping[str, Any], mode: str, series: Sequence[str]) -> pd.DataFrame:
    """One row per run at the largest number of ranks of its series that is not oversubscribed; `value` is its
    efficiency.

    `table` is the study table `scaling`; `series` are the columns that stay the same while ranks are added.

    Raises Inconclusive where a run lacks the 1-rank run it is compared with, and NotMeasurable where every point with
    more than one rank is oversubscribed.
    """
    rows = chosen(table, options, min_ranks=2, timed=True, mode=mode)
    rows = rows[rows["ranks"] == rows.groupby(list(series), dropna=False)["ranks"].transform("max")]
    alone = rows[rows["efficiency"].isna()]
    if not alone.empty:
        raise Inconclusive(f"no completed 1-rank run to compare with for {listed(alone['run'])}")
    return rows.rename(columns={"efficiency": "value"})

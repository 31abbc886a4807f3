"""Traffic with one partitioner against traffic with another."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from anatomy.observations.common.evidence import CONFIGURATION, Inconclusive, chosen, paired
from anatomy.words import listed


def volume_ratios(table: pd.DataFrame, options: Mapping[str, Any], method: str, kinds: Sequence[str]) -> pd.DataFrame:
    """One row per pair of runs: bytes of the given kinds with the option `partitioner` over those with the `baseline`.

    `table` is the study table `volume`; the rows keep the configuration, with the partitioner's name.

    Raises Inconclusive where a run or its counterpart is missing.
    """
    rows = chosen(table, options, min_ranks=2, method=method)
    rows = rows[rows["kind"].isin(kinds)]
    measured = rows.groupby(["run", *CONFIGURATION, "seed"], as_index=False, dropna=False)[
        "measured_bytes_per_epoch"
    ].agg(lambda sent: sent.sum(min_count=len(kinds)))
    missing = measured[measured["measured_bytes_per_epoch"].isna()]
    if not missing.empty:
        raise Inconclusive(f"no measured bytes of {' and '.join(kinds)} for {listed(missing['run'])}")
    pairs = paired(measured, "partitioner", options["partitioner"], options["baseline"], "measured_bytes_per_epoch")
    return pairs.assign(partitioner=options["partitioner"])

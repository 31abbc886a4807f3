"""Preparation of mini-batches beside that of the plain strategy: what several observations are judged on."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.evidence import Inconclusive, by_configuration, chosen, paired


def ratios(table: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per pair of runs: exposed preparation of a step with the strategy, over that with the baseline.

    Raises Inconclusive where a run was not profiled.
    """
    rows = chosen(table, options, timed=True, min_ranks=2)
    rows = rows[rows["strategy"].isin([options["strategy"], options["baseline"]])]
    if rows["preparation_s_per_step"].isna().any():
        raise Inconclusive("some of the runs were not profiled")
    pairs = paired(rows, "strategy", options["strategy"], options["baseline"], "preparation_s_per_step")
    return pairs.assign(strategy=options["strategy"])


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Ratio by configuration; by strategy a step's milliseconds by phase, epoch time, hits, bytes, memory."""
    rows = chosen(table, options, timed=True, min_ranks=2)
    means = rows.groupby("strategy").mean(numeric_only=True)
    phases = {name: f"{name}_s_per_step" for name in ("sample", "fetch", "gather", "copy", "preparation")}
    return {
        "ratio_by_configuration": by_configuration(ratios(table, options)),
        "milliseconds_per_step_by_strategy": {
            strategy: {name: 1000 * float(row[column]) for name, column in phases.items() if pd.notna(row[column])}
            for strategy, row in means.iterrows()
        },
        "epoch_s_by_strategy": _present(means["epoch_s"]),
        "hit_rate_by_strategy": _present(means["hit_rate"]),
        "saved_bytes_per_epoch_by_strategy": _present(means["saved_bytes_per_epoch"]),
        "cache_bytes_by_strategy": _present(means["cache_bytes"]),
    }


def _present(column: pd.Series) -> dict[str, float]:
    return {strategy: float(value) for strategy, value in column.dropna().items()}

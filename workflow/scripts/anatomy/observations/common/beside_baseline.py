"""What observations on the table `strategies` share: runs that were compared with plain full-graph training."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.evidence import Inconclusive, chosen
from anatomy.words import listed


def compared(table: pd.DataFrame, options: Mapping[str, Any], measure: str, **choice: Any) -> pd.DataFrame:
    """One row per run on several ranks that has a baseline; `value` is its `measure`.

    `choice` is what `evidence.chosen` takes beside `min_ranks`.

    Raises NoVerdict as that does, and Inconclusive where a run has no baseline or no measure.
    """
    rows = chosen(table, options, min_ranks=2, **choice)
    alone = rows[rows["baseline_run"].isna()]
    if not alone.empty:
        raise Inconclusive(f"no completed baseline of the same graph, model, ranks and seed for {listed(alone['run'])}")
    return with_value(rows, measure)


def with_value(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """`rows` whose `value` is their `measure`. Raises Inconclusive where a run has none."""
    unknown = rows[rows[measure].isna()]
    if not unknown.empty:
        raise Inconclusive(f"{measure} is missing for {listed(unknown['run'])}")
    return rows.assign(value=rows[measure])


def pipelines(table: pd.DataFrame, min_layers: int = 1) -> pd.DataFrame:
    """`table` with two more columns: `chunks_per_stage`, and `deep`, whether the model has `min_layers` or more;
    missing for a run that failed and does not tell."""
    return table.assign(chunks_per_stage=table["chunks"] / table["stages"], deep=table["num_layers"] >= min_layers)


def means(rows: pd.DataFrame, measure: str, *columns: str) -> dict[str, float]:
    """Mean of `measure`, where it is known, by the values of columns: `bns`, `2 ranks`, `bns, 2 ranks`, …"""
    groups = rows.dropna(subset=[measure]).groupby(list(columns))[measure]
    return {
        ", ".join(
            part if isinstance(part, str) else f"{part:g} {column.removeprefix('num_')}"
            for column, part in zip(columns, key, strict=True)
        ): float(values.mean())
        for key, values in groups
    }


def by_strategy(rows: pd.DataFrame, name: str) -> dict[str, dict[str, float]]:
    """Notes that every comparison has: mean `value`, called `name`, by strategy, and by strategy and ranks."""
    return {
        f"{name}_by_strategy": means(rows, "value", "strategy"),
        f"{name}_by_strategy_and_ranks": means(rows, "value", "strategy", "ranks"),
    }

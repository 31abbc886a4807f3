"""From the rows of a study table to one value per repetition, or to the reason why there is none.

A repetition is a seed. Where a table has several configurations (graph, partitioner, strategy, model, ranks), a claim
is about each of them, so a repetition's value is that of the configuration that speaks against the claim most.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from anatomy.words import listed

CONFIGURATION = ("graph", "partitioner", "num_parts", "strategy", "model", "ranks", "hosts", "link_mbit", "condition")
"""Columns that tell apart runs that are no repetitions of each other; `link_mbit` is missing for links as they are, and
`condition` for a machine that nothing disturbs."""

WHERE_MISSING = {"link_mbit": "unshaped", "condition": "undisturbed"}
"""What a missing value means, by column of the configuration."""

COMPLETED = "completed"


class NoVerdict(Exception):
    """The data cannot decide the claim; the message says why."""


class Inconclusive(NoVerdict):
    """More or other runs on the same machine could decide it."""


class Absent(Inconclusive):
    """There is no run that the claim is about: not measured yet, or left out where it cannot be."""


class NotMeasurable(NoVerdict):
    """This machine cannot decide it."""


@dataclass(frozen=True)
class Repetitions:
    """The values that decide a claim.

    `values` is indexed by seed. `at_least` and `at_most` are seeds whose value is only known to be at least, or at
    most, the one given (censored). `runs` are the runs that the values come from.
    """

    values: pd.Series
    runs: tuple[str, ...]
    at_least: frozenset[int] = frozenset()
    at_most: frozenset[int] = frozenset()


def chosen(
    table: pd.DataFrame, options: Mapping[str, Any], *, min_ranks: int = 1, timed: bool = False, **fixed: Any
) -> pd.DataFrame:
    """Rows of completed runs that the claim is about: `fixed` columns and the option `where` have the given values.

    Where a value is a list, a column may have any of its values; where it is None, it has none.

    Traces that were recorded elsewhere are no repetition of anything, since they have no seed: they are left out.

    With `timed`, runs with more workers than cores or GPUs are left out: their times decide nothing.

    Raises Absent where nothing is left, Inconclusive where a run has no numbers or the runs are of several platforms,
    and NotMeasurable where all that is left is oversubscribed.
    """
    wanted = fixed | options.get("where", {})
    unknown = [column for column in wanted if column not in table]
    if unknown:
        raise Inconclusive(f"the table has no column {unknown[0]!r} to choose by; its columns are {', '.join(table)}")
    rows = table[(table["ranks"] >= min_ranks) & table["seed"].notna()]
    for column, value in wanted.items():
        fits = _fits(rows[column], value)
        if column not in CONFIGURATION:
            # A run that failed has no phases, kinds or caches to choose by; it must not drop out of sight for that.
            fits |= rows[column].isna() & (rows["status"] != COMPLETED)
        rows = rows[fits]
    if rows.empty:
        described = [
            f"{column} = {' or '.join(map(str, value)) if isinstance(value, list) else value}"
            for column, value in wanted.items()
        ]
        raise Absent(f"no run with {' and '.join([*described, f'at least {min_ranks} ranks'])} in the table")
    return _sound(_undisturbed(rows) if timed else rows)


def _fits(column: pd.Series, value: Any) -> pd.Series:
    if value is None:
        return column.isna()
    return column.isin(value) if isinstance(value, list) else (column == value).fillna(False)


def _undisturbed(rows: pd.DataFrame) -> pd.DataFrame:
    left = rows[~rows["oversubscribed"].fillna(False).astype(bool)]
    if left.empty:
        raise NotMeasurable(f"already {rows['ranks'].min()} ranks are more than this machine has cores or GPUs for")
    return left


def _sound(rows: pd.DataFrame) -> pd.DataFrame:
    failed = rows[rows["status"] != COMPLETED]
    if not failed.empty:
        raise Inconclusive(f"runs without numbers: {listed(failed['run'] + ' (' + failed['status'] + ')')}")
    platforms = sorted(rows["platform"].unique())
    if len(platforms) > 1:
        raise Inconclusive(
            f"runs of several platforms ({', '.join(platforms)}), which are never compared; choose one by `where`"
        )
    return rows


def per_run(rows: pd.DataFrame, numerator: str, denominator: str) -> pd.DataFrame:
    """One row per run: its configuration, its seed, and `value`, the ratio of two columns' sums over its rows.

    Raises Inconclusive where a run lacks a number.
    """
    keys = ["run", *CONFIGURATION, "seed"]
    incomplete = rows[rows[[numerator, denominator]].isna().any(axis=1)]
    if not incomplete.empty:
        raise Inconclusive(f"{numerator} or {denominator} is missing for {listed(incomplete['run'].unique())}")
    sums = rows.groupby(keys, as_index=False, dropna=False)[[numerator, denominator]].sum()
    if (sums[denominator] == 0).any():
        empty = sums.loc[sums[denominator] == 0, "run"]
        raise Inconclusive(f"{denominator} is 0 for {listed(empty)}")
    return sums.assign(value=sums[numerator] / sums[denominator])


def paired(
    rows: pd.DataFrame, column: str, value: str, baseline: str, measure: str, pairs: Sequence[str] = ()
) -> pd.DataFrame:
    """One row per pair of runs that differ in `column` alone: `value` is `measure` of one over that of the `baseline`.

    `pairs` are the columns in which the two agree, by default the configuration without `column`; the seed is always
    one of them. The row keeps both runs, as `run` and `baseline_run`.

    Raises Inconclusive where one of the two has no counterpart.
    """
    keys = [*(pairs or [name for name in CONFIGURATION if name != column]), "seed"]
    needed = [*keys, "run", measure]
    ours, theirs = (rows.loc[rows[column] == name, needed] for name in (value, baseline))
    for found, name in ((ours, value), (theirs, baseline)):
        if found.empty:
            raise Inconclusive(f"no run with {column} = {name} to compare")
    both = ours.merge(
        theirs.rename(columns={"run": "baseline_run"}), on=keys, how="outer", suffixes=("", "_of_baseline")
    )
    alone = both[both[["run", "baseline_run"]].isna().any(axis=1)]
    if not alone.empty:
        raise Inconclusive(f"no counterpart for {listed(alone['run'].fillna(alone['baseline_run']))}")
    if (both[f"{measure}_of_baseline"] == 0).any():
        raise Inconclusive(f"{measure} of {column} = {baseline} is 0")
    return both.assign(value=both[measure] / both[f"{measure}_of_baseline"])


def repetitions(runs: pd.DataFrame, direction: str, configuration: Iterable[str] = CONFIGURATION) -> Repetitions:
    """One value per seed from one row per run, with columns `value`, `seed`, `run` and the configuration.

    A seed's value is that of the configuration which speaks against the claim most: the smallest where `direction` is
    `>`, else the largest.

    Raises Inconclusive where a configuration lacks a seed that another has.
    """
    by_configuration = runs.groupby(list(configuration), dropna=False)["seed"].agg(set)
    seeds = set().union(*by_configuration)
    lacking = by_configuration[by_configuration != seeds]
    if not lacking.empty:
        names = [_name(key, by_configuration.index.names) for key in lacking.index]
        raise Inconclusive(
            f"seeds differ between configurations; some of {sorted(seeds)} are missing for {listed(names)}"
        )
    groups = runs.groupby("seed")["value"]
    values = groups.min() if direction == ">" else groups.max()
    named = [column for column in ("run", "baseline_run") if column in runs]
    return Repetitions(values.astype("float64"), tuple(sorted(set(runs[named].stack()))))


def by_configuration(runs: pd.DataFrame, configuration: Sequence[str] = CONFIGURATION) -> dict[str, float]:
    """Mean of `value` over seeds for each configuration, under a name made of what tells the configurations apart."""
    varying = [name for name in configuration if runs[name].nunique(dropna=False) > 1] or [configuration[0]]
    means = runs.groupby(varying, dropna=False)["value"].mean()
    return {_name(key, varying): float(mean) for key, mean in means.items()}


def _name(configuration: Any, columns: Sequence[str]) -> str:
    """The values of columns in a line; only those in `WHERE_MISSING` may be missing."""
    parts = configuration if isinstance(configuration, tuple) else (configuration,)
    return " ".join(
        WHERE_MISSING[column] if pd.isna(part) else str(part) for column, part in zip(columns, parts, strict=True)
    )

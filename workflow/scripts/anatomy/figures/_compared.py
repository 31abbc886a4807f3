"""What figures of the table `strategies` share: panels in which every run has one and the same baseline."""

import pandas as pd

from anatomy.figures._summary import labelled

BESIDES = ("model", "ranks", "hosts", "link_mbit", "condition")
"""What a run and its baseline have in common beside graph and platform."""


def by_baseline(table: pd.DataFrame) -> pd.DataFrame:
    """`labelled`, with a panel of its own for each model, number of ranks and hosts, bandwidth of links, and condition.

    The column `is_baseline` says which rows are runs that others are compared with.
    """
    table = table.assign(is_baseline=table["run"].isin(table["baseline_run"].dropna()))
    known = table["graph"].notna()
    groups = [part for _, part in table[known].groupby(list(BESIDES), dropna=False)]
    groups += [table[~known]] if (~known).any() or not groups else []
    return pd.concat([labelled(group) for group in groups], ignore_index=True)

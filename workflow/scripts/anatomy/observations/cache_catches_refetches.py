"""Would a small cache of remote features spare most fetches?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.evidence import Repetitions, by_configuration, chosen, per_run, repetitions

CLAIM = "A cache of the 10% of nodes with the highest degree holds more than half of the remote features asked for."
SOURCE = (
    "PaGraph (Lin et al., SoCC 2020): a static cache by out-degree catches most feature loads of neighbour sampling"
)
TABLE = "cache"
FIGURE = "cache"
STATISTIC = "hits over accesses, all ranks and steps of the last epoch; the configuration with the smallest"
UNIT = "hit rate"
DIRECTION = ">"
THRESHOLD = 0.5
OPTIONS = {
    "properties": {
        "policy": {
            "type": "string",
            "enum": ["degree", "accesses"],
            "default": "degree",
            "description": "What the cache is filled with.",
        },
        "capacity_share": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 1,
            "default": 0.1,
            "description": "Size of each rank's cache as a share of the graph's nodes, one of the table's.",
        },
    },
    "required": [],
}


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One hit rate per seed, from the table `cache`."""
    return repetitions(_hit_rates(table, options), DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Hit rate by configuration, by policy and size, and the share of accesses that ask for a node again."""
    rows = chosen(table, options)
    by_size = rows.dropna(subset=["hits"]).groupby(["policy", "capacity_share"])[["hits", "accesses"]].sum()
    rates = by_size["hits"] / by_size["accesses"]
    once = rows.drop_duplicates(["run", "rank"])
    return {
        "hit_rate_by_configuration": by_configuration(_hit_rates(table, options)),
        "hit_rate_by_policy_and_share": {f"{policy} {share:g}": float(rate) for (policy, share), rate in rates.items()},
        "repeated_share": float(1 - once["distinct"].sum() / once["accesses"].sum()),
    }


def _hit_rates(table: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    rows = chosen(table, options, policy=options["policy"], capacity_share=options["capacity_share"])
    return per_run(rows, "hits", "accesses")

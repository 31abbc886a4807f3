"""How often a cache of remote features would be hit."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from anatomy.files import open_array
from anatomy.graphs.popularity import heaviest_first, out_degrees
from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import Study, StudyRun

SUMMARY = (
    "hit rate of a static cache of remote features in the last epoch of mini-batch runs, by size and by what it is "
    "filled with; runs without remote features (one rank, full-graph) have no rows"
)
INPUTS = ("partition", "graph")
OPTIONS = {
    "properties": {
        "capacity_shares": {
            "type": "array",
            "items": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            "minItems": 1,
            "uniqueItems": True,
            "default": [0.01, 0.05, 0.1, 0.2],
            "description": "Cache sizes, as shares of the graph's nodes.",
        }
    },
    "required": [],
}
KEY = ("run", "rank", "policy", "capacity_share")
POLICIES = ("degree", "accesses")
_ROUNDING = 1e-9
"""Keeps 0.29 of 100 nodes from being 28, since 0.29 * 100 is a little less than 29 in floating point."""
COLUMNS = RUN_COLUMNS | {
    "rank": Column("Int64", "", "rank whose cache this is"),
    "policy": Column(
        "string",
        "",
        "what the cache is filled with before the epoch: degree = remote nodes that most nodes aggregate; accesses "
        "= remote nodes asked for most often in the epoch before; ties go to the smaller node id",
    ),
    "capacity_share": Column("Float64", "", "size of one rank's cache as a share of the graph's nodes"),
    "capacity_nodes": Column("Int64", "nodes", "the same in nodes, rounded down"),
    "accesses": Column("Int64", "", "remote feature rows the rank asked for in its last epoch, all steps"),
    "distinct": Column("Int64", "nodes", "different nodes among them"),
    "repeated_share": Column("Float64", "", "share of the accesses that ask for a node again: 1 - distinct / accesses"),
    "hits": Column("Int64", "", "accesses whose node is in the cache"),
    "hit_rate": Column("Float64", "", "hits / accesses; missing where the policy needs an epoch that was not recorded"),
}


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run, rank, policy and size; a run that failed is one row without numbers."""
    rows: list[dict[str, Any]] = []
    for run in study.runs:
        rows += _rates(run, options["capacity_shares"]) if run.completed else [run.columns]
    return as_frame(rows, COLUMNS)


def _rates(run: StudyRun, capacity_shares: list[float]) -> Iterator[dict[str, Any]]:
    if run.accesses.empty:
        return
    degree = out_degrees(open_array(run.graph_folder, "indices", run.graph), run.graph["num_nodes"])
    last = run.accesses["epoch"].max()
    for rank, accesses in run.accesses.groupby("rank"):
        remote = np.flatnonzero(run.partition.assignment != rank)
        counts = accesses.loc[accesses["epoch"] == last, ["node", "count"]].astype("int64").to_numpy()
        before = accesses.loc[accesses["epoch"] == last - 1, ["node", "count"]].astype("int64").to_numpy()
        fillings = {
            "degree": heaviest_first(remote, degree[remote]),
            "accesses": heaviest_first(before[:, 0], before[:, 1]) if len(before) else None,
        }
        total, distinct = int(counts[:, 1].sum()), len(counts)
        for policy, share in ((policy, share) for policy in POLICIES for share in capacity_shares):
            capacity = int(share * len(degree) + _ROUNDING)
            row = {"rank": rank, "policy": policy, "capacity_share": share, "capacity_nodes": capacity}
            row |= {"accesses": total, "distinct": distinct}
            if total:
                row["repeated_share"] = 1 - distinct / total
            if total and fillings[policy] is not None:
                hits = int(counts[np.isin(counts[:, 0], fillings[policy][:capacity]), 1].sum())
                row |= {"hits": hits, "hit_rate": hits / total}
            yield run.columns | row

"""How good each partition is, and what making it cost."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.errors import StudyError
from anatomy.tables.common.columns import Column, as_frame
from anatomy.tables.common.inputs import Partition, Study

SUMMARY = "quality of every partition, recomputed from the graph's edges, and the cost of making it"
INPUTS = ("partition",)
OPTIONS = {"properties": {}, "required": []}
KEY = ("graph", "partitioner", "num_parts")
_TOTALS = {
    "edge_cut": Column("Int64", "", "distinct unordered pairs of adjacent nodes in different parts"),
    "cut_entries": Column("Int64", "", "stored edges between different parts, each direction counted"),
    "communication_volume": Column(
        "Int64", "nodes", "halo nodes summed over parts: node vectors one exchange must move"
    ),
    "replication_factor": Column("Float64", "", "(nodes + communication volume) / nodes"),
    "balance_nodes": Column("Float64", "", "nodes of the largest part over the mean"),
    "balance_edges": Column("Float64", "", "stored in-edges of the largest part over the mean"),
    "balance_train": Column("Float64", "", "training nodes of the largest part over the mean"),
    "components": Column("Int64", "", "connected components inside parts, summed over parts"),
}
_VERTEX_CUT = {
    "mirrors": Column("Int64", "nodes", "of a vertex cut: replicas of nodes beside their roots, over all parts"),
    "replicas_per_node": Column("Float64", "", "of a vertex cut: parts that hold an edge of a node, mean over nodes"),
    "balance_held_edges": Column("Float64", "", "of a vertex cut: edges of the part that holds most, over the mean"),
    "balance_replicas": Column("Float64", "", "of a vertex cut: replicas of the part with most, over the mean"),
}
_STORED_AS = {"replicas_per_node": "replication_factor", "balance_held_edges": "balance_edges"}
"""What `partition.json` calls these of a vertex cut, where its total has something else of that name."""
_HOSTS = {
    "num_hosts": Column("Int64", "", "hosts that the partitioner knew of; missing where it knew of none"),
    "ranks_per_host": Column("Int64", "", "parts that share each of these hosts; the last may have fewer"),
    "edge_cut_between": Column("Int64", "", "of the edge cut, pairs of nodes on different hosts"),
    "communication_volume_between": Column("Int64", "nodes", "of the communication volume, halo nodes of other hosts"),
    "balance_hosts": Column("Float64", "", "most nodes that a host has for each of its parts, over the mean of all"),
}
COLUMNS = {
    "graph": Column("string", "", "graph that is partitioned"),
    "partitioner": Column("string", "", "partitioner, as named in the config"),
    "method": Column("string", "", "method of the partitioner: metis, libra, …; `single` for one part"),
    "num_parts": Column("Int64", "", "parts"),
    "num_nodes": Column("Int64", "", "nodes of the graph"),
    **_TOTALS,
    **_VERTEX_CUT,
    **_HOSTS,
    "seconds": Column("Float64", "s", "time to partition, measure and write"),
    "peak_memory_bytes": Column("Int64", "B", "largest resident memory of the process that did"),
}


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per partition that was named, or that a named run trains on."""
    named = [_named(study, name) for name in study.partitions]
    found = {partition.folder: partition for partition in [*named, *(run.partition for run in study.runs)]}
    return as_frame([_row(partition) for partition in found.values()], COLUMNS)


def _named(study: Study, name: str) -> Partition:
    if name.count("/") != 1:
        raise StudyError(
            f"--partition {name!r}: expected GRAPH/PARTITIONER-PARTS, such as powerlaw/metis-2; correct it"
        )
    return Partition(study.results / "partitions" / name)


def _row(partition: Partition) -> dict[str, Any]:
    manifest = partition.manifest
    row = {name: manifest[name] for name in COLUMNS if name in manifest}
    cut, hosts = manifest.get("vertex_cut"), manifest.get("hosts")
    row |= {name: manifest["total"][name] for name in _TOTALS}
    row |= {name: cut[_STORED_AS.get(name, name)] for name in _VERTEX_CUT} if cut else {}
    return row | ({name: hosts[name] for name in _HOSTS} if hosts else {})

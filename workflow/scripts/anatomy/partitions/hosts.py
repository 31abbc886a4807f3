"""What of a cut lies between hosts, where consecutive parts share one."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from anatomy.graphs.store import Graph
from anatomy.partitions.quality import CutEdges


def measure_hosts(
    graph: Graph, assignment: np.ndarray, quality: Mapping[str, Any], ranks_per_host: int
) -> dict[str, Any]:
    """Cut and communication volume between and within hosts, recomputed from the stored edges.

    `assignment` is int32 [num_nodes], `quality` what `measure` says of it; part p is on host p // ranks_per_host.
    Between and within add up to the totals. `balance_hosts` is the most nodes that a host has for each of its ranks,
    over the mean of all ranks.
    """
    total, halo_matrix = quality["total"], np.array(quality["halo_matrix"])
    num_parts = len(halo_matrix)
    host = np.arange(num_parts) // ranks_per_host
    apart = host[:, None] != host
    between = CutEdges(graph, host[assignment])
    cut_between, volume_between = between.count_pairs(), int(halo_matrix[apart].sum())
    nodes_per_rank = np.bincount(host[assignment], minlength=host[-1] + 1) / np.bincount(host)
    return {
        "ranks_per_host": ranks_per_host,
        "num_hosts": int(host[-1]) + 1,
        "edge_cut_between": cut_between,
        "edge_cut_within": total["edge_cut"] - cut_between,
        "cut_entries_between": between.num_entries,
        "cut_entries_within": total["cut_entries"] - between.num_entries,
        "communication_volume_between": volume_between,
        "communication_volume_within": total["communication_volume"] - volume_between,
        "balance_hosts": float(nodes_per_rank.max() * num_parts / graph.num_nodes),
    }

"""`hierarchical`: METIS at two levels, first one piece for each host, then within it one part for each of its ranks.

Hosts are connected more slowly than the ranks within one, so the cut between hosts comes first. Parts are numbered so
that those of a host follow each other, as ranks are placed one host after the other (SLURM's `--distribution=block`);
where hosts are not full, the last one has fewer ranks and a smaller piece. Each level is balanced by itself: a host
may exceed its share of the nodes by `imbalance`, and a part that of its host. With all ranks on one host, or one on
each, the partition is that of `metis`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from anatomy.graphs.store import Graph
from anatomy.partitions.methods import metis

SUMMARY = "METIS at two levels: hosts, then the ranks of each host"
PACKAGES = ("pymetis",)
OPTIONS = {
    "properties": {
        "ranks_per_host": {
            "type": "integer",
            "minimum": 1,
            "description": "Parts that share a host; that of the runs which train on the partition.",
        },
        "imbalance": {
            "type": "number",
            "minimum": 0.001,
            "maximum": 1,
            "default": 0.03,
            "description": "How far a host may exceed its share of the nodes, and a part its share of the host's.",
        },
        "balance_train": {
            "type": "boolean",
            "default": False,
            "description": "Balance training nodes and other nodes each to that imbalance; cuts more edges.",
        },
        "objective": {
            "type": "string",
            "enum": ["cut", "volume"],
            "default": "cut",
            "description": "What METIS keeps low at each level: edges between parts, or nodes needed from others.",
        },
        "attempts": {
            "type": "integer",
            "minimum": 1,
            "maximum": 1000,
            "description": "Seeds that METIS is run with at each cut, of which the best is kept; as with `metis`.",
        },
    },
    "required": ["ranks_per_host"],
}


def assign(graph: Graph, num_parts: int, options: Mapping[str, Any]) -> np.ndarray:
    """The part of each node, int32 [num_nodes]; a part is empty only where a host got fewer nodes than it has ranks.

    Raises StudyError, naming graph and number of parts, where METIS does not end well.
    """
    return metis.assign(graph, num_parts, options)

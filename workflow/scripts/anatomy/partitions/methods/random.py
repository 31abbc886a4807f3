"""`random`: nodes dealt to the parts in random order, so that sizes differ by one at most."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from anatomy.graphs.store import Graph
from anatomy.partitions.balance import groups_of

SUMMARY = "nodes dealt to the parts in random order, equally many to each"
PACKAGES = ()
OPTIONS = {
    "properties": {
        "balance_train": {
            "type": "boolean",
            "default": False,
            "description": "Deal the training nodes first, so that each part has equally many of them.",
        }
    },
    "required": [],
}


def assign(graph: Graph, num_parts: int, options: Mapping[str, Any]) -> np.ndarray:
    """The part of each node, int32 [num_nodes]."""
    order = np.random.default_rng(options["seed"]).permutation(graph.num_nodes)
    if options["balance_train"]:
        order = order[np.argsort(-groups_of(graph)[order], kind="stable")]
    assignment = np.empty(graph.num_nodes, dtype=np.int32)
    assignment[order] = np.arange(graph.num_nodes) % num_parts
    return assignment

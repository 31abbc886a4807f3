"""`ldg`: linear deterministic greedy, one pass over a stream of nodes.

Stanton & Kliot, "Streaming graph partitioning for large distributed graphs", KDD 2012. Each node goes to the part that
holds most of its neighbours so far, weighted by the room that is left in it: neighbours * (1 - size / capacity). Equal
scores go to the smaller part, then to the lower number.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from anatomy.graphs.store import Graph
from anatomy.partitions.adjacency import canonical
from anatomy.partitions.balance import groups_of

SUMMARY = "linear deterministic greedy: one streaming pass, each node to where most of its neighbours are"
PACKAGES = ("numba",)
OPTIONS = {
    "properties": {
        "imbalance": {
            "type": "number",
            "minimum": 0,
            "maximum": 1,
            "default": 0.03,
            "description": "How far a part may exceed the mean number of nodes, as a share of it.",
        },
        "order": {
            "type": "string",
            "enum": ["random", "natural"],
            "default": "random",
            "description": "Order of the stream: shuffled by the seed, or by node id.",
        },
        "balance_train": {
            "type": "boolean",
            "default": False,
            "description": "Give training nodes and other nodes each their own capacity, of the same imbalance.",
        },
    },
    "required": [],
}


def assign(graph: Graph, num_parts: int, options: Mapping[str, Any]) -> np.ndarray:
    """The part of each node, int32 [num_nodes]; a part may stay empty where its neighbours' parts have room."""
    num_nodes = graph.num_nodes
    group = groups_of(graph) if options["balance_train"] else np.zeros(num_nodes, dtype=np.int8)
    capacity = np.array(
        [max(1, math.ceil((1 + options["imbalance"]) * count / num_parts)) for count in np.bincount(group)],
        dtype=np.int64,
    )
    order = np.arange(num_nodes)
    if options["order"] == "random":
        order = np.random.default_rng(options["seed"]).permutation(num_nodes)
    return _compiled_stream()(*canonical(graph.indptr, graph.indices), order, group, capacity, num_parts)


@functools.cache
def _compiled_stream() -> Callable[..., np.ndarray]:
    """`_stream` as machine code; numba is loaded only when it is needed."""
    import numba

    return numba.njit(_stream)


def _stream(
    indptr: np.ndarray, indices: np.ndarray, order: np.ndarray, group: np.ndarray, capacity: np.ndarray, num_parts: int
) -> np.ndarray:
    """Place the nodes in `order`; a part is full for a group when it holds that group's `capacity` of nodes."""
    assignment = np.full(len(order), -1, dtype=np.int32)
    sizes = np.zeros((len(capacity), num_parts), dtype=np.int64)
    for node in order:
        neighbours = np.zeros(num_parts, dtype=np.int64)
        for entry in range(indptr[node], indptr[node + 1]):
            part = assignment[indices[entry]]
            if part >= 0:
                neighbours[part] += 1
        own, full = sizes[group[node]], capacity[group[node]]
        best, best_score = -1, -1.0
        for part in range(num_parts):
            if own[part] < full:
                score = neighbours[part] * (1.0 - own[part] / full)
                if score > best_score or (score == best_score and own[part] < own[best]):
                    best, best_score = part, score
        assignment[node] = best
        own[best] += 1
    return assignment

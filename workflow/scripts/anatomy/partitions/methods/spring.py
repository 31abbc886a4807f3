"""`spring`: clusters from a stream of edges, merged towards nodes of high degree and dealt to the parts.

SPRING is the partitioner of CATGNN (Huang et al., "CATGNN: cost-efficient and scalable distributed training for graph
neural networks", arXiv 2404.02300). It reads the edges as a stream and keeps nothing of them: memory grows with the
nodes only. Degrees are counted in a first pass. Then:

1. Cluster, as Hollocou et al. do ("A streaming algorithm for graph clustering", arXiv 1712.04337). Every node begins
   as a cluster of its own. When an edge joins two clusters whose volumes, the sums of their nodes' degrees, both are
   within the limit, the node in the one of smaller volume moves over to the other. In the same pass each node remembers
   its richest neighbour: the one of highest degree.
2. Merge. From the smallest up, each cluster joins that of the richest among its members' richest neighbours.
3. Deal the clusters to the parts, each to the part with the fewest nodes.

Where that leaves a choice, it is made so: a cluster looks only at richest neighbours outside of it, and whose cluster
has room for it, until no cluster joins another any more; no merged cluster exceeds what a part may hold; the largest
clusters are dealt first, and one that fits nowhere is divided by node id, so that no part exceeds its limit. The limit
of a cluster's volume, a tenth of what the mean part has, is that of the authors' published program. Edges are taken
without direction; they come node by node, in the order of the store, so that nothing is drawn at random.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from anatomy.graphs.store import Graph
from anatomy.partitions.adjacency import degrees, entry_blocks

SUMMARY = "SPRING: clusters of a stream of edges by degree and volume, merged and dealt to the parts"
PACKAGES = ("numba",)
OPTIONS = {
    "properties": {
        "imbalance": {
            "type": "number",
            "minimum": 0,
            "maximum": 1,
            "default": 0.05,
            "description": "How far a part may exceed the mean number of nodes, as a share of it.",
        },
        "volume": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 1,
            "default": 0.1,
            "description": (
                "Sum of degrees beyond which a cluster neither gains nor loses nodes, as a share of the mean part's."
            ),
        },
        "passes": {
            "type": "integer",
            "minimum": 1,
            "maximum": 100,
            "default": 1,
            "description": "How often the edges are streamed to cluster the nodes.",
        },
    },
    "required": [],
}


def assign(graph: Graph, num_parts: int, options: Mapping[str, Any]) -> np.ndarray:
    """The part of each node, int32 [num_nodes]; a part may stay empty where a few clusters hold all nodes."""
    mean = graph.num_nodes / num_parts
    capacity = max(math.ceil(mean), math.floor((1 + options["imbalance"]) * mean))
    degree = degrees(graph.indptr, graph.indices)
    cluster, richest = _clusters(graph, degree, options["volume"] * 2 * graph.num_edges / num_parts, options["passes"])
    return _deal(_merged(cluster, richest, degree, capacity), num_parts, capacity)


def _clusters(graph: Graph, degree: np.ndarray, limit: float, passes: int) -> tuple[np.ndarray, np.ndarray]:
    """Each node's cluster, named by one of the nodes, and its richest neighbour, or -1; both int64 [num_nodes]."""
    cluster, volume = np.arange(graph.num_nodes), degree.copy()
    richest = np.full(graph.num_nodes, -1, dtype=np.int64)
    for _ in range(passes):
        for targets, sources in entry_blocks(graph.indptr, graph.indices):
            _compiled(_stream)(targets, sources, degree, limit, cluster, volume, richest)
    return cluster, richest


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of this file as machine code; numba is loaded only when it is needed."""
    import numba

    return numba.njit(function)


def _stream(
    targets: np.ndarray,
    sources: np.ndarray,
    degree: np.ndarray,
    limit: float,
    cluster: np.ndarray,
    volume: np.ndarray,
    richest: np.ndarray,
) -> None:
    """Take a block of edges into the clusters, their volumes and the richest neighbours, in place."""
    for position in range(len(targets)):
        one, two = targets[position], sources[position]
        if one == two:
            continue
        if richest[one] < 0 or degree[two] > degree[richest[one]]:
            richest[one] = two
        if richest[two] < 0 or degree[one] > degree[richest[two]]:
            richest[two] = one
        here, there = cluster[one], cluster[two]
        if here == there or volume[here] > limit or volume[there] > limit:
            continue
        if volume[here] <= volume[there]:
            cluster[one] = there
            volume[here] -= degree[one]
            volume[there] += degree[one]
        else:
            cluster[two] = here
            volume[there] -= degree[two]
            volume[here] += degree[two]


def _merged(cluster: np.ndarray, richest: np.ndarray, degree: np.ndarray, capacity: int) -> np.ndarray:
    """The clusters, numbered from 0, once none has a richest neighbour in another one that has room for it."""
    merged = True
    while merged:
        _, cluster = np.unique(cluster, return_inverse=True)
        sizes = np.bincount(cluster)
        members, starts = np.argsort(cluster, kind="stable"), np.cumsum(sizes) - sizes
        rising = np.argsort(sizes, kind="stable")
        joined = _compiled(_merge)(cluster, richest, degree, rising, members, starts, sizes, capacity)
        merged = bool(np.any(joined != np.arange(len(joined))))
        cluster = joined[cluster]
    return cluster


def _merge(
    cluster: np.ndarray,
    richest: np.ndarray,
    degree: np.ndarray,
    rising: np.ndarray,
    members: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    capacity: int,
) -> np.ndarray:
    """Let each cluster join another once, in the order `rising`; returns the cluster that each is then a part of."""
    ends = starts + sizes
    joined = np.arange(len(sizes))
    for own in rising:
        best, best_degree = -1, -1
        for position in range(starts[own], ends[own]):
            neighbour = richest[members[position]]
            if neighbour < 0 or degree[neighbour] <= best_degree:
                continue
            other = cluster[neighbour]
            while joined[other] != other:
                joined[other] = joined[joined[other]]
                other = joined[other]
            if other != own and sizes[other] + sizes[own] <= capacity:
                best, best_degree = other, degree[neighbour]
        if best >= 0:
            joined[own] = best
            sizes[best] += sizes[own]
    for own in range(len(joined)):
        while joined[joined[own]] != joined[own]:
            joined[own] = joined[joined[own]]
    return joined


def _deal(cluster: np.ndarray, num_parts: int, capacity: int) -> np.ndarray:
    """The part of each node, int32 [num_nodes], of which no part has more than `capacity`."""
    sizes = np.bincount(cluster)
    members, ends = np.argsort(cluster, kind="stable"), np.cumsum(sizes)
    assignment = np.empty(len(cluster), dtype=np.int32)
    room = np.full(num_parts, capacity)
    for number in np.argsort(-sizes, kind="stable"):
        left = members[ends[number] - sizes[number] : ends[number]]
        while len(left):
            part = int(room.argmax())
            placed, left = left[: room[part]], left[room[part] :]
            assignment[placed] = part
            room[part] -= len(placed)
    return assignment

"""Vertex cuts: each stored edge has a part, and a node has a replica in every part that holds one of its edges.

One of a node's replicas is its root, in the part that the node is assigned to; the others are mirrors (masters and
mirrors in Gonzalez et al., "PowerGraph", OSDI 2012; roots and leaves in Md et al., "DistGNN", SC 2021).
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from anatomy.graphs.store import Graph
from anatomy.partitions.adjacency import entry_blocks
from anatomy.partitions.needs import lists_by_pair, tables
from anatomy.partitions.quality import balance


def held_blocks(graph: Graph, edge_assignment: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Blocks of (parts, nodes): both ends of every stored edge, with the part that holds it."""
    start = 0
    for targets, sources in entry_blocks(graph.indptr, graph.indices):
        parts = np.asarray(edge_assignment[start : start + len(targets)])
        start += len(targets)
        yield np.concatenate([parts, parts]), np.concatenate([targets, sources])


def replicas_of_edges(graph: Graph, edge_assignment: np.ndarray, num_parts: int) -> tuple[np.ndarray, np.ndarray]:
    """For each node the parts that hold an edge of it, rising: `offsets` int64 [num_nodes + 1] and `parts` int32."""
    nodes, parts = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int32)]
    for first, table in tables(lambda: held_blocks(graph, edge_assignment), graph.num_nodes, num_parts):
        rows, columns = np.nonzero(table)
        nodes.append(columns)
        parts.append((rows + first).astype(np.int32))
    node = np.concatenate(nodes)
    offsets = np.zeros(graph.num_nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(node, minlength=graph.num_nodes), out=offsets[1:])
    return offsets, np.concatenate(parts)[np.argsort(node, kind="stable")]


def roots(graph: Graph, edge_assignment: np.ndarray, num_parts: int) -> np.ndarray:
    """The part of each node's root, int32 [num_nodes]; a part may be left without a root where nodes are few.

    Which replica is the root does not change how much is sent, so the choice goes by balance: nodes with fewer replicas
    choose first, by id, each the part with the fewest roots, or the lowest of several. Nodes without edges come last,
    and to any part.
    """
    offsets, parts = replicas_of_edges(graph, edge_assignment, num_parts)
    counts = np.diff(offsets)
    order = np.argsort(np.where(counts == 0, num_parts + 1, counts), kind="stable")
    return _compiled_choice()(offsets, parts, order, num_parts)


@functools.cache
def _compiled_choice() -> Callable[..., np.ndarray]:
    """`_choose` as machine code; numba is loaded only when it is needed."""
    import numba

    return numba.njit(_choose)


def _choose(offsets: np.ndarray, parts: np.ndarray, order: np.ndarray, num_parts: int) -> np.ndarray:
    """The part, among those of each node, that has the fewest roots when the node's turn comes."""
    assignment = np.empty(len(order), dtype=np.int32)
    sizes = np.zeros(num_parts, dtype=np.int64)
    for node in order:
        begin, end = offsets[node], offsets[node + 1]
        best = -1
        for position in range(end - begin if end > begin else num_parts):
            part = parts[begin + position] if end > begin else position
            if best < 0 or sizes[part] < sizes[best]:
                best = part
        assignment[node] = best
        sizes[best] += 1
    return assignment


def measure_vertex_cut(
    graph: Graph, assignment: np.ndarray, edge_assignment: np.ndarray, num_parts: int
) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Quality of a valid vertex cut, recomputed from the stored edges, and its mirrors.

    Returns (`vertex_cut` as in the manifest; `mirror_offsets` int64 [num_parts² + 1]; `mirror_nodes` int64: the nodes
    whose root is in part p and that part q mirrors are the list at p * num_parts + q, sorted).
    """

    def needed() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for parts, nodes in held_blocks(graph, edge_assignment):
            away = parts != assignment[nodes]
            yield parts[away], nodes[away]

    offsets, mirror_nodes = lists_by_pair(needed, assignment, num_parts)
    matrix = np.diff(offsets).reshape(num_parts, num_parts)
    edges = np.bincount(edge_assignment, minlength=num_parts)
    mirrors = matrix.sum(axis=0)
    replicas = np.bincount(assignment, minlength=num_parts) + mirrors
    parts = [
        {"part": part, "edges": int(edges[part]), "replicas": int(replicas[part]), "mirrors": int(mirrors[part])}
        for part in range(num_parts)
    ]
    quality = {
        "replication_factor": int(replicas.sum()) / graph.num_nodes,
        "mirrors": int(mirrors.sum()),
        "balance_edges": balance(edges),
        "balance_replicas": balance(replicas),
        "parts": parts,
        "mirror_matrix": matrix.tolist(),
    }
    return quality, offsets, mirror_nodes

"""Weights of edges from the features of their ends, after EAT-DistGNN."""

import numpy as np

from anatomy.graphs.store import Graph
from anatomy.partitions.adjacency import Adjacency, entry_blocks

ENTRIES_AT_ONCE = 1 << 16
"""Entries whose features are held at the same time."""
_DEGREE_SCALE = 25
_NORM_OFFSET = 1e-5
"""Keeps a node without features from a division by 0, as in the published program."""


def similar_edges(graph: Graph, adjacency: Adjacency) -> tuple[Adjacency, np.ndarray]:
    """The edges of a symmetric adjacency that have a weight above 0, and their weights, int64, the same both ways.

    int(100 (cos(i, j) + 1 - (exp(-25 / d_i) + exp(-25 / d_j)) / 2)), cos of the features, d the neighbours in
    `adjacency`.
    """
    decay = np.exp(-_DEGREE_SCALE / np.maximum(np.diff(adjacency.indptr), 1))
    weights = np.empty(len(adjacency.indices), np.int64)
    start = 0
    for targets, sources in entry_blocks(*adjacency, ENTRIES_AT_ONCE):
        cosine = np.einsum("ij,ij->i", *(_directions(graph, nodes) for nodes in (targets, sources)))
        value = 100 * (cosine + 1 - (decay[targets] + decay[sources]) / 2)
        weights[start : start + len(targets)] = np.maximum(value, 0)
        start += len(targets)
    kept = weights > 0
    before = np.concatenate([[0], np.cumsum(kept)])
    return Adjacency(before[adjacency.indptr], adjacency.indices[kept]), weights[kept]


def _directions(graph: Graph, nodes: np.ndarray) -> np.ndarray:
    """Features of length 1, float64 [nodes, width]; of a node whose features are all 0, these."""
    rows = graph.features[nodes].astype(np.float64)
    return rows / (np.linalg.norm(rows, axis=1, keepdims=True) + _NORM_OFFSET)

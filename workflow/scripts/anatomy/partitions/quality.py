"""How good a partition is, recomputed from the stored edges, whatever the method claims.

Every measure walks over the edges in blocks: memory grows with the nodes, but not with the edges.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import connected_components

from anatomy.graphs.splits import TEST, TRAIN, VAL
from anatomy.graphs.store import Graph
from anatomy.partitions.adjacency import entry_blocks
from anatomy.partitions.needs import lists_by_pair

MAX_CUT_EDGES = 1 << 25
"""Cut edges that are held in memory, in 512 MiB; where there are more, they are found anew whenever they are needed."""
CONTRACTED_ENTRIES = 1 << 20
"""Edges that are contracted at once: after few, little is left of the others, but each time walks over the nodes."""


def measure(graph: Graph, assignment: np.ndarray, num_parts: int) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Quality per part and in total, and the halo lists of a valid assignment, int32 [num_nodes].

    Returns (`parts`, `total` and `halo_matrix` as in the manifest; `halo_offsets` int64 [num_parts² + 1]; `halo_nodes`
    int64).
    """
    cut = CutEdges(graph, assignment)
    offsets, halo_nodes = halo_lists(cut, assignment, num_parts)
    matrix = np.diff(offsets).reshape(num_parts, num_parts)
    boundary = np.zeros(graph.num_nodes, dtype=bool)
    boundary[halo_nodes] = True
    counts = {
        "nodes": np.bincount(assignment, minlength=num_parts),
        "edges": _in_entries(graph, assignment, num_parts),
        "cut_edges": cut.count_by_target_part(num_parts),
        **_split_counts(graph, assignment, num_parts),
        "halo_nodes": matrix.sum(axis=0),
        "boundary_nodes": np.bincount(assignment[boundary], minlength=num_parts),
        "components": components_inside(graph, assignment, num_parts),
    }
    entropies = label_entropies_bits(graph, assignment, num_parts)
    parts = [
        {
            "part": part,
            **{key: int(count[part]) for key, count in counts.items()},
            "label_entropy_bits": entropies[part],
        }
        for part in range(num_parts)
    ]
    volume = int(matrix.sum())
    total = {
        "edge_cut": cut.count_pairs(),
        "cut_entries": cut.num_entries,
        "communication_volume": volume,
        "replication_factor": (graph.num_nodes + volume) / graph.num_nodes,
        "balance_nodes": balance(counts["nodes"]),
        "balance_edges": balance(counts["edges"]),
        "balance_train": balance(counts["train"]),
        "components": int(counts["components"].sum()),
    }
    return {"parts": parts, "total": total, "halo_matrix": matrix.tolist()}, offsets, halo_nodes


def balance(counts: np.ndarray) -> float | None:
    """Largest over mean; None where there is nothing to balance."""
    return float(counts.max() / counts.mean()) if counts.any() else None


def _in_entries(graph: Graph, assignment: np.ndarray, num_parts: int) -> np.ndarray:
    """Stored in-edges of each part's nodes."""
    # Weights are summed as float64, which is exact up to 2**53 edges.
    return np.bincount(assignment, weights=np.diff(graph.indptr), minlength=num_parts).astype(np.int64)


def _split_counts(graph: Graph, assignment: np.ndarray, num_parts: int) -> dict[str, np.ndarray]:
    """Nodes of each part in each split; nodes in none are left out."""
    split = np.asarray(graph.split)
    splits = {"train": TRAIN, "val": VAL, "test": TEST}
    return {name: np.bincount(assignment[split == value], minlength=num_parts) for name, value in splits.items()}


class CutEdges:
    """The stored edges between parts: iterating gives blocks of (targets, sources), in the order of the store."""

    def __init__(self, graph: Graph, assignment: np.ndarray) -> None:
        self.num_nodes = graph.num_nodes
        self.num_entries = 0
        self._graph, self._assignment = graph, assignment
        self._kept: list[tuple[np.ndarray, np.ndarray]] | None = []
        for block in self._found():
            self.num_entries += len(block[0])
            if self.num_entries > MAX_CUT_EDGES:
                self._kept = None
            if self._kept is not None:
                self._kept.append(block)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return self._found() if self._kept is None else iter(self._kept)

    def _found(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for targets, sources in entry_blocks(self._graph.indptr, self._graph.indices):
            cut = self._assignment[targets] != self._assignment[sources]
            yield targets[cut], sources[cut]

    def count_by_target_part(self, num_parts: int) -> np.ndarray:
        """Of each part's stored in-edges those that come from other parts, int64 [num_parts]."""
        counts = np.zeros(num_parts, dtype=np.int64)
        for targets, _ in self:
            counts += np.bincount(self._assignment[targets], minlength=num_parts)
        return counts

    def count_pairs(self) -> int:
        """The edge cut: distinct unordered pairs of adjacent nodes in different parts, however often they are stored.

        Where cut edges are many, they are counted in several walks, each for a range of the smaller node id.
        """
        walks = max(1, -(-self.num_entries // MAX_CUT_EDGES))
        step = -(-self.num_nodes // walks)
        return sum(self._count_pairs(low, low + step) for low in range(0, self.num_nodes, step))

    def _count_pairs(self, low: int, high: int) -> int:
        """Pairs whose smaller node id is at least `low` and less than `high`."""
        # The store is sorted by target, then source: packed as (larger id, smaller id), one half comes sorted already.
        rising, falling = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for targets, sources in self:
            for found, larger, smaller in ((rising, targets, sources), (falling, sources, targets)):
                taken = (smaller < larger) & (smaller >= low) & (smaller < high)
                found.append(larger[taken] * self.num_nodes + smaller[taken])
        packed, others = np.concatenate(rising), np.concatenate(falling)
        others.sort()
        if not np.array_equal(packed, others):
            packed = np.concatenate([packed, others])
            packed.sort()
        return min(1, len(packed)) + int(np.count_nonzero(packed[1:] != packed[:-1]))


def halo_lists(cut: CutEdges, assignment: np.ndarray, num_parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Which nodes each part owns that each other part needs, since they are in-neighbours of its nodes.

    Returns `offsets` int64 [num_parts² + 1] and `nodes` int64, as `lists_by_pair` does.
    """
    return lists_by_pair(lambda: ((assignment[targets], sources) for targets, sources in cut), assignment, num_parts)


def components_inside(graph: Graph, assignment: np.ndarray, num_parts: int) -> np.ndarray:
    """Connected components of each part, without direction, once all edges between parts are gone; int64 [num_parts].

    Each block of edges is contracted before the next is read, after which few edges still join different components
    (the idea of Sutton, Ben-Nun & Barak, "Optimizing parallel graph connectivity computation via subgraph sampling",
    IPDPS 2018).
    """
    label = np.arange(graph.num_nodes)
    count = graph.num_nodes
    for targets, sources in entry_blocks(graph.indptr, graph.indices, CONTRACTED_ENTRIES):
        inside = assignment[targets] == assignment[sources]
        one, two = label[targets[inside]], label[sources[inside]]
        apart = one != two
        if apart.any():
            edges = (np.ones(np.count_nonzero(apart), dtype=bool), (one[apart], two[apart]))
            count, merged = connected_components(scipy.sparse.coo_array(edges, shape=(count, count)), directed=False)
            label = merged[label]
    part_of = np.empty(count, dtype=np.int64)
    part_of[label] = assignment
    return np.bincount(part_of, minlength=num_parts)


def label_entropies_bits(graph: Graph, assignment: np.ndarray, num_parts: int) -> list[float | None]:
    """Shannon entropy of the class labels within each part, in bits; None for a part without labelled nodes."""
    labels = np.asarray(graph.labels)
    known = labels >= 0
    table = np.bincount(
        assignment[known].astype(np.int64) * graph.num_classes + labels[known], minlength=num_parts * graph.num_classes
    )
    entropies: list[float | None] = []
    for counts in table.reshape(num_parts, graph.num_classes):
        shares = counts[counts > 0] / max(1, counts.sum())
        entropies.append(abs(float(-(shares * np.log2(shares)).sum())) if len(shares) else None)
    return entropies

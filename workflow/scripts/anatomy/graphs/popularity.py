"""Which nodes many others aggregate, and so are worth keeping at hand."""

import numpy as np


def out_degrees(indices: np.ndarray, num_nodes: int, entries_at_once: int = 1 << 24) -> np.ndarray:
    """int64 [N]: how many nodes aggregate each node, counted in pieces of a memory-mapped `indices` [E].

    This is the order by which PaGraph (Lin et al., SoCC 2020) fills its cache: a sampler meets a node as often as it is
    somebody's in-neighbour.
    """
    degrees = np.zeros(num_nodes, dtype=np.int64)
    for start in range(0, len(indices), entries_at_once):
        degrees += np.bincount(indices[start : start + entries_at_once], minlength=num_nodes)
    return degrees


def heaviest_first(nodes: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Nodes in falling order of weight, ties in rising order of id."""
    return nodes[np.lexsort((nodes, -weight))]

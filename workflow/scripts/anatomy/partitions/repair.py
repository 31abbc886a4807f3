"""How parts that a method left empty are filled."""

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import breadth_first_order

from anatomy.partitions.adjacency import Adjacency


def fill_empty_parts(adjacency: Adjacency, assignment: np.ndarray, num_parts: int) -> np.ndarray:
    """Give every empty part a connected piece of the part that is then the largest, at most the mean number of nodes.

    Needs at least as many nodes as parts. Returns the assignment itself where no part is empty, else a new int32
    [num_nodes].
    """
    sizes = np.bincount(assignment, minlength=num_parts)
    if sizes.min() > 0:
        return assignment
    assignment = assignment.copy()
    num_nodes = len(assignment)
    matrix = scipy.sparse.csr_array(
        (np.ones(len(adjacency.indices), dtype=bool), adjacency.indices, adjacency.indptr), shape=(num_nodes, num_nodes)
    )
    for part in np.flatnonzero(sizes == 0):
        largest = sizes.argmax()
        members = np.flatnonzero(assignment == largest)
        inner = matrix[members][:, members]
        # From a node at the edge of the part, so that what is left of it hangs together, too.
        start = int(np.diff(inner.indptr).argmin())
        reached = breadth_first_order(inner, start, directed=False, return_predecessors=False)
        piece = members[reached[: max(1, min(len(members) // 2, num_nodes // num_parts))]]
        assignment[piece] = part
        sizes[part] = len(piece)
        sizes[largest] -= len(piece)
    return assignment

"""What every assignment must be, and how parts that a method left empty are filled."""

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import breadth_first_order

from anatomy.errors import StudyError
from anatomy.partitions.adjacency import Adjacency


def check_assignment(
    assignment: np.ndarray, num_nodes: int, num_parts: int, place: str, empty_allowed: bool = False
) -> None:
    """Raise StudyError, beginning with `place`, unless every node has a part in range and every part has a node."""
    if assignment.shape != (num_nodes,):
        raise StudyError(
            f"{place}: found an assignment of shape {list(assignment.shape)}, expected [{num_nodes}], one part for "
            "each node; partition the graph again"
        )
    wrong = np.flatnonzero((assignment < 0) | (assignment >= num_parts))
    if len(wrong):
        raise StudyError(
            f"{place}: node {wrong[0]}: found part {assignment[wrong[0]]}, expected 0 to {num_parts - 1}; "
            "partition the graph again"
        )
    empty = np.flatnonzero(np.bincount(assignment, minlength=num_parts) == 0)
    if len(empty) and not empty_allowed:
        raise StudyError(
            f"{place}: found {len(empty)} empty part(s), the first is part {empty[0]} of {num_parts}, expected a node "
            "in each; use fewer parts or another partitioner"
        )


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

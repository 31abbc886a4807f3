"""What every assignment of nodes or edges must be."""

import numpy as np

from anatomy.errors import StudyError
from anatomy.graphs.blocks import slices


def check_assignment(
    assignment: np.ndarray, num_nodes: int, num_parts: int, place: str, empty_allowed: bool = False
) -> None:
    """Raise StudyError, beginning with `place`, unless every node has a part in range and every part has a node."""
    _check_parts(assignment, num_nodes, num_parts, place, "node")
    empty = np.flatnonzero(np.bincount(assignment, minlength=num_parts) == 0)
    if len(empty) and not empty_allowed:
        raise StudyError(
            f"{place}: found {len(empty)} empty part(s), the first is part {empty[0]} of {num_parts}, expected a node "
            "in each; use fewer parts or another partitioner"
        )


def check_edge_assignment(edge_assignment: np.ndarray, num_edges: int, num_parts: int, place: str) -> None:
    """Raise StudyError, beginning with `place`, unless every stored edge has a part in range; parts may be empty."""
    _check_parts(edge_assignment, num_edges, num_parts, place, "edge")


def _check_parts(assignment: np.ndarray, count: int, num_parts: int, place: str, item: str) -> None:
    if assignment.shape != (count,):
        raise StudyError(
            f"{place}: found an assignment of shape {list(assignment.shape)}, expected [{count}], one part for "
            f"each {item}; partition the graph again"
        )
    for piece in slices(count):
        wrong = np.flatnonzero((assignment[piece] < 0) | (assignment[piece] >= num_parts))
        if len(wrong):
            first = piece.start + wrong[0]
            raise StudyError(
                f"{place}: {item} {first}: found part {assignment[first]}, expected 0 to {num_parts - 1}; "
                "partition the graph again"
            )

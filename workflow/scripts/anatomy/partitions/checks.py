"""What every assignment must be."""

import numpy as np

from anatomy.errors import StudyError


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

"""`single`: no partitioning. The one part holds every node."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from anatomy.errors import StudyError
from anatomy.graphs.store import Graph

SUMMARY = "no partitioning: one part holds every node"
PACKAGES = ()
OPTIONS = {"properties": {}, "required": []}


def assign(graph: Graph, num_parts: int, options: Mapping[str, Any]) -> np.ndarray:
    """The part of each node, int32 [num_nodes]: always 0. Raises StudyError for any other number of parts than 1."""
    if num_parts != 1:
        raise StudyError(
            f"graph {graph.name}: found {num_parts} parts for the partitioner 'single', expected 1; "
            "choose another partitioner"
        )
    return np.zeros(graph.num_nodes, dtype=np.int32)

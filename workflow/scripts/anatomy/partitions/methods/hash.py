"""`hash`: contiguous ranges of node ids, of sizes that differ by one at most.

What systems do that place a node by its id alone. It is as good as the order of the ids: crawled or meshed graphs often
keep neighbours near each other, shuffled ones do not.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from anatomy.graphs.store import Graph

SUMMARY = "contiguous ranges of node ids, of equal size"
PACKAGES = ()
OPTIONS = {"properties": {}, "required": []}


def assign(graph: Graph, num_parts: int, options: Mapping[str, Any]) -> np.ndarray:
    """The part of each node, int32 [num_nodes]."""
    return (np.arange(graph.num_nodes, dtype=np.int64) * num_parts // graph.num_nodes).astype(np.int32)

"""`eat`: METIS on edges weighed by the similarity of their ends, so that parts are of few classes.

The edge-weighted partitioning of EAT-DistGNN (Deshmukh, Gupta, Chawla, Jatala and Haldar, "Entropy aware training for
fast and accurate distributed GNN", ICDM 2023, arXiv:2311.02399), as its public code, `partition_edge_weighted.py`, has
it: an edge has the weight int(100 (cos(x_i, x_j) + 1 - exp(-25 / d_j))), where that is negative 0, with x the features
and d_j the degree of the neighbour j. Nodes of equal features stay together, which are likely to be of one class, and
an edge to a node of high degree counts for less than one to a node of few.

The code gives METIS both directions of an edge with weights that differ, while METIS takes them to be equal, and edges
of weight 0, which METIS does not allow. Here both directions have the weight with the mean of exp(-25 / d_i) and
exp(-25 / d_j), and an edge of weight 0 is left out, which costs no cut as much as it. Degrees are those of the
undirected simple graph. Labels are not read.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from anatomy.graphs.store import Graph
from anatomy.partitions.methods import metis

SUMMARY = "METIS on edges weighed by the similarity of features (EAT-DistGNN): parts of few classes"
PACKAGES = ("pymetis",)
OPTIONS = {
    "properties": {
        "imbalance": {
            "type": "number",
            "minimum": 0.001,
            "maximum": 1,
            "default": 0.03,
            "description": "How far a part may exceed the mean number of nodes, as a share of it (ufactor / 1000).",
        },
        "attempts": {
            "type": "integer",
            "minimum": 1,
            "maximum": 1000,
            "description": "Seeds that METIS is run with, of which the best is kept; as with `metis`.",
        },
    },
    "required": [],
}


def assign(graph: Graph, num_parts: int, options: Mapping[str, Any]) -> np.ndarray:
    """The part of each node, int32 [num_nodes]; no part is empty.

    Raises StudyError, naming graph and number of parts, where METIS does not end well.
    """
    fixed = {"balance_train": False, "objective": "cut", "similar": True}
    return metis.assign(graph, num_parts, {**options, **fixed})

"""What a source hands over: a graph as it was read, before any policy is applied."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anatomy.graphs.blocks import FeatureBlocks


@dataclass
class RawGraph:
    """A graph as its source lists it.

    `edges` is int64 [entries], each entry packed by `edges.pack`. `labels` is int64 [num_nodes] with -1 for unlabelled,
    `split` int8 [num_nodes] (0 train, 1 validation, 2 test, -1 none). None stands for what the source lacks.
    `listed_once` says that each undirected edge has one entry, so that only symmetrising gives the graph that is meant.
    """

    file: str
    num_nodes: int
    edges: np.ndarray
    features: FeatureBlocks | None = None
    labels: np.ndarray | None = None
    num_classes: int | None = None
    split: np.ndarray | None = None
    listed_once: bool = False
    evaluator: str | None = None
    packages: Iterable[str] = ()
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class GraphData:
    """A graph ready for the store: what `RawGraph` lists, after the policies, with nothing missing.

    `indptr` int64 [num_nodes + 1] and `indices` int64 [entries] hold for each node its sorted in-neighbours.
    """

    indptr: np.ndarray
    indices: np.ndarray
    features: FeatureBlocks
    labels: np.ndarray
    split: np.ndarray
    num_classes: int
    steps: list[dict[str, Any]]
    made: dict[str, str]
    evaluator: str | None
    packages: Iterable[str] = ()
    notes: list[str] = field(default_factory=list)

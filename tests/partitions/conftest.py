"""Small graphs for the tests of partitions, in memory and stored."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anatomy.graphs.blocks import FeatureBlocks
from anatomy.graphs.raw import GraphData
from anatomy.graphs.store import Graph, write_graph
from anatomy.partitions.methods import _metis_process, metis

Entries = Iterable[tuple[int, int]]


def _csr(num_nodes: int, entries: Entries) -> tuple[np.ndarray, np.ndarray]:
    targets, sources = np.array(sorted(entries), dtype=np.int64).reshape(-1, 2).T
    return np.searchsorted(targets, np.arange(num_nodes + 1)).astype(np.int64), sources.copy()


def _attributes(num_nodes: int, split: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    split = np.zeros(num_nodes, dtype=np.int8) if split is None else np.asarray(split, dtype=np.int8)
    labels = np.zeros(num_nodes, dtype=np.int64) if labels is None else np.asarray(labels, dtype=np.int64)
    return split, labels


@pytest.fixture(scope="session")
def graph_of() -> Callable[..., Graph]:
    """A graph in memory from its stored edges as (target, source); all nodes train and have label 0 unless told."""

    def _graph_of(
        num_nodes: int, entries: Entries, split: Any = None, labels: Any = None, num_classes: int = 3
    ) -> Graph:
        indptr, indices = _csr(num_nodes, entries)
        split, labels = _attributes(num_nodes, split, labels)
        manifest = {
            "name": "small",
            "num_nodes": num_nodes,
            "num_edges": len(indices),
            "num_features": 1,
            "num_classes": num_classes,
            "identity": "in memory",
        }
        features = np.zeros((num_nodes, 1), dtype=np.float32)
        return Graph(Path("small"), manifest, indptr, indices, features, labels, split)

    return _graph_of


@pytest.fixture
def stored_graph(tmp_path: Path) -> Callable[..., Path]:
    """The folder of a stored graph, from its stored edges as (target, source)."""

    def _stored_graph(
        num_nodes: int, entries: Entries, split: Any = None, labels: Any = None, name: str = "small"
    ) -> Path:
        indptr, indices = _csr(num_nodes, entries)
        split, labels = _attributes(num_nodes, split, labels)
        features = FeatureBlocks(num_nodes, 1, lambda: iter([np.zeros((num_nodes, 1), dtype=np.float32)]))
        data = GraphData(indptr, indices, features, labels, split, int(labels.max()) + 1, [], {}, None)
        write_graph(tmp_path / "graphs" / name, name, {}, data)
        return tmp_path / "graphs" / name

    return _stored_graph


@pytest.fixture(scope="session")
def ring() -> Callable[[int], list[tuple[int, int]]]:
    """The stored edges of a ring, both directions."""
    return lambda num_nodes: [(node, (node + step) % num_nodes) for node in range(num_nodes) for step in (1, -1)]


@pytest.fixture(scope="session")
def communities() -> Callable[..., list[tuple[int, int]]]:
    """The stored edges, both directions, of equal groups of consecutive nodes, dense inside and sparse between."""

    def _communities(num_groups: int, size: int, seed: int = 0) -> list[tuple[int, int]]:
        group = np.repeat(np.arange(num_groups), size)
        chance = np.where(group[:, None] == group, 0.3, 0.01)
        upper = np.triu(np.random.default_rng(seed).random(chance.shape) < chance, 1)
        return [(int(a), int(b)) for a, b in zip(*np.nonzero(upper | upper.T), strict=True)]

    return _communities


@pytest.fixture
def metis_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """METIS in this process instead of its own: a hundred times faster, and safe, since its input is prepared."""

    def _assign(graph: Graph, num_parts: int, options: dict[str, Any]) -> np.ndarray:
        return _metis_process.best_assignment(graph, {"num_parts": num_parts, **options})

    monkeypatch.setattr(metis, "in_own_process", _assign)


@pytest.fixture(scope="session")
def skewed() -> Callable[..., list[tuple[int, int]]]:
    """The stored edges, both directions, of a graph whose nodes are drawn the more often the lower their id is."""

    def _skewed(seed: int, num_nodes: int = 300, num_pairs: int = 1500) -> list[tuple[int, int]]:
        weight = 1 / np.arange(1, num_nodes + 1) ** 0.7
        ends = np.random.default_rng(seed).choice(num_nodes, (num_pairs, 2), p=weight / weight.sum())
        pairs = {(int(one), int(two)) for one, two in ends if one != two}
        return sorted(pairs | {(two, one) for one, two in pairs})

    return _skewed

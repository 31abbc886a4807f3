"""METIS on edges weighed by similarity: the weights from their formula, and what they do to the classes of parts."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anatomy.partitions import similarity
from anatomy.partitions.adjacency import canonical
from anatomy.partitions.build import assign
from anatomy.partitions.methods._metis_process import _cut
from anatomy.partitions.options import complete_options
from anatomy.partitions.quality import label_entropies_bits
from anatomy.partitions.similarity import similar_edges


def with_features(graph, features):
    return replace(graph, features=np.asarray(features, dtype=np.float32))


def weight(one: np.ndarray, two: np.ndarray, degrees: tuple[int, int]) -> int:
    """The definition, for one edge."""
    lengths = math.sqrt(one @ one), math.sqrt(two @ two)
    cosine = 0.0 if 0.0 in lengths else (one / lengths[0]) @ (two / lengths[1])
    return max(0, int(100 * (cosine + 1 - sum(math.exp(-25 / degree) for degree in degrees) / 2)))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1), num_nodes=st.integers(2, 20), at_once=st.integers(1, 50))
def test_weights_are_those_of_the_formula(graph_of, monkeypatch, seed, num_nodes, at_once):
    """On directed graphs with loops, however many entries are held at once."""
    monkeypatch.setattr(similarity, "ENTRIES_AT_ONCE", at_once)
    random = np.random.default_rng(seed)
    linked = random.random((num_nodes, num_nodes)) < 0.3
    linked[0, 1] = True
    features = random.normal(size=(num_nodes, 4)).round(2)
    features[random.random(num_nodes) < 0.2] = 0
    graph = with_features(graph_of(num_nodes, np.argwhere(linked).tolist()), features)
    adjacency, weights = similar_edges(graph, canonical(graph.indptr, graph.indices))
    found = {
        (node, int(neighbour)): int(weights[position])
        for node in range(num_nodes)
        for position, neighbour in enumerate(
            adjacency.indices[adjacency.indptr[node] : adjacency.indptr[node + 1]], adjacency.indptr[node]
        )
    }
    both = (linked | linked.T) & ~np.eye(num_nodes, dtype=bool)
    degrees = both.sum(1)
    rows = np.asarray(graph.features, dtype=np.float64)
    expected = {
        (one, two): weight(rows[one], rows[two], (degrees[one], degrees[two]))
        for one, two in np.argwhere(both).tolist()
    }
    for pair, value in expected.items():
        assert found.get(pair, 0) == pytest.approx(value, abs=1), "lengths are a little above the definition's"
        assert found.get(pair) == found.get(pair[::-1])
    assert found.keys() <= expected.keys()
    assert all(value > 0 for value in found.values())


@pytest.fixture
def two_classes(graph_of):
    """A random graph without structure whose features tell two classes apart."""
    random = np.random.default_rng(3)
    labels = random.permutation(np.arange(80) % 2)
    upper = np.triu(random.random((80, 80)) < 0.15, 1)
    graph = graph_of(80, np.argwhere(upper | upper.T).tolist(), labels=labels, num_classes=2)
    return with_features(graph, np.where(labels[:, None] == 0, [[1, 0.1]], [[-1, 0.1]]))


def test_parts_are_of_one_class_where_features_tell(metis_here, two_classes):
    entropies = {
        method: np.mean(label_entropies_bits(two_classes, assign(two_classes, complete_options(options), 2).nodes, 2))
        for method, options in {"eat": {"method": "eat"}, "metis": {"method": "metis"}}.items()
    }
    assert entropies["metis"] > 0.8
    assert entropies["eat"] < 0.2


def test_what_is_kept_low_is_the_weight_of_the_cut(metis_here, graph_of, communities):
    graph = graph_of(120, communities(4, 30))
    graph = with_features(graph, np.random.default_rng(0).normal(size=(120, 3)))
    adjacency, weights = similar_edges(graph, canonical(graph.indptr, graph.indices))
    cuts = {
        method: _cut(adjacency, weights, assign(graph, complete_options({"method": method, "attempts": 8}), 4).nodes)
        for method in ("eat", "metis")
    }
    assert cuts["eat"] <= cuts["metis"]


def test_without_a_similar_edge_nothing_is_cut(metis_here, graph_of, ring):
    features = np.where(np.arange(12)[:, None] % 2 == 0, 1.0, -1.0)
    graph = with_features(graph_of(12, ring(12)), features)
    assert len(similar_edges(graph, canonical(graph.indptr, graph.indices))[1]) == 0
    parts = assign(graph, complete_options({"method": "eat"}), 3).nodes
    assert np.bincount(parts).tolist() == [4, 4, 4]

"""The embedded source: exact counts, a power law, and classes that neighbourhoods reveal."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anatomy.errors import StudyError
from anatomy.graphs.sources import complete_options
from anatomy.graphs.store import Graph

Build = Callable[..., Graph]


def targets_of(graph: Graph) -> np.ndarray:
    return np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))


def test_counts_are_exactly_those_of_the_options(build: Build) -> None:
    graph = build(source="powerlaw", num_nodes=2000, mean_degree=11, homophily=0.7, num_classes=5, num_features=3)
    assert graph.num_nodes == 2000
    assert graph.num_edges == 2 * round(2000 * 11 / 2)
    assert (graph.num_classes, graph.num_features) == (5, 3)
    targets = targets_of(graph)
    same = graph.labels[graph.indices] == graph.labels[targets]
    assert same.sum() == 2 * round(0.7 * 11_000)
    assert not (graph.indices == targets).any()
    assert len(np.unique(targets * 2000 + graph.indices)) == graph.num_edges
    assert np.bincount(graph.labels).tolist() == [400] * 5
    assert graph.manifest["split"] == {"train": 1000, "val": 500, "test": 500, "none": 0}
    assert graph.manifest["made"]["split"].startswith("train_fraction 0.5, val_fraction 0.25, seed 0")


def test_the_seed_decides(build: Build) -> None:
    options = {"source": "powerlaw", "num_nodes": 500, "mean_degree": 6}
    first, again, other = build(**options, seed=5), build(**options, seed=5), build(**options, seed=6)
    assert first.identity == again.identity
    assert {first.manifest["arrays"][name]["sha256"] for name in ("indices", "features", "labels", "split")}.isdisjoint(
        other.manifest["arrays"][name]["sha256"] for name in ("indices", "features", "labels", "split")
    )


def test_degrees_follow_the_exponent(build: Build) -> None:
    """The Hill estimate over the largest degrees, below the cut-off, lies near the exponent."""
    for exponent in (2.2, 3.0):
        graph = build(source="powerlaw", num_nodes=40_000, mean_degree=10, exponent=exponent, num_features=1)
        degrees = np.sort(np.diff(graph.indptr))
        cut_off = np.sqrt(40_000 * 10)
        tail = degrees[(degrees >= 30) & (degrees < cut_off / 2)]
        # Of a Pareto law between two bounds: 1 + n / sum(log(d / low)), which the upper bound raises a little.
        estimate = 1 + len(tail) / np.log(tail / 29.5).sum()
        assert exponent - 0.2 < estimate < exponent + 0.5
        assert degrees[-1] < 1.3 * cut_off


def test_neighbourhoods_tell_more_than_nodes(build: Build) -> None:
    """Nearest class centroid on features, before and after adding the mean of the neighbours' features."""
    graph = build(source="powerlaw", num_nodes=6000)
    raw = np.asarray(graph.features)
    sums = np.zeros_like(raw)
    np.add.at(sums, targets_of(graph), raw[graph.indices])
    mixed = raw + 4 * sums / np.maximum(np.diff(graph.indptr), 1)[:, None]
    before, after = accuracy(raw, graph), accuracy(mixed, graph)
    assert 0.4 < before < 0.65
    assert after > before + 0.15


def test_without_homophily_neighbourhoods_tell_nothing(build: Build) -> None:
    """With 16 classes, 1/16 of the edges joining equal classes is what chance gives."""
    graph = build(source="powerlaw", num_nodes=6000, homophily=1 / 16)
    sums = np.zeros_like(graph.features)
    np.add.at(sums, targets_of(graph), graph.features[graph.indices])
    assert accuracy(sums, graph) < 0.12


def accuracy(features: np.ndarray, graph: Graph) -> float:
    train, test = graph.split == 0, graph.split == 2
    centroids = np.stack([features[train & (graph.labels == label)].mean(0) for label in range(graph.num_classes)])
    guesses = (features[test] @ centroids.T - (centroids**2).sum(1) / 2).argmax(1)
    return float((guesses == graph.labels[test]).mean())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mean_degree": 60}, "that is 3000 edges between nodes of equal class, expected at most 1980 of the 4950"),
        ({"homophily": 0.0, "num_classes": 1, "mean_degree": 2}, "different class, expected at most 0 of the 0 pairs"),
        ({"num_classes": 101, "homophily": 0.0}, "num_classes: found 101, expected at most num_nodes, 100"),
        ({"train_fraction": 0.9, "val_fraction": 0.2}, "expected at most 1"),
        ({"exponent": 2}, "exponent: found 2, expected more than 2"),
        ({"num_nodes": 1}, "num_nodes: found 1, expected at least 2"),
        ({"homophily": 1.5}, "homophily: found 1.5, expected at most 1"),
        ({"direction": "keep"}, "direction: found 'keep'; choose one of: symmetrise"),
    ],
)
def test_impossible_graphs_are_refused_before_the_start(changes: dict[str, Any], message: str) -> None:
    """100 nodes in one class have 100 * 99 / 2 = 4950 pairs, of which 40% may be edges; mean degree 60 wants 3000."""
    options = {"source": "powerlaw", "num_nodes": 100, "num_classes": 1, "homophily": 1.0, "mean_degree": 8} | changes
    with pytest.raises(StudyError, match=message):
        complete_options(options)


def test_dense_small_graphs_are_found_all_the_same(build: Build) -> None:
    """40% of the pairs of each kind, hubs and all."""
    graph = build(source="powerlaw", num_nodes=60, num_classes=2, mean_degree=23, homophily=0.49, exponent=2.1)
    assert graph.num_edges == 60 * 23

"""METIS told to lower the communication volume does, at the expense of the cut."""

import numpy as np
import pytest

from anatomy.graphs.store import open_graph
from anatomy.partitions.adjacency import canonical
from anatomy.partitions.build import assign
from anatomy.partitions.methods import _metis_process
from anatomy.partitions.options import complete_options
from anatomy.partitions.quality import measure


def cut_and_volume(graph, objective, num_parts, seed, attempts=1):
    options = {"method": "metis", "seed": seed, "objective": objective, "attempts": attempts}
    total = measure(graph, assign(graph, complete_options(options), num_parts).nodes, num_parts)[0]["total"]
    assert total["balance_nodes"] <= 1.03 + num_parts / graph.num_nodes
    return np.array([total["edge_cut"], total["communication_volume"]])


@pytest.mark.parametrize("num_parts", [2, 4, 8])
def test_each_objective_is_better_at_its_own_measure(graph_of, metis_here, skewed, num_parts):
    """On the mean over 10 graphs, by one run of METIS each: it is METIS that obeys, not the choice among seeds."""
    graphs = [graph_of(300, skewed(seed)) for seed in range(10)]
    by_cut, by_volume = (
        sum(cut_and_volume(graph, objective, num_parts, seed) for seed, graph in enumerate(graphs))
        for objective in ("cut", "volume")
    )
    assert by_volume[1] < 0.97 * by_cut[1]
    assert by_volume[0] > by_cut[0]


def test_more_attempts_never_send_more(graph_of, metis_here, skewed):
    graph = graph_of(300, skewed(0))
    volumes = [cut_and_volume(graph, "volume", 4, 0, attempts)[1] for attempts in (1, 2, 4, 8)]
    assert volumes == sorted(volumes, reverse=True)
    assert volumes[-1] < volumes[0]


def test_volume_equals_the_measured_one(graph_of, skewed):
    """Of an undirected graph, for parts that are anything."""
    for seed in range(20):
        graph = graph_of(60, skewed(seed, num_nodes=60, num_pairs=150))
        assignment = np.random.default_rng(seed).integers(0, 5, 60, dtype=np.int32)
        measured = measure(graph, assignment, 5)[0]["total"]["communication_volume"]
        assert _metis_process._volume(canonical(graph.indptr, graph.indices), assignment) == measured


def test_the_objective_reaches_the_process(stored_graph, skewed):
    graph = open_graph(stored_graph(300, skewed(3)))
    by_cut, by_volume = (cut_and_volume(graph, objective, 4, 0) for objective in ("cut", "volume"))
    assert by_volume[1] < by_cut[1]

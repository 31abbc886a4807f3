"""METIS at two levels: what is cut between hosts, what within them, and how even both are."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anatomy.graphs.store import open_graph
from anatomy.partitions.adjacency import canonical, induced
from anatomy.partitions.build import assign, partition_graph
from anatomy.partitions.hosts import measure_hosts
from anatomy.partitions.options import complete_options
from anatomy.partitions.quality import measure
from anatomy.partitions.store import open_partition


def hierarchical(ranks_per_host, **options):
    return complete_options({"method": "hierarchical", "ranks_per_host": ranks_per_host, **options})


@pytest.mark.parametrize("ranks_per_host", [1, 4, 9])
@pytest.mark.parametrize("others", [{}, {"balance_train": True}, {"objective": "volume"}])
def test_with_one_level_it_is_metis(graph_of, metis_here, skewed, ranks_per_host, others):
    graph = graph_of(300, skewed(0), split=np.arange(300) % 5)
    plain = assign(graph, complete_options({"method": "metis", "seed": 2, **others}), 4).nodes
    assert np.array_equal(assign(graph, hierarchical(ranks_per_host, seed=2, **others), 4).nodes, plain)


def test_it_cuts_less_between_hosts_than_metis(graph_of, metis_here, skewed):
    """On the mean over 10 graphs; METIS numbers its parts without a thought of hosts."""
    between = {"metis": 0, "hierarchical": 0}
    for seed in range(10):
        graph = graph_of(300, skewed(seed))
        for method in between:
            options = {"method": method, "seed": seed, "attempts": 1}
            options |= {"ranks_per_host": 4} if method == "hierarchical" else {}
            nodes = assign(graph, complete_options(options), 8).nodes
            between[method] += measure_hosts(graph, nodes, measure(graph, nodes, 8)[0], 4)["edge_cut_between"]
    assert between["hierarchical"] < 0.95 * between["metis"]


def test_communities_of_communities_are_found(graph_of, metis_here):
    """Two halves that few edges join, each of two quarters that some more do: hosts are halves, ranks are quarters."""
    node = np.arange(160)
    chance = np.where(node[:, None] // 40 == node // 40, 0.4, np.where(node[:, None] // 80 == node // 80, 0.04, 0.002))
    shuffled = np.random.default_rng(1).permutation(160)
    upper = np.triu(np.random.default_rng(0).random(chance.shape) < chance, 1)
    entries = [(int(shuffled[a]), int(shuffled[b])) for a, b in zip(*np.nonzero(upper | upper.T), strict=True)]
    nodes = assign(graph_of(160, entries), hierarchical(2), 4).nodes[shuffled]
    halves, quarters = (nodes // 2).reshape(2, 80), nodes.reshape(4, 40)
    assert (halves == halves[:, :1]).mean() > 0.95
    assert (quarters == quarters[:, :1]).mean() > 0.95
    assert set(halves[:, 0]) == {0, 1}


@pytest.mark.parametrize(("num_parts", "ranks_per_host"), [(4, 2), (6, 3), (5, 2), (7, 4)])
@pytest.mark.parametrize("objective", ["cut", "volume"])
def test_both_levels_are_balanced(graph_of, metis_here, skewed, num_parts, ranks_per_host, objective):
    """Where the last host has fewer ranks, too, down to one; a node more is granted to rounding at each level."""
    host = np.arange(num_parts) // ranks_per_host
    for seed in range(5):
        graph = graph_of(600, skewed(seed, 600, 3000))
        nodes = assign(graph, hierarchical(ranks_per_host, seed=seed, attempts=1, objective=objective), num_parts).nodes
        sizes = np.bincount(nodes, minlength=num_parts)
        for number in range(host[-1] + 1):
            own = sizes[host == number]
            assert own.sum() <= 1.03 * 600 * len(own) / num_parts + 1
            assert own.max() <= 1.03 * own.mean() + 1


@pytest.mark.parametrize("num_parts", [4, 5])
def test_training_nodes_are_balanced_at_both_levels(graph_of, metis_here, communities, num_parts):
    """All 60 training nodes are in two of four communities. A host gets its share of them and of the others, rounded
    up or 3 % more, and a rank the same of its host's."""
    split = [0] * 60 + [1] * 60
    graph = graph_of(120, communities(4, 30), split=split)
    nodes = assign(graph, hierarchical(2, balance_train=True), num_parts).nodes
    host = np.arange(num_parts) // 2
    for group in (nodes[:60], nodes[60:]):
        sizes = np.bincount(group, minlength=num_parts)
        for number in range(host[-1] + 1):
            own = sizes[host == number]
            due = 60 * len(own) / num_parts
            assert own.sum() <= max(np.ceil(due), 1.03 * due)
            assert own.max() <= max(np.ceil(own.mean()), 1.03 * own.mean())


def test_more_ranks_than_nodes_on_a_host(graph_of, metis_here):
    """Hosts of 3, 3, and 1 ranks share 7 nodes without edges between most: still a node for every rank."""
    nodes = assign(graph_of(7, [(0, 1), (1, 0)]), hierarchical(3), 7).nodes
    assert sorted(nodes.tolist()) == list(range(7))


def test_without_edges(graph_of, metis_here):
    """Of 12 nodes, hosts of 2, 2 and 1 of 5 ranks end at 4.8, 9.6 and 12, rounded, so that they get 5, 5 and 2."""
    sizes = np.bincount(assign(graph_of(12, []), hierarchical(2), 5).nodes)
    assert sizes.tolist() == [2, 3, 2, 3, 2]


@given(data=st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_host_measures_equal_their_definitions(graph_of, data):
    num_nodes = data.draw(st.integers(1, 12))
    node = st.integers(0, num_nodes - 1)
    entries = data.draw(st.lists(st.tuples(node, node), max_size=40))
    num_parts = data.draw(st.integers(1, 6))
    per_host = data.draw(st.integers(1, 7))
    parts = data.draw(st.lists(st.integers(0, num_parts - 1), min_size=num_nodes, max_size=num_nodes))
    graph, assignment = graph_of(num_nodes, entries), np.array(parts, dtype=np.int32)
    found = measure_hosts(graph, assignment, measure(graph, assignment, num_parts)[0], per_host)
    host = [part // per_host for part in range(num_parts)]
    cut = [(target, source) for target, source in entries if parts[target] != parts[source]]
    between = [pair for pair in cut if host[parts[pair[0]]] != host[parts[pair[1]]]]
    within = [pair for pair in cut if pair not in between]
    needs = {(source, parts[target]) for target, source in cut}
    between_needs = {(source, part) for source, part in needs if host[parts[source]] != host[part]}
    assert found == {
        "ranks_per_host": per_host,
        "num_hosts": len(set(host)),
        "edge_cut_between": len(set(map(frozenset, between))),
        "edge_cut_within": len(set(map(frozenset, within))),
        "cut_entries_between": len(between),
        "cut_entries_within": len(within),
        "communication_volume_between": len(between_needs),
        "communication_volume_within": len(needs - between_needs),
        "balance_hosts": pytest.approx(
            max(sum(host[part] == number for part in parts) / host.count(number) for number in set(host))
            / (num_nodes / num_parts)
        ),
    }


def test_the_manifest_says_what_lies_between_hosts(stored_graph, ring, tmp_path):
    """A ring in 4 is cut 4 times: hosts of 2 consecutive parts twice from each other, and once within each."""
    graph = stored_graph(16, ring(16))
    partition_graph(graph, {"method": "hierarchical", "ranks_per_host": 2}, 4, tmp_path / "partition")
    hosts = open_partition(tmp_path / "partition", open_graph(graph)).manifest["hosts"]
    assert (hosts["edge_cut_between"], hosts["edge_cut_within"]) == (2, 2)
    assert (hosts["communication_volume_between"], hosts["communication_volume_within"]) == (4, 4)
    assert hosts["balance_hosts"] == 1


def test_induced_edges_are_those_between_the_nodes(graph_of, skewed):
    graph = graph_of(60, skewed(0, 60, 150))
    nodes = np.flatnonzero(np.random.default_rng(0).random(60) < 0.5)
    inside = induced(canonical(graph.indptr, graph.indices), nodes)
    found = {
        (int(nodes[row]), int(nodes[column]))
        for row in range(len(nodes))
        for column in inside.indices[inside.indptr[row] : inside.indptr[row + 1]]
    }
    assert found == {(one, two) for one, two in skewed(0, 60, 150) if one in nodes and two in nodes}

"""What every method of partitioning promises, and what is particular to each."""

import math
import stat

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anatomy.errors import StudyError
from anatomy.graphs.store import open_graph
from anatomy.partitions import PARTITIONERS, build
from anatomy.partitions.adjacency import Adjacency, canonical
from anatomy.partitions.balance import groups_of, level
from anatomy.partitions.methods import ldg, metis
from anatomy.partitions.options import complete_options
from anatomy.partitions.quality import CutEdges
from anatomy.partitions.repair import fill_empty_parts

METHODS = [name for name in PARTITIONERS if name != "single"]
REQUIRED = {"hierarchical": {"ranks_per_host": 2}}


@st.composite
def small_graphs(draw):
    """(num_nodes, entries): directed, with loops and repeats."""
    num_nodes = draw(st.integers(2, 20))
    node = st.integers(0, num_nodes - 1)
    return num_nodes, draw(st.lists(st.tuples(node, node), max_size=60))


def assign(graph, options, num_parts):
    """The part of each node."""
    return build.assign(graph, options, num_parts).nodes


@pytest.mark.parametrize("method", METHODS)
@given(case=small_graphs(), data=st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_node_in_one_part_and_no_part_empty(metis_here, graph_of, method, case, data):
    num_nodes, entries = case
    num_parts = data.draw(st.integers(2, num_nodes))
    options = {"method": method, "seed": data.draw(st.integers(0, 3))} | REQUIRED.get(method, {})
    if "balance_train" in PARTITIONERS[method].constants["OPTIONS"]["properties"]:
        options["balance_train"] = data.draw(st.booleans())
    if method in ("metis", "hierarchical"):
        options |= {"attempts": 3, "objective": data.draw(st.sampled_from(["cut", "volume"]))}
    split = data.draw(st.lists(st.integers(-1, 2), min_size=num_nodes, max_size=num_nodes))
    assignment = assign(graph_of(num_nodes, entries, split), complete_options(options), num_parts)
    assert assignment.dtype == np.int32
    assert assignment.shape == (num_nodes,)
    assert np.bincount(assignment, minlength=num_parts).min() > 0
    assert set(assignment.tolist()) == set(range(num_parts))


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_partition(stored_graph, communities, method):
    graph = open_graph(stored_graph(80, communities(4, 20)))
    one, two = (
        assign(graph, complete_options({"method": method, "seed": 7} | REQUIRED.get(method, {})), 4) for _ in range(2)
    )
    assert np.array_equal(one, two)


@pytest.mark.parametrize("method", ["random", "ldg"])
def test_another_seed_another_partition(graph_of, communities, method):
    graph = graph_of(80, communities(4, 20))
    one, two = (assign(graph, complete_options({"method": method, "seed": seed}), 4) for seed in (0, 1))
    assert not np.array_equal(one, two)


def test_single_is_one_part_only(graph_of, ring):
    graph = graph_of(5, ring(5))
    assert assign(graph, complete_options({"method": "single"}), 1).tolist() == [0] * 5
    with pytest.raises(StudyError, match="graph small: found 2 parts for the partitioner 'single', expected 1"):
        assign(graph, complete_options({"method": "single"}), 2)


def test_hash_is_contiguous_ranges(graph_of, ring):
    assert assign(graph_of(7, ring(7)), complete_options({"method": "hash"}), 3).tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_random_deals_equally(graph_of, ring):
    """10 = 4 + 3 + 3 nodes; of the 5 training nodes 2 + 2 + 1 where that is asked for."""
    graph = graph_of(10, ring(10), split=[0, 1] * 5)
    assignment = assign(graph, complete_options({"method": "random", "balance_train": True}), 3)
    assert sorted(np.bincount(assignment)) == [3, 3, 4]
    assert sorted(np.bincount(assignment[::2])) == [1, 2, 2]


# ldg


def ldg_by_definition(num_nodes, entries, order, num_parts, imbalance):
    """Stanton & Kliot's rule, in words of Python."""
    neighbours = {node: set() for node in range(num_nodes)}
    for one, two in entries:
        if one != two:
            neighbours[one].add(two)
            neighbours[two].add(one)
    capacity = math.ceil((1 + imbalance) * num_nodes / num_parts)
    parts = [set() for _ in range(num_parts)]
    for node in order:
        open_parts = [part for part in parts if len(part) < capacity]
        scores = [len(part & neighbours[node]) * (1 - len(part) / capacity) for part in open_parts]
        ranked = [part for score, part in zip(scores, open_parts, strict=True) if score == max(scores)]
        min(ranked, key=len).add(node)
    return [next(number for number, part in enumerate(parts) if node in part) for node in range(num_nodes)]


@given(case=small_graphs(), num_parts=st.integers(2, 5), seed=st.integers(0, 5))
@settings(max_examples=60)
def test_ldg_follows_its_rule(graph_of, case, num_parts, seed):
    options = complete_options({"method": "ldg", "seed": seed})
    found = ldg.assign(graph_of(*case), num_parts, options)
    order = np.random.default_rng(seed).permutation(case[0])
    assert found.tolist() == ldg_by_definition(*case, order, num_parts, options["imbalance"])


def test_ldg_finds_communities_that_it_streams_through(graph_of, communities):
    graph = graph_of(200, communities(2, 100))
    cut = {method: cut_of(graph, {"method": method}) for method in ("ldg", "random")}
    assert cut["ldg"] < 0.5 * cut["random"]


def cut_of(graph, options, num_parts=2):
    assignment = assign(graph, complete_options(options), num_parts)
    return CutEdges(graph, assignment).count_pairs()


# metis


@given(case=small_graphs())
@settings(max_examples=200)
def test_canonical_adjacency_is_the_undirected_simple_graph(graph_of, case):
    num_nodes, entries = case
    graph = graph_of(num_nodes, entries)
    adjacency = canonical(graph.indptr, graph.indices)
    found = {(node, int(other)) for node in range(num_nodes) for other in row(adjacency, node)}
    assert found == {pair for one, two in entries if one != two for pair in ((one, two), (two, one))}
    assert all(np.all(np.diff(row(adjacency, node)) > 0) for node in range(num_nodes))
    again = canonical(*adjacency)
    assert again.indices is adjacency.indices, "what is canonical is not copied"


def row(adjacency, node):
    return adjacency.indices[adjacency.indptr[node] : adjacency.indptr[node + 1]]


def test_repeated_edges_are_dropped_however_many(graph_of):
    """256 repeats would wrap around to 0 in a byte."""
    graph = graph_of(2, [(0, 1)] * 256)
    assert canonical(graph.indptr, graph.indices).indices.tolist() == [1, 0]


def test_metis_takes_a_directed_graph(stored_graph):
    """300 nodes of out-degree 2, the case on which METIS itself crashes or returns negative cuts."""
    generator = np.random.default_rng(0)
    entries = {(int(target), node) for node in range(300) for target in generator.integers(0, 300, 2)}
    graph = open_graph(stored_graph(300, entries))
    assignment = assign(graph, complete_options({"method": "metis"}), 4)
    assert np.bincount(assignment).max() <= 1.03 * 300 / 4 + 1


def test_metis_counts_repeated_edges_once(graph_of, metis_here, communities):
    entries = communities(4, 20)
    once, thrice = graph_of(80, entries), graph_of(80, [*entries, *entries, *entries[::2]])
    options = complete_options({"method": "metis"})
    assert np.array_equal(assign(once, options, 4), assign(thrice, options, 4))


@pytest.mark.parametrize("num_parts", [2, 9, 10])
def test_metis_on_a_ring_with_few_nodes_per_part(stored_graph, ring, num_parts):
    graph = open_graph(stored_graph(10, ring(10)))
    assignment = assign(graph, complete_options({"method": "metis"}), num_parts)
    assert np.bincount(assignment, minlength=num_parts).min() >= 1
    assert CutEdges(graph, assignment).count_pairs() == num_parts, (
        "a ring in n parts cannot be cut in fewer than n places"
    )


def test_metis_without_edges(stored_graph):
    assignment = assign(open_graph(stored_graph(7, [])), complete_options({"method": "metis"}), 3)
    assert sorted(np.bincount(assignment)) == [2, 2, 3]


def test_metis_finds_communities(graph_of, metis_here, communities):
    """The four groups are what the best cut separates."""
    assignment = assign(graph_of(120, communities(4, 30)), complete_options({"method": "metis"}), 4)
    groups = assignment.reshape(4, 30)
    assert (groups == groups[:, :1]).mean() > 0.95


def test_more_attempts_never_cut_more(graph_of, metis_here, communities):
    graph = graph_of(200, communities(10, 20, seed=3))
    cuts = [cut_of(graph, {"method": "metis", "attempts": attempts}, 8) for attempts in (1, 2, 4, 8)]
    assert cuts == sorted(cuts, reverse=True)


def test_metis_balances_training_nodes_where_they_lie_together(graph_of, metis_here, communities):
    """All training nodes are in one of four communities, which the best cut keeps together."""
    split = [0] * 30 + [1] * 90
    graph = graph_of(120, communities(4, 30), split=split)
    plain, balanced = (
        assign(graph, complete_options({"method": "metis", "balance_train": flag}), 4) for flag in (False, True)
    )
    assert np.bincount(plain[:30], minlength=4).max() > 20
    assert np.bincount(balanced[:30], minlength=4).max() <= 8, "30 / 4, rounded up"
    assert np.bincount(balanced, minlength=4).max() <= 8 + 23, "and 90 / 4, rounded up, of the others"


@pytest.mark.parametrize(
    ("script", "how"), [("kill -SEGV $$", "was ended by SIGSEGV"), ("echo no; exit 3", "status 3")]
)
def test_a_crash_of_metis_is_a_message(stored_graph, ring, tmp_path, monkeypatch, script, how):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(metis.sys, "executable", str(program))
    graph = open_graph(stored_graph(10, ring(10), name="rings"))
    with pytest.raises(StudyError, match=rf"graph rings: METIS .*{how}.* while cutting it into 3 parts"):
        assign(graph, complete_options({"method": "metis"}), 3)


# balance and repair


@given(case=small_graphs(), data=st.data())
@settings(max_examples=100)
def test_level_keeps_every_group_within_its_limit(graph_of, case, data):
    num_nodes, entries = case
    num_parts = data.draw(st.integers(1, num_nodes))
    start = data.draw(st.lists(st.integers(0, num_parts - 1), min_size=num_nodes, max_size=num_nodes))
    graph = graph_of(
        num_nodes, entries, data.draw(st.lists(st.integers(-1, 1), min_size=num_nodes, max_size=num_nodes))
    )
    group = groups_of(graph)
    levelled = level(
        canonical(graph.indptr, graph.indices),
        np.array(start, dtype=np.int32),
        group,
        np.full(num_parts, 1 / num_parts),
        0.1,
    )
    for label in (0, 1):
        sizes = np.bincount(levelled[group == label], minlength=num_parts)
        mean = sizes.sum() / num_parts
        assert sizes.max() <= max(math.ceil(mean), 1.1 * mean)


def test_level_moves_what_costs_least(graph_of):
    """Node 3 is the one of part 0 that has its neighbours in part 1."""
    pairs = [(0, 1), (1, 2), (0, 2), (3, 4), (3, 5), (4, 5)]
    graph = graph_of(6, [*pairs, *(pair[::-1] for pair in pairs)])
    start = np.array([0, 0, 0, 0, 1, 1], dtype=np.int32)
    adjacency = Adjacency(graph.indptr, graph.indices)
    assert level(adjacency, start, groups_of(graph), np.full(2, 0.5), 0.0).tolist() == [0, 0, 0, 1, 1, 1]
    assert start.tolist() == [0, 0, 0, 0, 1, 1], "the input is left alone"


def test_empty_parts_get_connected_pieces(graph_of):
    """A path of 8 in one part of 4: the others get 8 / 4 = 2 neighbouring nodes each."""
    path = [(node, node + step) for node in range(8) for step in (1, -1) if 0 <= node + step < 8]
    graph = graph_of(8, path)
    filled = fill_empty_parts(Adjacency(graph.indptr, graph.indices), np.full(8, 2, dtype=np.int32), 4)
    assert np.bincount(filled).tolist() == [2, 2, 2, 2]
    assert CutEdges(graph, filled).count_pairs() == 3

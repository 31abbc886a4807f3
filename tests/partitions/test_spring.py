"""SPRING's three steps, each held against its rule, and what it costs."""

import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anatomy.partitions import adjacency
from anatomy.partitions.build import assign
from anatomy.partitions.methods import spring
from anatomy.partitions.options import complete_options
from anatomy.partitions.quality import CutEdges


@st.composite
def small_graphs(draw):
    """(num_nodes, entries): directed, with loops and repeats, and nodes without edges."""
    num_nodes = draw(st.integers(1, 20))
    node = st.integers(0, num_nodes - 1)
    return num_nodes, sorted(draw(st.lists(st.tuples(node, node), max_size=60)))


def degrees_of(num_nodes, entries):
    count = Counter(end for entry in entries for end in entry)
    return np.array([count[node] for node in range(num_nodes)], dtype=np.int64)


def clusters_by_definition(num_nodes, entries, limit, passes):
    """Sets of nodes that an edge moves between, and for each node the first of its neighbours of highest degree."""
    degree = degrees_of(num_nodes, entries)
    clusters = [{node} for node in range(num_nodes)]
    richest = [-1] * num_nodes
    for target, source in entries * passes:
        if target == source:
            continue
        for one, two in ((target, source), (source, target)):
            if richest[one] < 0 or degree[two] > degree[richest[one]]:
                richest[one] = two
        here, there = (next(cluster for cluster in clusters if end in cluster) for end in (target, source))
        volumes = [sum(degree[node] for node in cluster) for cluster in (here, there)]
        if here is there or max(volumes) > limit:
            continue
        mover, old, new = (target, here, there) if volumes[0] <= volumes[1] else (source, there, here)
        old.remove(mover)
        new.add(mover)
    return {frozenset(cluster) for cluster in clusters if cluster}, richest


def as_sets(cluster):
    return {frozenset(np.flatnonzero(cluster == number).tolist()) for number in np.unique(cluster)}


@given(case=small_graphs(), limit=st.sampled_from([0, 2, 5, 10, 1000]), passes=st.integers(1, 2))
@settings(max_examples=150)
def test_clusters_follow_the_rule(graph_of, case, limit, passes):
    """In blocks of any size: the stream goes on where it was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adjacency.entry_blocks, "__defaults__", (4,))
        cluster, richest = spring._clusters(graph_of(*case), degrees_of(*case), limit, passes)
    clusters, neighbours = clusters_by_definition(*case, limit, passes)
    assert as_sets(cluster) == clusters
    assert richest.tolist() == neighbours


@given(case=small_graphs(), capacity=st.integers(1, 20), data=st.data())
@settings(max_examples=150)
def test_merging_ends_where_no_cluster_has_a_richest_neighbour_with_room(graph_of, case, capacity, data):
    num_nodes = case[0]
    cluster = np.array(data.draw(st.lists(st.integers(0, 9), min_size=num_nodes, max_size=num_nodes)))
    _, richest = spring._clusters(graph_of(*case), degrees_of(*case), 0, 1)
    merged = spring._merged(cluster, richest, degrees_of(*case), capacity)
    sizes = np.bincount(merged)
    before, after = as_sets(cluster), as_sets(merged)
    assert all(any(one <= two for two in after) for one in before), "clusters are joined, never divided"
    assert all(len(joined) <= capacity for joined in after - before), "what was joined fits a part"
    for node in range(num_nodes):
        if richest[node] >= 0 and merged[node] != merged[richest[node]]:
            assert sizes[merged[node]] + sizes[merged[richest[node]]] > capacity


def test_a_cluster_joins_the_richest_of_its_richest_neighbours(graph_of):
    """Nodes 0 and 1 are a cluster; 0 knows node 2 of degree 3, and 1 knows node 5 of degree 4."""
    pairs = [(0, 2), (2, 3), (2, 4), (1, 5), (5, 6), (5, 7), (5, 8)]
    entries = [entry for one, two in pairs for entry in ((one, two), (two, one))]
    cluster = np.array([0, 0, 2, 2, 2, 5, 5, 5, 5])
    degree = degrees_of(9, entries)
    _, richest = spring._clusters(graph_of(9, entries), degree, 0, 1)
    assert as_sets(spring._merged(cluster, richest, degree, 6)) == {frozenset({0, 1, 5, 6, 7, 8}), frozenset({2, 3, 4})}
    assert as_sets(spring._merged(cluster, richest, degree, 5)) == {frozenset({0, 1, 2, 3, 4}), frozenset({5, 6, 7, 8})}


def test_clusters_are_dealt_from_the_largest_and_divided_where_none_fits():
    """Sizes 4, 3, 3, 2 into 2 parts of up to 6: 4 | 3 3, and the last to the first part. With 3 parts of up to 4, they
    go 4 | 3 1 | 3 1."""
    cluster = np.repeat([1, 0, 2, 3], [4, 3, 3, 2])
    assert spring._deal(cluster, 2, 6).tolist() == [0] * 4 + [1] * 6 + [0] * 2
    assert spring._deal(cluster, 3, 4).tolist() == [0] * 4 + [1] * 3 + [2] * 3 + [1, 2]


@given(case=small_graphs(), imbalance=st.sampled_from([0, 0.05, 0.5]), data=st.data())
@settings(max_examples=100)
def test_no_part_exceeds_its_limit(graph_of, case, imbalance, data):
    num_parts = data.draw(st.integers(1, case[0]))
    options = complete_options({"method": "spring", "imbalance": imbalance})
    nodes = assign(graph_of(*case), options, num_parts).nodes
    mean = case[0] / num_parts
    assert np.bincount(nodes).max() <= max(np.ceil(mean), (1 + imbalance) * mean)


def test_it_cuts_less_than_random_parts(graph_of, skewed, communities):
    """On the mean over 10 graphs of each kind."""
    for make in (skewed, lambda seed: communities(6, 50, seed)):
        cuts = {"spring": 0, "random": 0}
        for seed in range(10):
            graph = graph_of(300, make(seed))
            for method in cuts:
                nodes = assign(graph, complete_options({"method": method, "seed": seed}), 4).nodes
                cuts[method] += CutEdges(graph, nodes).count_pairs()
        assert cuts["spring"] < 0.9 * cuts["random"]


def test_memory_does_not_grow_with_the_edges(graph_of):
    """400,000 edges of 3.2 MB, in blocks of 4,096: less than a tenth of that is held besides."""
    num_nodes = 1000
    generator = np.random.default_rng(0)
    graph = graph_of(num_nodes, [])
    object.__setattr__(graph, "indptr", np.arange(num_nodes + 1, dtype=np.int64) * 400)
    object.__setattr__(graph, "indices", np.sort(generator.integers(0, num_nodes, (num_nodes, 400)), axis=1).ravel())
    graph.manifest["num_edges"] = len(graph.indices)
    options = complete_options({"method": "spring"})
    spring.assign(graph, 4, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adjacency.entry_blocks, "__defaults__", (4096,))
        patch.setattr(adjacency.slices, "__defaults__", (4096,))
        tracemalloc.start()
        spring.assign(graph, 4, options)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 0.1 * graph.indices.nbytes

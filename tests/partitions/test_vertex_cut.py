"""Vertex cuts: the greedy rule, what every node and edge gets, and quality held against its definition."""

import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anatomy.errors import StudyError
from anatomy.files import save_array
from anatomy.graphs.store import open_graph
from anatomy.partitions import PARTITIONERS, adjacency, build, needs
from anatomy.partitions.build import assign, measure_all, partition_graph
from anatomy.partitions.methods import libra
from anatomy.partitions.options import complete_options
from anatomy.partitions.store import open_partition
from anatomy.partitions.vertexcut import measure_vertex_cut, roots


@st.composite
def small_graphs(draw):
    """(num_nodes, entries): directed, with loops and repeats, and nodes without edges."""
    num_nodes = draw(st.integers(1, 14))
    node = st.integers(0, num_nodes - 1)
    return num_nodes, sorted(draw(st.lists(st.tuples(node, node), max_size=50)))


def both_ways(pairs):
    return [entry for one, two in pairs for entry in ((one, two), (two, one))]


def libra_by_definition(num_nodes, entries, order, num_parts, imbalance):
    """The module's rule, in words of Python."""
    degree = Counter(end for entry in entries for end in entry)
    capacity = max(1, math.ceil((1 + imbalance) * len(entries) / num_parts))
    has = {node: set() for node in range(num_nodes)}
    load = [0] * num_parts
    part_of = {}
    for target in order:
        for source in sorted({source for end, source in entries if end == target}):
            pair = frozenset((target, source))
            if pair in part_of:
                continue
            lower = min(degree[target], degree[source])
            decides = set().union(*(has[end] for end in pair if degree[end] == lower))
            wanted = [has[target] & has[source], decides, has[target] | has[source], set(range(num_parts))]
            allowed = [{part for part in parts if load[part] < capacity} for parts in wanted]
            best = min(next(filter(None, allowed)), key=lambda part: (load[part], part))
            part_of[pair] = best
            load[best] += sum(frozenset(entry) == pair for entry in entries)
            for end in pair:
                has[end].add(best)
    return [part_of[frozenset(entry)] for entry in entries]


@pytest.mark.parametrize("name", PARTITIONERS)
def test_a_method_that_gives_parts_to_edges_says_so(name):
    plugin = PARTITIONERS[name]
    assert (plugin.constants.get("PARTITION") == "vertex_cut") == hasattr(plugin.load(), "assign_edges")


@given(
    case=small_graphs(), num_parts=st.integers(1, 5), seed=st.integers(0, 3), imbalance=st.sampled_from([0, 0.03, 1])
)
@settings(max_examples=150)
def test_libra_follows_its_rule(graph_of, case, num_parts, seed, imbalance):
    options = complete_options({"method": "libra", "seed": seed, "imbalance": imbalance})
    order = np.random.default_rng(seed).permutation(case[0])
    found = libra.assign_edges(graph_of(*case), num_parts, options)
    assert found.dtype == np.int32
    assert found.tolist() == libra_by_definition(*case, order.tolist(), num_parts, imbalance)


@given(
    case=small_graphs(),
    data=st.data(),
    order=st.sampled_from(["random", "natural"]),
    imbalance=st.sampled_from([0, 0.03, 0.5]),
)
@settings(max_examples=150)
def test_libra_keeps_its_promises(graph_of, case, data, order, imbalance):
    num_nodes, entries = case
    num_parts = data.draw(st.integers(1, num_nodes))
    options = complete_options({"method": "libra", "order": order, "imbalance": imbalance})
    nodes, edges = assign(graph_of(num_nodes, entries), options, num_parts)
    assert edges.shape == (len(entries),)
    assert set(edges.tolist()) <= set(range(num_parts))
    by_pair = {}
    for entry, part in zip(entries, edges.tolist(), strict=True):
        assert by_pair.setdefault(frozenset(entry), part) == part, "one pair of nodes, one part"
    heaviest = max(Counter(frozenset(entry) for entry in entries).values(), default=1)
    limit = max(1, math.ceil((1 + imbalance) * len(entries) / num_parts))
    assert np.bincount(edges, minlength=num_parts).max() < limit + heaviest
    assert set(nodes.tolist()) == set(range(num_parts)), "no part without a root"


def test_libra_of_a_star_replicates_its_centre_alone(graph_of):
    """8 undirected edges into 4 parts: 2 each, the centre in all; 9 nodes and 3 mirrors."""
    graph = graph_of(9, both_ways((0, leaf) for leaf in range(1, 9)))
    options = complete_options({"method": "libra", "imbalance": 0})
    quality, _ = measure_all(graph, assign(graph, options, 4), 4)
    assert [part["edges"] for part in quality["vertex_cut"]["parts"]] == [4, 4, 4, 4]
    assert quality["vertex_cut"]["replication_factor"] == (9 + 3) / 9


def test_libra_replicates_less_than_random_edges(graph_of, skewed):
    """On the mean of 20 graphs less than half of the mirrors."""
    found = {"libra": 0, "random": 0}
    for seed in range(20):
        graph = graph_of(300, skewed(seed))
        edges = {
            "libra": libra.assign_edges(graph, 4, complete_options({"method": "libra", "seed": seed})),
            "random": np.random.default_rng(seed).integers(0, 4, graph.num_edges, dtype=np.int32),
        }
        for name, assignment in edges.items():
            found[name] += measure_vertex_cut(graph, roots(graph, assignment, 4), assignment, 4)[0]["mirrors"]
    assert found["libra"] < 0.5 * found["random"]


def test_another_seed_another_vertex_cut(graph_of, skewed):
    graph = graph_of(300, skewed(0))
    cuts = [libra.assign_edges(graph, 4, complete_options({"method": "libra", "seed": seed})) for seed in (0, 0, 1)]
    assert np.array_equal(cuts[0], cuts[1])
    assert not np.array_equal(cuts[0], cuts[2])


@st.composite
def vertex_cuts(draw):
    """(num_nodes, entries, part of each edge, parts)."""
    num_nodes, entries = draw(small_graphs())
    num_parts = draw(st.integers(1, num_nodes))
    part = st.integers(0, num_parts - 1)
    return num_nodes, entries, draw(st.lists(part, min_size=len(entries), max_size=len(entries))), num_parts


def replicas_by_definition(num_nodes, entries, edges, nodes=None):
    """The parts that have each node."""
    found = [set() if nodes is None else {nodes[node]} for node in range(num_nodes)]
    for entry, part in zip(entries, edges, strict=True):
        for end in entry:
            found[end].add(part)
    return found


@given(case=vertex_cuts())
@settings(max_examples=200)
def test_a_root_is_where_the_node_has_edges(graph_of, case):
    num_nodes, entries, edges, num_parts = case
    found = roots(graph_of(num_nodes, entries), np.array(edges, dtype=np.int32), num_parts)
    assert found.dtype == np.int32
    for part, replicas in zip(found.tolist(), replicas_by_definition(num_nodes, entries, edges), strict=True):
        assert part in (replicas or range(num_parts))


def test_roots_are_spread(graph_of):
    """Every node has an edge in every part, so that all parts can have equally many roots; a lone node fills up."""
    pairs = [(one, two) for one in range(11) for two in range(one)]
    graph = graph_of(12, [entry for entry in both_ways(pairs) for _ in range(3)])
    edges = np.arange(graph.num_edges, dtype=np.int32) % 3
    assert np.bincount(roots(graph, edges, 3)).tolist() == [4, 4, 4]


@given(case=vertex_cuts(), data=st.data(), block=st.sampled_from([1, 7, 1 << 20]), table=st.sampled_from([1, 1 << 20]))
@settings(max_examples=200)
def test_quality_equals_its_definition(graph_of, case, data, block, table):
    """For any roots, also those that are not among the parts of their node's edges, and in any number of walks."""
    num_nodes, entries, edges, num_parts = case
    nodes = data.draw(st.lists(st.integers(0, num_parts - 1), min_size=num_nodes, max_size=num_nodes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(needs, "MAX_TABLE_BYTES", table)
        patch.setattr(adjacency.entry_blocks, "__defaults__", (block,))
        quality, offsets, mirrors = measure_vertex_cut(
            graph_of(num_nodes, entries), *(np.array(array, dtype=np.int32) for array in (nodes, edges)), num_parts
        )
    replicas = replicas_by_definition(num_nodes, entries, edges, nodes)
    lists = [
        [node for node in range(num_nodes) if nodes[node] == owner != holder and holder in replicas[node]]
        for owner in range(num_parts)
        for holder in range(num_parts)
    ]
    assert [mirrors[offsets[pair] : offsets[pair + 1]].tolist() for pair in range(num_parts**2)] == lists
    count = sum(map(len, replicas))
    held = [sum(part in parts for parts in replicas) for part in range(num_parts)]
    assert quality == {
        "replication_factor": count / num_nodes,
        "mirrors": count - num_nodes,
        "balance_edges": pytest.approx(max(map(edges.count, range(num_parts))) * num_parts / len(edges))
        if edges
        else None,
        "balance_replicas": pytest.approx(max(held) * num_parts / count),
        "parts": [
            {
                "part": part,
                "edges": edges.count(part),
                "replicas": held[part],
                "mirrors": held[part] - nodes.count(part),
            }
            for part in range(num_parts)
        ],
        "mirror_matrix": [
            [len(lists[owner * num_parts + holder]) for holder in range(num_parts)] for owner in range(num_parts)
        ],
    }


# on disk


@pytest.fixture
def stored(stored_graph, skewed, tmp_path):
    """(graph, folder of its vertex cut into 3)."""
    graph = stored_graph(60, skewed(1, num_nodes=57, num_pairs=150))
    partition_graph(graph, {"method": "libra"}, 3, tmp_path / "partition")
    return open_graph(graph), tmp_path / "partition"


def test_a_stored_vertex_cut_is_read(stored):
    graph, folder = stored
    partition = open_partition(folder, graph)
    assert partition.is_vertex_cut
    targets = np.repeat(np.arange(60), np.diff(graph.indptr))
    entries = list(zip(targets.tolist(), graph.indices.tolist(), strict=True))
    replicas = replicas_by_definition(60, entries, partition.edge_assignment.tolist(), partition.assignment.tolist())
    offsets, parts = partition.replicas()
    for node in range(60):
        found = parts[offsets[node] : offsets[node + 1]].tolist()
        root = partition.assignment[node]
        assert found == [root, *sorted(replicas[node] - {root})]
    for holder in range(3):
        held = [partition.nodes(holder), *(partition.mirrors(owner, holder) for owner in range(3))]
        assert sorted(np.concatenate(held).tolist()) == [node for node in range(60) if holder in replicas[node]]
        ends = {end for position in partition.edges(holder) for end in entries[position]}
        assert ends <= set(np.concatenate(held).tolist())
        assert partition.mirrors(holder, holder).tolist() == []
    assert sorted(np.concatenate([partition.edges(part) for part in range(3)]).tolist()) == list(range(graph.num_edges))
    assert partition.manifest["vertex_cut"]["replication_factor"] == len(parts) / 60
    assert partition.manifest["total"]["balance_nodes"] == np.bincount(partition.assignment).max() / 20


def test_what_gives_parts_to_nodes_is_no_vertex_cut(stored_graph, ring, tmp_path):
    partition_graph(stored_graph(8, ring(8)), {"method": "hash"}, 2, tmp_path / "partition")
    partition = open_partition(tmp_path / "partition")
    assert not partition.is_vertex_cut
    assert "vertex_cut" not in partition.manifest
    for ask in (partition.replicas, lambda: partition.mirrors(0, 1), lambda: partition.edges(0)):
        with pytest.raises(StudyError, match=r"partition\.json: found no \w+, since hash gives parts to nodes"):
            ask()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("edge_assignment", lambda edges: edges + 1, r"edge_assignment\.npy: edge \d+: found part 3, expected 0 to 2"),
        ("edge_assignment", lambda edges: edges[1:], r"edge_assignment\.npy: .* shape \[\d+\], expected \[\d+\].*edge"),
        ("mirror_offsets", lambda offsets: offsets + 1, r"mirror_offsets\.npy: found 10 offsets"),
        ("mirror_nodes", lambda nodes: nodes[::-1], r"mirror_nodes\.npy: entry \d+: found node \d+, expected one of"),
    ],
)
def test_a_damaged_vertex_cut_is_refused(stored, name, change, message):
    graph, folder = stored
    manifest = json.loads((folder / "partition.json").read_text())
    manifest["arrays"][name] = save_array(folder, name, np.ascontiguousarray(change(np.load(folder / f"{name}.npy"))))
    (folder / "partition.json").write_text(json.dumps(manifest))
    with pytest.raises(StudyError, match=message):
        open_partition(folder, graph)


def test_a_method_that_forgets_an_edge_is_refused(graph_of, ring, monkeypatch):
    monkeypatch.setattr(libra, "assign_edges", lambda graph, num_parts, options: np.zeros(9, dtype=np.int32))
    with pytest.raises(StudyError, match=r"libra: found an assignment of shape \[9\], expected \[10\]"):
        build.assign(graph_of(5, ring(5)), complete_options({"method": "libra"}), 2)

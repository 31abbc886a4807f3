"""Quality measures and halo lists, held against their definitions."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anatomy.partitions import needs, quality
from anatomy.partitions.adjacency import entry_blocks


@st.composite
def partitioned_graphs(draw):
    """(nodes, entries, split, labels, assignment, parts): directed, with loops and repeats, parts maybe empty."""
    num_nodes = draw(st.integers(1, 12))
    node = st.integers(0, num_nodes - 1)

    def each(values):
        return draw(st.lists(values, min_size=num_nodes, max_size=num_nodes))

    entries = draw(st.lists(st.tuples(node, node), max_size=40))
    num_parts = draw(st.integers(1, 4))
    parts = each(st.integers(0, num_parts - 1))
    return num_nodes, entries, each(st.integers(-1, 2)), each(st.integers(-1, 2)), parts, num_parts


def by_definition(num_nodes, entries, split, labels, assignment, num_parts):
    """Everything that `measure` returns, by loops over sets."""
    halo = {(p, q): set() for p in range(num_parts) for q in range(num_parts)}
    for target, source in entries:
        if assignment[target] != assignment[source]:
            halo[assignment[source], assignment[target]].add(source)
    parts = []
    for part in range(num_parts):
        own = [node for node in range(num_nodes) if assignment[node] == part]
        into = [source for target, source in entries if assignment[target] == part]
        parts.append(
            {
                "part": part,
                "nodes": len(own),
                "edges": len(into),
                "cut_edges": sum(assignment[source] != part for source in into),
                **{
                    name: sum(split[node] == value for node in own)
                    for value, name in enumerate(("train", "val", "test"))
                },
                "halo_nodes": sum(len(halo[owner, part]) for owner in range(num_parts)),
                "boundary_nodes": len(set().union(*(halo[part, consumer] for consumer in range(num_parts)))),
                "components": count_components(own, entries),
                "label_entropy_bits": entropy_bits([labels[node] for node in own if labels[node] >= 0]),
            }
        )
    volume = sum(map(len, halo.values()))
    cut = [pair for pair in entries if assignment[pair[0]] != assignment[pair[1]]]
    total = {
        "edge_cut": len({frozenset(pair) for pair in cut}),
        "cut_entries": len(cut),
        "communication_volume": volume,
        "replication_factor": (num_nodes + volume) / num_nodes,
        **{f"balance_{key}": largest_over_mean([part[key] for part in parts]) for key in ("nodes", "edges", "train")},
        "components": sum(part["components"] for part in parts),
    }
    return parts, total, {pair: sorted(nodes) for pair, nodes in halo.items()}


def count_components(own, entries):
    group = {node: {node} for node in own}
    for one, two in entries:
        if one in group and two in group and group[one] is not group[two]:
            merged = group[one] | group[two]
            group.update(dict.fromkeys(merged, merged))
    return len({id(nodes) for nodes in group.values()})


def entropy_bits(labels):
    shares = [count / len(labels) for count in Counter(labels).values()]
    return -sum(share * math.log2(share) for share in shares) if shares else None


def largest_over_mean(counts):
    return max(counts) * len(counts) / sum(counts) if sum(counts) else None


@given(
    case=partitioned_graphs(),
    max_table_bytes=st.sampled_from([1, 24, 1 << 20]),
    max_cut_edges=st.sampled_from([1, 5, 1 << 20]),
)
@settings(max_examples=300)
def test_measures_equal_their_definitions(graph_of, case, max_table_bytes, max_cut_edges):
    """Also where the limits on memory make several walks necessary."""
    num_nodes, entries, split, labels, assignment, num_parts = case
    parts, total, halo = by_definition(*case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(needs, "MAX_TABLE_BYTES", max_table_bytes)
        patch.setattr(quality, "MAX_CUT_EDGES", max_cut_edges)
        patch.setattr(quality, "CONTRACTED_ENTRIES", 3)
        graph = graph_of(num_nodes, entries, split, labels)
        found, offsets, nodes = quality.measure(graph, np.array(assignment, dtype=np.int32), num_parts)
    entropies = [part.pop("label_entropy_bits") for part in found["parts"]]
    assert entropies == pytest.approx([part.pop("label_entropy_bits") for part in parts], abs=1e-12)
    assert found["parts"] == parts
    assert found["total"] == pytest.approx(total)
    lists = [nodes[offsets[pair] : offsets[pair + 1]].tolist() for pair in range(num_parts**2)]
    assert lists == [halo[p, q] for p in range(num_parts) for q in range(num_parts)]
    assert found["halo_matrix"] == [[len(halo[p, q]) for q in range(num_parts)] for p in range(num_parts)]
    assert (offsets.dtype, nodes.dtype) == (np.int64, np.int64)


def test_two_triangles_joined_by_one_edge(graph_of):
    pairs = [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5), (2, 3)]
    graph = graph_of(6, [*pairs, *(pair[::-1] for pair in pairs)], labels=[0, 0, 1, 1, 1, 1])
    found, _, nodes = quality.measure(graph, np.array([0, 0, 0, 1, 1, 1], dtype=np.int32), 2)
    assert nodes.tolist() == [2, 3], "part 1 needs node 2, part 0 needs node 3"
    assert found["total"]["edge_cut"] == 1
    assert found["total"]["cut_entries"] == 2
    assert found["total"]["replication_factor"] == (6 + 2) / 6
    assert found["parts"][0]["label_entropy_bits"] == pytest.approx(
        -(2 / 3 * math.log2(2 / 3) + 1 / 3 * math.log2(1 / 3))
    )
    assert found["parts"][1]["label_entropy_bits"] == 0


@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=8), size=st.integers(1, 7))
def test_entry_blocks_walk_every_edge_once(counts, size):
    indptr = np.cumsum([0, *counts])
    indices = np.arange(indptr[-1]) * 10
    blocks = list(entry_blocks(indptr, indices, size))
    assert all(len(targets) == len(sources) <= size for targets, sources in blocks)
    targets = [node for block, _ in blocks for node in block]
    assert targets == [node for node, count in enumerate(counts) for _ in range(count)]
    assert [node for _, block in blocks for node in block] == indices.tolist()

"""Policies against their definition on lists of pairs."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anatomy.errors import StudyError
from anatomy.graphs import edges
from anatomy.graphs.policies import apply_policies
from anatomy.graphs.raw import RawGraph

Pair = tuple[int, int]


@st.composite
def pair_lists(draw: st.DrawFn) -> tuple[int, list[Pair]]:
    num_nodes = draw(st.integers(1, 6))
    node = st.integers(0, num_nodes - 1)
    return num_nodes, draw(st.lists(st.tuples(node, node), max_size=20))


def raw_graph(num_nodes: int, pairs: list[Pair], listed_once: bool = False) -> RawGraph:
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    packed = edges.pack(ends[:, 0], ends[:, 1], num_nodes, lambda i: f"pair {i}")
    return RawGraph(file="pairs", num_nodes=num_nodes, edges=packed, listed_once=listed_once)


def by_definition(num_nodes: int, pairs: list[Pair], direction: str, self_loops: str, duplicates: str) -> Counter[Pair]:
    """What should be stored: how often each (source, target)."""
    counts = Counter(pairs)
    if self_loops == "remove":
        counts = Counter({pair: n for pair, n in counts.items() if pair[0] != pair[1]})
    if self_loops == "add":
        counts.update((u, u) for u in range(num_nodes) if (u, u) not in counts)
    if duplicates == "merge":
        counts = Counter(set(counts))
    opposite = Counter({(v, u): n for (u, v), n in counts.items()})
    return {"keep": counts, "reverse": opposite, "symmetrise": counts | opposite}[direction]


@given(
    pair_lists(),
    st.sampled_from(["symmetrise", "keep", "reverse"]),
    st.sampled_from(["remove", "keep", "add"]),
    st.sampled_from(["merge", "keep"]),
)
def test_policies_store_what_they_say(
    listed: tuple[int, list[Pair]], direction: str, self_loops: str, duplicates: str
) -> None:
    num_nodes, pairs = listed
    packed, steps = apply_policies(raw_graph(num_nodes, pairs), direction, self_loops, duplicates)
    sources, targets = edges.unpack(packed, num_nodes)
    found = Counter(zip(sources.tolist(), targets.tolist(), strict=True))
    assert found == by_definition(num_nodes, pairs, direction, self_loops, duplicates)
    assert sum(step["added"] - step["removed"] for step in steps) == len(packed)
    assert [step["step"] for step in steps] == ["read", "self_loops", "duplicates", "symmetrise"]
    assert steps[0]["added"] == len(pairs)


@given(pair_lists())
def test_csr_holds_sorted_in_neighbours(listed: tuple[int, list[Pair]]) -> None:
    num_nodes, pairs = listed
    packed, _ = apply_policies(raw_graph(num_nodes, pairs), "keep", "keep", "keep")
    indptr, indices = edges.to_csr(packed, num_nodes)
    assert len(indptr) == num_nodes + 1
    for node in range(num_nodes):
        assert indices[indptr[node] : indptr[node + 1]].tolist() == sorted(u for u, v in pairs if v == node)


def test_blocks_give_the_same_as_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries cross the borders of blocks in every operation."""
    ends = np.random.default_rng(0).integers(0, 9, size=(200, 2))
    whole = apply_policies(raw_graph(9, ends.tolist()), "symmetrise", "add", "merge")
    monkeypatch.setattr("anatomy.graphs.edges.slices", lambda n: [slice(i, min(i + 7, n)) for i in range(0, n, 7)])
    pieces = apply_policies(raw_graph(9, ends.tolist()), "symmetrise", "add", "merge")
    assert whole[0].tolist() == pieces[0].tolist()
    assert whole[1] == pieces[1]


def test_direction_of_a_graph_listed_once_must_be_symmetrised() -> None:
    with pytest.raises(StudyError, match=r"direction: found 'keep', expected 'symmetrise'"):
        apply_policies(raw_graph(2, [(0, 1)], listed_once=True), "keep", "remove", "merge")


@pytest.mark.parametrize("pair", [(-1, 0), (0, 3), (3, 0), (0, -9)])
def test_ids_out_of_range_are_named(pair: Pair) -> None:
    wrong = next(node for node in pair if node not in range(3))
    with pytest.raises(StudyError, match=rf"pair 1: found node id {wrong}, expected 0 to 2"):
        raw_graph(3, [(0, 1), pair])


def test_more_edges_than_announced_are_refused() -> None:
    ends = np.zeros(3, dtype=np.int64)
    with pytest.raises(StudyError, match="more edges than the 2 that were announced"):
        edges.fill(np.empty(2, dtype=np.int64), [(ends, ends)], 1, lambda i: f"row {i}")

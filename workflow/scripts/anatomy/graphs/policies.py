"""What happens to the entries a source lists: self-loops, duplicates and direction, in this order.

Each step says how many entries it added and removed; what was read plus the added minus the removed is what is stored.
"""

from typing import Any

import numpy as np

from anatomy.errors import StudyError
from anatomy.graphs import edges
from anatomy.graphs.raw import RawGraph

POLICIES: dict[str, dict[str, Any]] = {
    "direction": {
        "type": "string",
        "enum": ["symmetrise", "keep", "reverse"],
        "default": "symmetrise",
        "description": "symmetrise: add each entry's missing opposite; keep: a node aggregates its edges' sources; "
        "reverse: it aggregates their targets",
    },
    "self_loops": {
        "type": "string",
        "enum": ["remove", "keep", "add"],
        "default": "remove",
        "description": "remove all self-loops, keep those of the source, or add one to each node that has none",
    },
    "duplicates": {
        "type": "string",
        "enum": ["merge", "keep"],
        "default": "merge",
        "description": "merge entries that are listed several times, or keep them",
    },
}
"""Options of every source, as JSON schema properties."""


def apply_policies(
    graph: RawGraph, direction: str, self_loops: str, duplicates: str
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """The entries to store, packed and sorted, int64 [entries], and what each step did. Consumes `graph.edges`.

    Raises StudyError where a direction other than `symmetrise` is asked of a source that lists each edge once.
    """
    if graph.listed_once and direction != "symmetrise":
        raise StudyError(
            f"{graph.file}: direction: found {direction!r}, expected 'symmetrise'; this source lists each undirected "
            "edge once, in no particular direction"
        )
    packed = graph.edges
    steps = [_step("read", "as listed", 0, len(packed))]
    for name, policy, apply in (
        ("self_loops", self_loops, _treat_loops),
        ("duplicates", duplicates, _treat_duplicates),
        ("symmetrise", direction, _treat_direction),
    ):
        before = len(packed)
        packed = apply(packed, graph.num_nodes, policy)
        steps.append(_step(name, policy, before, len(packed)))
    return packed, steps


def _step(name: str, policy: str, before: int, after: int) -> dict[str, Any]:
    return {"step": name, "policy": policy, "added": max(0, after - before), "removed": max(0, before - after)}


def _treat_loops(packed: np.ndarray, num_nodes: int, policy: str) -> np.ndarray:
    if policy == "remove":
        return edges.without_loops(packed, num_nodes)
    if policy == "add":
        lacking = np.ones(num_nodes, dtype=bool)
        lacking[edges.loops_of(packed, num_nodes)] = False
        nodes = np.flatnonzero(lacking)
        return np.concatenate([packed, nodes * num_nodes + nodes])
    return packed


def _treat_duplicates(packed: np.ndarray, num_nodes: int, policy: str) -> np.ndarray:
    packed.sort()
    return edges.merged(packed) if policy == "merge" else packed


def _treat_direction(packed: np.ndarray, num_nodes: int, policy: str) -> np.ndarray:
    """`packed` is sorted, and so is the result."""
    if policy == "keep":
        return packed
    if policy == "reverse":
        edges.turned(packed, num_nodes, out=packed)
        packed.sort()
        return packed
    if len(packed) and (packed[1:] == packed[:-1]).any():
        return _symmetrised_multigraph(packed, num_nodes)
    both = np.empty(2 * len(packed), dtype=np.int64)
    both[: len(packed)] = packed
    edges.turned(packed, num_nodes, out=both[len(packed) :])
    both.sort()
    return edges.merged(both)


def _symmetrised_multigraph(packed: np.ndarray, num_nodes: int) -> np.ndarray:
    """Each entry as often as it or its opposite was listed, whichever is more: what is symmetric stays as it is."""
    entries, counts = np.unique(packed, return_counts=True)
    opposite = edges.turned(entries, num_nodes, out=np.empty_like(entries))
    union = np.unique(np.concatenate([entries, opposite]))
    most = np.zeros(len(union), dtype=np.int64)
    most[np.searchsorted(union, entries)] = counts
    # An entry has one opposite, so no position occurs twice here and the assignment loses nothing.
    places = np.searchsorted(union, opposite)
    most[places] = np.maximum(most[places], counts)
    return np.repeat(union, most)

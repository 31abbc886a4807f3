"""Balance of training nodes: the same number of steps for every rank, on top of the same number of nodes."""

import numpy as np

from anatomy.graphs.splits import TRAIN
from anatomy.graphs.store import Graph
from anatomy.partitions.adjacency import Adjacency, neighbours_of


def groups_of(graph: Graph) -> np.ndarray:
    """1 for training nodes and 0 for all others, int8 [num_nodes]: what is to be balanced separately."""
    return (np.asarray(graph.split) == TRAIN).astype(np.int8)


def level(
    adjacency: Adjacency, assignment: np.ndarray, group: np.ndarray, shares: np.ndarray, imbalance: float
) -> np.ndarray:
    """Move nodes until no part holds more of a group than (1 + imbalance) times its share, or its share rounded up.

    `group` is int8 [num_nodes], `shares` float64 [num_parts] sums to 1. From the fullest part those nodes leave that
    cost the cut least (Kernighan & Lin's gain, of one pass) for the part that has most of their neighbours and room.
    Returns a new int32 [num_nodes].
    """
    assignment = assignment.copy()
    for label in np.unique(group):
        members = np.flatnonzero(group == label)
        # Rounded, since a share of a whole number of nodes may come out a little above it.
        due = np.round(len(members) * shares, 6)
        limits = np.maximum(np.ceil(due), np.floor((1 + imbalance) * due)).astype(np.int64)
        while True:
            sizes = np.bincount(assignment[members], minlength=len(shares))
            fullest = int((sizes - limits).argmax())
            if sizes[fullest] <= limits[fullest]:
                break
            _relieve(adjacency, assignment, members, fullest, sizes, limits)
    return assignment


def _relieve(
    adjacency: Adjacency,
    assignment: np.ndarray,
    members: np.ndarray,
    fullest: int,
    sizes: np.ndarray,
    limits: np.ndarray,
) -> None:
    """Move `members` out of part `fullest`, in place: at least one, and no more than fit elsewhere below `limits`."""
    inside = members[assignment[members] == fullest]
    owner, neighbours = neighbours_of(adjacency, inside)
    num_parts = len(sizes)
    ties = np.bincount(owner * num_parts + assignment[neighbours], minlength=len(inside) * num_parts)
    gain = ties.reshape(-1, num_parts) - ties.reshape(-1, num_parts)[:, [fullest]]
    gain[:, sizes >= limits] = np.iinfo(gain.dtype).min
    target = gain.argmax(axis=1)
    leaving = np.argsort(-gain.max(axis=1), kind="stable")[: sizes[fullest] - limits[fullest]]
    for part in np.unique(target[leaving]):
        movers = leaving[target[leaving] == part][: limits[part] - sizes[part]]
        assignment[inside[movers]] = part

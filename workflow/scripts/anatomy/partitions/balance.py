"""Balance of training nodes: the same number of steps for every rank, on top of the same number of nodes."""

import math

import numpy as np

from anatomy.graphs.splits import TRAIN
from anatomy.graphs.store import Graph
from anatomy.partitions.adjacency import Adjacency, neighbours_of


def groups_of(graph: Graph) -> np.ndarray:
    """1 for training nodes and 0 for all others, int8 [num_nodes]: what is to be balanced separately."""
    return (np.asarray(graph.split) == TRAIN).astype(np.int8)


def level(
    adjacency: Adjacency, assignment: np.ndarray, group: np.ndarray, num_parts: int, imbalance: float
) -> np.ndarray:
    """Move nodes until no part holds more of a group than (1 + imbalance) times the mean, or the mean rounded up.

    `group` is int8 [num_nodes]. From the fullest part those nodes leave that cost the cut least (Kernighan & Lin's
    gain, of one pass) for the part that has most of their neighbours and room. Returns a new int32 [num_nodes].
    """
    assignment = assignment.copy()
    for label in np.unique(group):
        members = np.flatnonzero(group == label)
        mean = len(members) / num_parts
        limit = max(math.ceil(mean), math.floor((1 + imbalance) * mean))
        while True:
            sizes = np.bincount(assignment[members], minlength=num_parts)
            fullest = int(sizes.argmax())
            if sizes[fullest] <= limit:
                break
            _relieve(adjacency, assignment, members, fullest, sizes, limit)
    return assignment


def _relieve(
    adjacency: Adjacency, assignment: np.ndarray, members: np.ndarray, fullest: int, sizes: np.ndarray, limit: int
) -> None:
    """Move `members` out of part `fullest`, in place: at least one, and no more than fit elsewhere below `limit`."""
    inside = members[assignment[members] == fullest]
    owner, neighbours = neighbours_of(adjacency, inside)
    num_parts = len(sizes)
    ties = np.bincount(owner * num_parts + assignment[neighbours], minlength=len(inside) * num_parts)
    gain = ties.reshape(-1, num_parts) - ties.reshape(-1, num_parts)[:, [fullest]]
    gain[:, sizes >= limit] = np.iinfo(gain.dtype).min
    target = gain.argmax(axis=1)
    leaving = np.argsort(-gain.max(axis=1), kind="stable")[: sizes[fullest] - limit]
    for part in np.unique(target[leaving]):
        movers = leaving[target[leaving] == part][: limit - sizes[part]]
        assignment[inside[movers]] = part

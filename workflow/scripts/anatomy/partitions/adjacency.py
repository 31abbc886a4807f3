"""Adjacency as partitioners need it, and a walk over stored edges in bounded memory."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse

from anatomy.graphs.blocks import BLOCK_ENTRIES, slices


class Adjacency(NamedTuple):
    """Undirected neighbours: `indptr` int64 [num_nodes + 1], `indices` int64, sorted for each node."""

    indptr: np.ndarray
    indices: np.ndarray


def canonical(indptr: np.ndarray, indices: np.ndarray) -> Adjacency:
    """The undirected simple graph under a stored graph: symmetric, without self-loops or repeats, neighbours sorted.

    Arrays that already are so are returned as they are, not copied.
    """
    narrow = np.int32 if max(len(indptr), len(indices)) < 2**31 else np.int64
    matrix = scipy.sparse.csr_array(
        (np.ones(len(indices), dtype=bool), indices.astype(narrow), indptr.astype(narrow)), shape=(len(indptr) - 1,) * 2
    )
    if _rises(indptr, indices) and not matrix.diagonal().any() and _is_symmetric(matrix):
        return Adjacency(indptr, indices)
    # Booleans, since numbers that count repeated entries could wrap around to 0 and drop an edge.
    matrix = (matrix + matrix.T).tocsr()
    matrix.setdiag(False)
    matrix.eliminate_zeros()
    matrix.sort_indices()
    return Adjacency(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64))


def _rises(indptr: np.ndarray, indices: np.ndarray) -> bool:
    """Whether neighbours rise strictly within each node."""
    for piece in slices(len(indices)):
        block = indices[piece.start : piece.stop + 1]
        falls = np.flatnonzero(block[1:] <= block[:-1]) + piece.start + 1
        # Only where a node's list begins may an id follow that is not larger.
        if np.any(indptr[np.minimum(np.searchsorted(indptr, falls), len(indptr) - 1)] != falls):
            return False
    return True


def _is_symmetric(matrix: scipy.sparse.csr_array) -> bool:
    """Whether a boolean matrix with rising rows equals its transpose."""
    transpose = matrix.T.tocsr()
    return np.array_equal(transpose.indptr, matrix.indptr) and np.array_equal(transpose.indices, matrix.indices)


def entry_blocks(
    indptr: np.ndarray, indices: np.ndarray, size: int = BLOCK_ENTRIES
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Stored edges as (targets, sources) in blocks of at most `size`, in the order of the store.

    A node with more neighbours than a block holds is spread over several.
    """
    for piece in slices(len(indices), size):
        first = int(np.searchsorted(indptr, piece.start, side="right")) - 1
        last = int(np.searchsorted(indptr, piece.stop, side="left"))
        counts = np.diff(np.clip(indptr[first : last + 1], piece.start, piece.stop))
        yield np.repeat(np.arange(first, last), counts), indices[piece]


def degrees(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Stored edges at each node, in and out, int64 [num_nodes]."""
    degree = np.diff(indptr)
    for piece in slices(len(indices)):
        degree += np.bincount(indices[piece], minlength=len(degree))
    return degree


def neighbours_of(adjacency: Adjacency, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The neighbours of some nodes, one after the other: (position in `nodes`, neighbour) of each, both int64."""
    starts, counts = adjacency.indptr[nodes], np.diff(adjacency.indptr)[nodes]
    owner = np.repeat(np.arange(len(nodes)), counts)
    offset = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return owner, adjacency.indices[starts[owner] + offset]


def induced(adjacency: Adjacency, nodes: np.ndarray) -> Adjacency:
    """The edges between some nodes, `nodes` int64 and rising, which are then called by their positions in it."""
    position = np.full(len(adjacency.indptr) - 1, -1, dtype=np.int64)
    position[nodes] = np.arange(len(nodes))
    owner, neighbours = neighbours_of(adjacency, nodes)
    found = position[neighbours]
    inside = found >= 0
    indptr = np.zeros(len(nodes) + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner[inside], minlength=len(nodes)), out=indptr[1:])
    return Adjacency(indptr, found[inside])

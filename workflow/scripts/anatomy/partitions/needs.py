"""Which part needs which node, put together from a walk over edges in bounded memory.

A walk is a function that begins it anew: an iterator over blocks of (parts, nodes), where parts[i] needs nodes[i]. The
same need may come up any number of times.
"""

from collections.abc import Callable, Iterator

import numpy as np

MAX_TABLE_BYTES = 256 << 20
"""Size of the table of which node is needed by which part; with more parts they take turns."""

Walk = Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]


def tables(walk: Walk, num_nodes: int, num_parts: int) -> Iterator[tuple[int, np.ndarray]]:
    """(first part, bool [some parts, num_nodes]: whether that part needs that node), for all parts in turn."""
    together = max(1, min(num_parts, MAX_TABLE_BYTES // max(1, num_nodes)))
    for first in range(0, num_parts, together):
        table = np.zeros((min(together, num_parts - first), num_nodes), dtype=bool)
        for parts, nodes in walk():
            row = parts - first
            taken = (row >= 0) & (row < len(table))
            table[row[taken], nodes[taken]] = True
        yield first, table


def lists_by_pair(walk: Walk, assignment: np.ndarray, num_parts: int) -> tuple[np.ndarray, np.ndarray]:
    """The nodes that each part needs, by the part that owns them; the walk names no part that needs its own nodes.

    Returns `offsets` int64 [num_parts² + 1] and `nodes` int64: what part p owns and part q needs is
    nodes[offsets[p * num_parts + q] : offsets[p * num_parts + q + 1]], sorted.
    """
    lists: dict[tuple[int, int], np.ndarray] = {}
    for first, table in tables(walk, len(assignment), num_parts):
        for row, mask in enumerate(table):
            nodes = np.flatnonzero(mask)
            nodes = nodes[np.argsort(assignment[nodes], kind="stable")]
            ends = np.cumsum(np.bincount(assignment[nodes], minlength=num_parts))
            lists |= {(owner, first + row): piece for owner, piece in enumerate(np.split(nodes, ends[:-1]))}
    ordered = [lists[owner, consumer] for owner in range(num_parts) for consumer in range(num_parts)]
    offsets = np.cumsum([0, *map(len, ordered)], dtype=np.int64)
    return offsets, np.concatenate(ordered).astype(np.int64, copy=False)

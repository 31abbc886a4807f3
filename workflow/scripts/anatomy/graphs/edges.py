"""Edges as sorted integers.

An entry `source → target` is the one int64 `target * num_nodes + source`. Sorting these gives the store's order (by
node, then by in-neighbour) at 8 bytes an entry, which is what lets graphs of billions of entries be built on one
machine.
"""

from collections.abc import Callable, Iterable

import numpy as np

from anatomy.errors import StudyError
from anatomy.graphs.blocks import slices

MAX_NODES = 3_037_000_499
"""The largest count whose square is an int64."""


def pack(sources: np.ndarray, targets: np.ndarray, num_nodes: int, place: Callable[[int], str]) -> np.ndarray:
    """Pack node ids, integers [entries] each, into int64 [entries].

    `place(i)` names entry i for messages. Raises StudyError where an id is not in `range(num_nodes)`.
    """
    packed = np.empty(len(sources), dtype=np.int64)
    fill(packed, [(sources, targets)], num_nodes, place)
    return packed


def fill(
    packed: np.ndarray,
    pieces: Iterable[tuple[np.ndarray, np.ndarray]],
    num_nodes: int,
    place: Callable[[int], str],
) -> int:
    """Pack consecutive pieces of (sources, targets) into `packed`, and return how many entries they were.

    Raises StudyError where an id is not in `range(num_nodes)`, or where the pieces are longer than `packed`.
    """
    if num_nodes > MAX_NODES:
        raise StudyError(f"{place(0)}: found {num_nodes} nodes, expected at most {MAX_NODES}")
    filled = 0
    for sources, targets in pieces:
        for piece in slices(len(sources)):
            check_ids(sources[piece], num_nodes, lambda i, first=filled: place(first + i))
            check_ids(targets[piece], num_nodes, lambda i, first=filled: place(first + i))
            end = filled + len(sources[piece])
            if end > len(packed):
                raise StudyError(f"{place(len(packed))}: found more edges than the {len(packed)} that were announced")
            np.multiply(targets[piece], num_nodes, out=packed[filled:end], dtype=np.int64, casting="unsafe")
            packed[filled:end] += sources[piece].astype(np.int64, copy=False)
            filled = end
    return filled


def check_ids(ids: np.ndarray, num_nodes: int, place: Callable[[int], str]) -> None:
    """Raise StudyError, naming the first place, where one of `ids`, integers [n], is not in `range(num_nodes)`."""
    if len(ids) and (ids.min() < 0 or ids.max() >= num_nodes):
        first = int(np.flatnonzero((ids < 0) | (ids >= num_nodes))[0])
        raise StudyError(
            f"{place(first)}: found node id {ids[first]}, expected 0 to {num_nodes - 1}; the file is damaged, or the "
            "node count that it states is wrong: fetch or write it again"
        )


def unpack(packed: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """(sources, targets), int64 each, of packed entries."""
    targets, sources = np.divmod(packed, num_nodes)
    return sources, targets


def turned(packed: np.ndarray, num_nodes: int, out: np.ndarray) -> np.ndarray:
    """Write each entry with source and target exchanged to `out`, which may be `packed` itself."""
    for piece in slices(len(packed)):
        sources, targets = unpack(packed[piece], num_nodes)
        out[piece] = sources * num_nodes + targets
    return out


def without_loops(packed: np.ndarray, num_nodes: int) -> np.ndarray:
    """The entries that join two different nodes, moved to the front of `packed` (which is overwritten)."""
    kept = 0
    for piece in slices(len(packed)):
        sources, targets = unpack(packed[piece], num_nodes)
        block = packed[piece][sources != targets]
        packed[kept : kept + len(block)] = block
        kept += len(block)
    return packed[:kept]


def merged(packed: np.ndarray) -> np.ndarray:
    """The distinct entries of sorted `packed`, moved to its front (it is overwritten)."""
    kept, previous = 0, -1
    for piece in slices(len(packed)):
        block = packed[piece]
        new = np.empty(len(block), dtype=bool)
        new[0] = block[0] != previous
        np.not_equal(block[1:], block[:-1], out=new[1:])
        previous = int(block[-1])
        block = block[new]
        packed[kept : kept + len(block)] = block
        kept += len(block)
    return packed[:kept]


def loops_of(packed: np.ndarray, num_nodes: int) -> np.ndarray:
    """Nodes with a self-loop, int64, once per entry."""
    found = [np.empty(0, dtype=np.int64)]
    for piece in slices(len(packed)):
        sources, targets = unpack(packed[piece], num_nodes)
        found.append(sources[sources == targets])
    return np.concatenate(found)


def to_csr(packed: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """`indptr` int64 [num_nodes + 1] and `indices` int64 [entries] of sorted entries; `packed` becomes `indices`."""
    firsts = np.arange(num_nodes + 1, dtype=np.int64)
    firsts *= num_nodes
    indptr = np.searchsorted(packed, firsts).astype(np.int64, copy=False)
    for piece in slices(len(packed)):
        packed[piece] %= num_nodes
    return indptr, packed

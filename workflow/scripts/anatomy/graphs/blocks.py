"""Arrays that are worked on piece by piece, so that a graph larger than memory can pass through."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

BLOCK_ENTRIES = 1 << 22
"""Entries of an edge array that are worked on at once: 32 MiB of int64."""
BLOCK_BYTES = 64 << 20
"""Size of the pieces in which features are made, checked and written."""


def slices(length: int, size: int = BLOCK_ENTRIES) -> Iterator[slice]:
    """Consecutive slices that cover `range(length)`, each `size` long but the last."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def rows_per_block(num_features: int) -> int:
    """How many float32 rows make up a block of features."""
    return max(1, BLOCK_BYTES // (4 * max(1, num_features)))


@dataclass(frozen=True)
class FeatureBlocks:
    """Node features as consecutive blocks of rows, which need never be in memory together.

    `blocks()` yields arrays [rows, num_features] of any real dtype, in the order of the nodes, num_nodes rows in all.
    `place` says where they come from, for messages.
    """

    num_nodes: int
    num_features: int
    blocks: Callable[[], Iterator[np.ndarray]]
    place: str = "features"

    @classmethod
    def from_rows(cls, rows: Any, place: str) -> "FeatureBlocks":
        """Blocks of an array or a sparse matrix (scipy, CSR) [num_nodes, num_features]."""
        num_nodes, num_features = rows.shape

        def blocks() -> Iterator[np.ndarray]:
            for piece in slices(num_nodes, rows_per_block(num_features)):
                block = rows[piece]
                yield block if isinstance(block, np.ndarray) else block.toarray()

        return cls(num_nodes, num_features, blocks, place)

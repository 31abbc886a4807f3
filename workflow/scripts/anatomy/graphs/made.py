"""What is made up for sources that hold a structure only, so that they can be trained on all the same."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from anatomy.graphs.blocks import FeatureBlocks, rows_per_block, slices

MADE_OPTIONS: dict[str, dict[str, Any]] = {
    "make_features": {
        "type": "string",
        "enum": ["degree", "random"],
        "default": "degree",
        "description": "features where there are none: degree (one-hot of its binary logarithm) or random (normal)",
    },
    "make_num_features": {
        "type": "integer",
        "minimum": 1,
        "default": 16,
        "description": "how many features to make where there are none",
    },
}
"""Options of the sources that may lack features."""


def make_features(indptr: np.ndarray, kind: str, num_features: int, seed: int) -> FeatureBlocks:
    """Features for a structure: `degree` has a 1 in column floor(log2(degree + 1)) or the last, `random` is N(0, 1)."""
    num_nodes = len(indptr) - 1
    rows = rows_per_block(num_features)

    def blocks() -> Iterator[np.ndarray]:
        for number, piece in enumerate(slices(num_nodes, rows)):
            if kind == "random":
                generator = np.random.default_rng([seed, 2, number])
                yield generator.standard_normal((piece.stop - piece.start, num_features), dtype=np.float32)
            else:
                degrees = np.diff(indptr[piece.start : piece.stop + 1])
                columns = np.minimum(np.log2(degrees + 1).astype(np.int64), num_features - 1)
                block = np.zeros((len(degrees), num_features), dtype=np.float32)
                block[np.arange(len(degrees)), columns] = 1
                yield block

    return FeatureBlocks(num_nodes, num_features, blocks)


def make_labels(num_nodes: int) -> np.ndarray:
    """Label 0 for every node, int64: training runs, and its accuracy means nothing."""
    return np.zeros(num_nodes, dtype=np.int64)

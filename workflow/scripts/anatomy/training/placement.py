"""Which host does what, and what then travels between hosts; without torch, for the tables as well.

A rank stands for a host. Each rank trains; a placement says which rank samples the batches of rank t (`samplers[t]`)
and which keeps the features of part p (`stores[p]`). Where all three are together, a placement is the identity.
"""

from collections.abc import Sequence

import numpy as np

BYTES_PER_FEATURE = 4
BYTES_PER_REQUEST = 4
BYTES_PER_COUNT = 8
"""Before each fetch every rank tells each other one, in an int64, how many rows it will ask for."""


def identity(num_ranks: int) -> list[int]:
    """Every rank samples its own batches and keeps the features of its own part."""
    return list(range(num_ranks))


def traffic(
    samplers: Sequence[int],
    stores: Sequence[int],
    rows: np.ndarray,
    batch_bytes: np.ndarray,
    steps: int,
    num_features: int,
) -> np.ndarray:
    """Bytes from each rank to each other in so many steps, int64 [sender, receiver], gradients left out.

    `rows` int64 [rank, part]: nodes of a part in the batches that a rank trains on; `batch_bytes` int64 [rank]: size of
    these batches as messages. Neither depends on the placement, so that one run tells the traffic of all.
    """
    num_ranks = len(stores)
    sent = np.full((num_ranks, num_ranks), BYTES_PER_COUNT * steps, np.int64)
    for rank in range(num_ranks):
        sent[samplers[rank], rank] += batch_bytes[rank]
        for part, store in enumerate(stores):
            sent[rank, store] += BYTES_PER_REQUEST * rows[rank, part]
            sent[store, rank] += BYTES_PER_FEATURE * num_features * rows[rank, part]
    np.fill_diagonal(sent, 0)
    return sent

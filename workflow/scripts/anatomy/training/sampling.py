"""Mini-batches by neighbour sampling (GraphSAGE, Hamilton et al., 2017).

One sampler for all backends of graph operators, so that equal generators give equal batches whatever the backend.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from anatomy.training.machine_code import compiled
from anatomy.training.operators.block import Block


@dataclass
class MiniBatch:
    """`blocks` from the input layer to the output layer; the first rows of a block's sources are its destinations.

    `input_nodes` int64: whose features the first block's sources are; `seed_nodes` int64: the last block's
    destinations.
    """

    seed_nodes: torch.Tensor
    input_nodes: torch.Tensor
    blocks: list[Block]


class NeighbourSampler:
    """Samples layer by layer from the seed nodes outwards: min(fan-out, degree) distinct in-neighbours of each node,
    every subset equally likely; all of them where the fan-out is -1.

    `indptr`, `indices` int64: the whole graph's, each node's in-neighbours.
    """

    def __init__(self, indptr: torch.Tensor, indices: torch.Tensor, fanouts: Sequence[int]) -> None:
        self._indptr = indptr.numpy()
        self._indices = indices.numpy()
        self._fanouts = list(fanouts)
        self._degrees = torch.diff(indptr).to(torch.float32)
        self._row_of = np.full(self._degrees.shape[0], -1, np.int32)
        self.sample(torch.empty(0, dtype=torch.int64), torch.Generator())  # compiles

    def sample(self, seed_nodes: torch.Tensor, generator: torch.Generator) -> MiniBatch:
        """The batch of some distinct seed nodes, int64 [seed nodes]; the generator gives it one number."""
        state = np.random.SeedSequence(int(torch.randint(2**63 - 1, (1,), generator=generator))).generate_state(
            2, np.uint64
        )
        blocks: list[Block] = []
        nodes = seed_nodes.numpy()
        for fanout in reversed(self._fanouts):
            most = self._most_edges(nodes, fanout)
            indptr, rows, nodes = compiled(sample_layer)(
                self._indptr, self._indices, nodes, fanout, most, self._row_of, state
            )
            inputs = torch.from_numpy(nodes)
            blocks.insert(0, Block(torch.from_numpy(indptr), torch.from_numpy(rows), len(nodes), self._degrees[inputs]))
        self._row_of[nodes] = -1
        return MiniBatch(seed_nodes, torch.from_numpy(nodes), blocks)

    def _most_edges(self, nodes: np.ndarray, fanout: int) -> int:
        """At least as many edges as the sample of these nodes has."""
        if fanout >= 0:
            return len(nodes) * fanout
        return int((self._indptr[nodes + 1] - self._indptr[nodes]).sum())


def sample_layer(
    indptr: np.ndarray,
    indices: np.ndarray,
    nodes: np.ndarray,
    fanout: int,
    most_edges: int,
    row_of: np.ndarray,
    state: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sampled in-neighbours of `nodes` int64: where each node's begin, int64 [nodes + 1]; for each its row among all
    nodes of the block, int64 [edges]; and these, int64: first `nodes`, then the others in the order in which they came.

    `row_of` int32 [all nodes]: each node's row where it has one, else -1; the layers of a batch share it. `state`
    uint64 [2] of the generator changes.

    Floyd's algorithm (Bentley and Floyd, 1987): of n neighbours, draw j of k comes from the first n - k + j + 1, and
    where that was drawn before, the last of them is taken, which no earlier draw could be.
    """
    starts = np.empty(len(nodes) + 1, np.int64)
    rows = np.empty(most_edges, np.int64)
    older, newer = state[0], state[1]
    edge = 0
    for row, node in enumerate(nodes):
        starts[row] = edge
        first, degree = indptr[node], indptr[node + 1] - indptr[node]
        size = degree if fanout < 0 else min(fanout, degree)
        for draw in range(size):
            pick = last = first + degree - size + draw
            if size < degree:
                # xorshift128+ (Vigna, 2017); the upper 32 bits, scaled: off from uniform by degree / 2^32 at most.
                mixed, older = older ^ (older << np.uint64(23)), newer
                newer = mixed ^ older ^ (mixed >> np.uint64(18)) ^ (older >> np.uint64(5))
                scale = np.uint64(last - first + 1)
                pick = first + np.int64((((newer + older) >> np.uint64(32)) * scale) >> np.uint64(32))
                taken = False
                for earlier in range(edge, edge + draw):
                    taken |= rows[earlier] == pick
                pick = last if taken else pick
            rows[edge + draw] = pick
        edge += size
    starts[len(nodes)] = edge
    state[0], state[1] = older, newer
    for position in range(edge):  # each of these loops by itself, and without branches: the processor reads ahead
        rows[position] = indices[rows[position]]
    found = np.empty(len(nodes) + edge, np.int64)
    for row, node in enumerate(nodes):
        row_of[node] = row
        found[row] = node
    num_found = len(nodes)
    for position in range(edge):
        node = rows[position]
        is_new = row_of[node] < 0
        row = num_found if is_new else row_of[node]
        found[num_found] = node
        row_of[node] = row
        rows[position] = row
        num_found += is_new
    return starts, rows[:edge], found[:num_found]


def generator_for(*keys: int) -> torch.Generator:
    """A CPU generator that depends on the keys (seed, rank, epoch, …) and on nothing else."""
    state = np.random.SeedSequence(list(keys)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))

"""Mini-batches by neighbour sampling (GraphSAGE, Hamilton et al., 2017)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from anatomy.training.operators.base import Operators
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
    """Samples layer by layer from the seed nodes outwards."""

    def __init__(
        self, operators: Operators, indptr: torch.Tensor, indices: torch.Tensor, fanouts: Sequence[int]
    ) -> None:
        self._operators = operators
        self._indptr = indptr
        self._indices = indices
        self._fanouts = list(fanouts)
        self._row_of = torch.full((indptr.shape[0] - 1,), -1, dtype=torch.int64)

    def sample(self, seed_nodes: torch.Tensor, generator: torch.Generator) -> MiniBatch:
        """The batch of some distinct seed nodes, int64 [seed nodes]."""
        blocks: list[Block] = []
        nodes = seed_nodes
        for fanout in reversed(self._fanouts):
            indptr, neighbours = self._operators.sample_neighbours(
                self._indptr, self._indices, nodes, fanout, generator
            )
            nodes, rows = self._number(nodes, neighbours)
            degrees = (self._indptr[nodes + 1] - self._indptr[nodes]).to(torch.float32)
            blocks.insert(0, Block(indptr, rows, nodes.shape[0], degrees))
        return MiniBatch(seed_nodes, nodes, blocks)

    def _number(self, destinations: torch.Tensor, neighbours: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All nodes of a block, destinations first and then the others in order of their ids; each neighbour's row."""
        self._row_of[destinations] = torch.arange(destinations.shape[0])
        others = self._distinct(neighbours[self._row_of[neighbours] < 0])
        nodes = torch.cat([destinations, others])
        self._row_of[others] = torch.arange(destinations.shape[0], nodes.shape[0])
        rows = self._row_of[neighbours]
        self._row_of[nodes] = -1
        return nodes, rows

    def _distinct(self, nodes: torch.Tensor) -> torch.Tensor:
        """Sorted distinct ids. Marking beats sorting unless the graph is huge beside the batch."""
        if self._row_of.shape[0] > 64 * nodes.shape[0]:
            return torch.unique(nodes)
        marks = torch.zeros(self._row_of.shape[0], dtype=torch.bool)
        marks[nodes] = True
        return torch.nonzero(marks).squeeze(1)


def generator_for(*keys: int) -> torch.Generator:
    """A CPU generator that depends on the keys (seed, rank, epoch, …) and on nothing else."""
    state = np.random.SeedSequence(list(keys)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))

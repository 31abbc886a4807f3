"""The interface of graph operators, and the neighbour sampler that all backends share."""

from abc import ABC, abstractmethod
from typing import Literal

import torch

from anatomy.training.operators.block import Block

Reduce = Literal["sum", "mean"]


class Operators(ABC):
    """What layers and samplers need of a graph library."""

    def aggregate(
        self, block: Block, features: torch.Tensor, reduce: Reduce, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Sum or mean of the source rows that each destination has an edge from; 0 where it has none.

        `features` float32 [sources, width], or [sources, heads, width] with `weights` float32 [edges, heads], by which
        each edge's row is multiplied first. A block's scale multiplies the rows of its sources too, and then a mean is
        over all in-neighbours of a destination. Returns [destinations, ...]. Differentiable in features and weights.
        """
        if block.scale is not None:
            features = features * block.scale.view(-1, *[1] * (features.dim() - 1))
        total = self.weighted_sum(block, features, weights)
        if reduce == "sum":
            return total
        counts = block.represented.clamp(min=1).to(total.dtype)
        return total / counts.view(-1, *[1] * (total.dim() - 1))

    @abstractmethod
    def weighted_sum(self, block: Block, features: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """The sum of `aggregate`."""

    @abstractmethod
    def edge_softmax(self, block: Block, scores: torch.Tensor) -> torch.Tensor:
        """Softmax of `scores` float32 [edges, heads] over the edges of each destination. Differentiable."""

    def attention(self, block: Block, sources: torch.Tensor, destinations: torch.Tensor) -> torch.Tensor:
        """Weights [edges, heads] from scores of sources [sources, heads] and destinations (Veličković et al., 2018)."""
        scores = sources.index_select(0, block.indices) + destinations.index_select(0, block.edge_destinations)
        return self.edge_softmax(block, torch.nn.functional.leaky_relu(scores, 0.2))

    def sample_neighbours(
        self, indptr: torch.Tensor, indices: torch.Tensor, nodes: torch.Tensor, fanout: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """min(fanout, degree) distinct in-neighbours of each node, uniformly; all of them where `fanout` is -1.

        `indptr` and `indices` are the whole graph's. Returns the sample's indptr int64 [nodes + 1] and its node ids.
        One implementation for all backends, so that equal generators give equal batches whatever the backend.
        """
        starts = indptr[nodes]
        degrees = indptr[nodes + 1] - starts
        counts = degrees if fanout < 0 else degrees.clamp(max=fanout)
        sampled_indptr = torch.zeros(nodes.shape[0] + 1, dtype=torch.int64)
        torch.cumsum(counts, 0, out=sampled_indptr[1:])
        if fanout < 0:
            shift = torch.repeat_interleave(starts - sampled_indptr[:-1], counts)
            return sampled_indptr, indices[torch.arange(shift.shape[0]) + shift]
        columns = torch.arange(fanout)
        picks = columns.repeat(nodes.shape[0], 1)
        crowded = torch.nonzero(degrees > fanout).squeeze(1)
        picks[crowded] = choose_distinct(degrees[crowded], fanout, generator)
        picks += starts.unsqueeze(1)
        return sampled_indptr, indices[picks[columns < counts.unsqueeze(1)]]


def choose_distinct(populations: torch.Tensor, size: int, generator: torch.Generator) -> torch.Tensor:
    """For each population n, `size` <= n distinct numbers below n, each subset equally likely: [populations, size].

    Floyd's algorithm (Bentley and Floyd, 1987) for all rows at once: draw j comes from the first n - size + j + 1
    numbers, and where that was drawn before, the last of them is taken, which no earlier draw could be. int64.
    """
    last = populations.unsqueeze(0) - size + torch.arange(size).unsqueeze(1)
    uniform = torch.rand(last.shape, generator=generator, dtype=torch.float64)
    draws = (uniform * (last + 1)).to(torch.int64)
    for draw in range(1, size):
        taken = (draws[:draw] == draws[draw]).any(0)
        draws[draw] = torch.where(taken, last[draw], draws[draw])
    return draws.T

"""The interface of graph operators."""

from abc import ABC, abstractmethod
from typing import Literal

import torch

from anatomy.training.operators.block import Block

Reduce = Literal["sum", "mean"]


class Operators(ABC):
    """What layers need of a graph library."""

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

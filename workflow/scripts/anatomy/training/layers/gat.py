"""Graph attention (Veličković et al., 2018)."""

import torch
from torch import nn

from anatomy.training.layers._base import GraphLayer
from anatomy.training.operators.base import Operators
from anatomy.training.operators.block import Block


class Layer(GraphLayer):
    """Every node attends to its in-neighbours and to itself.

    The heads' outputs are put side by side, `width_out` over all heads together; in the last layer each head has the
    full `width_out` and the heads are averaged.
    """

    def __init__(self, width_in: int, width_out: int, heads: int, first: bool, last: bool) -> None:
        super().__init__()
        self.heads = heads
        self.averages = last
        width = width_out if last else width_out // heads
        self.linear = nn.Linear(width_in, heads * width, bias=False)
        self.source_attention = nn.Parameter(torch.empty(heads, width))
        self.destination_attention = nn.Parameter(torch.empty(heads, width))
        self.bias = nn.Parameter(torch.zeros(width_out))
        for weight in (self.linear.weight, self.source_attention, self.destination_attention):
            nn.init.xavier_normal_(weight, gain=nn.init.calculate_gain("relu"))

    def project(self, sources: torch.Tensor) -> torch.Tensor:
        return self.linear(sources).view(sources.shape[0], self.heads, -1)

    def aggregate(self, operators: Operators, block: Block, projected: torch.Tensor) -> torch.Tensor:
        block = block.with_self_edges
        to_sources = (projected * self.source_attention).sum(-1)
        to_destinations = (projected[: block.num_destinations] * self.destination_attention).sum(-1)
        weights = operators.attention(block, to_sources, to_destinations)
        return operators.aggregate(block, projected, "sum", weights)

    def combine(self, destinations: torch.Tensor, aggregated: torch.Tensor) -> torch.Tensor:
        joined = aggregated.mean(1) if self.averages else aggregated.flatten(1)
        return joined + self.bias

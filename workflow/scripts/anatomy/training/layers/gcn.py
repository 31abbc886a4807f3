"""Graph convolution with symmetric normalisation (Kipf and Welling, 2017)."""

import torch
from torch import nn

from anatomy.training.layers._base import GraphLayer
from anatomy.training.operators.base import Operators
from anatomy.training.operators.block import Block


class Layer(GraphLayer):
    """x'_v = W (x_v / (d_v + 1) + sum over in-neighbours u of x_u / sqrt((d_u + 1) (d_v + 1))) + b.

    d counts the in-neighbours that the graph stores, so the self term is added to a graph without self-loops. Where
    neighbours are sampled, the sum is scaled by d_v over the number sampled, which keeps it unbiased.
    """

    def __init__(self, width_in: int, width_out: int, heads: int, first: bool, last: bool) -> None:
        super().__init__()
        self.aggregates_inputs = first or width_in <= width_out
        self.linear = nn.Linear(width_in, width_out, bias=False)
        self.bias = nn.Parameter(torch.zeros(width_out))
        nn.init.xavier_uniform_(self.linear.weight)

    def project(self, sources: torch.Tensor) -> torch.Tensor:
        return sources if self.aggregates_inputs else self.linear(sources)

    def aggregate(self, operators: Operators, block: Block, projected: torch.Tensor) -> torch.Tensor:
        scale = (block.degrees + 1).rsqrt().unsqueeze(1)
        scaled = projected * scale
        neighbours = operators.aggregate(block, scaled, "sum")
        degrees = block.degrees[: block.num_destinations]
        unbiased = torch.where(block.counts > 0, degrees / block.counts, 1.0).unsqueeze(1)
        return (neighbours * unbiased + scaled[: block.num_destinations]) * scale[: block.num_destinations]

    def combine(self, destinations: torch.Tensor, aggregated: torch.Tensor) -> torch.Tensor:
        return (self.linear(aggregated) if self.aggregates_inputs else aggregated) + self.bias

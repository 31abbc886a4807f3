"""GraphSAGE with the mean aggregator (Hamilton et al., 2017)."""

import torch
from torch import nn

from anatomy.training.layers._base import GraphLayer
from anatomy.training.operators.base import Operators
from anatomy.training.operators.block import Block


class Layer(GraphLayer):
    """x'_v = W_self x_v + W_neighbours mean over in-neighbours u of x_u + b; the mean of no neighbours is 0."""

    def __init__(self, width_in: int, width_out: int, heads: int, first: bool, last: bool) -> None:
        super().__init__()
        self.aggregates_inputs = first or width_in <= width_out
        self.own = nn.Linear(width_in, width_out)
        self.neighbours = nn.Linear(width_in, width_out, bias=False)
        for linear in (self.own, self.neighbours):
            nn.init.xavier_uniform_(linear.weight, gain=nn.init.calculate_gain("relu"))
        nn.init.zeros_(self.own.bias)

    def project(self, sources: torch.Tensor) -> torch.Tensor:
        return sources if self.aggregates_inputs else self.neighbours(sources)

    def aggregate(self, operators: Operators, block: Block, projected: torch.Tensor) -> torch.Tensor:
        return operators.aggregate(block, projected, "mean")

    def combine(self, destinations: torch.Tensor, aggregated: torch.Tensor) -> torch.Tensor:
        if self.aggregates_inputs:
            aggregated = self.neighbours(aggregated)
        return self.own(destinations) + aggregated

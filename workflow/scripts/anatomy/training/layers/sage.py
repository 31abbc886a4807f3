"""GraphSAGE with the mean aggregator (Hamilton et al., 2017)."""

import torch
from torch import nn

from anatomy.training.layers._base import Destinations, GraphLayer, Place
from anatomy.training.operators.base import Operators
from anatomy.training.operators.block import Block


class Layer(GraphLayer):
    """x'_v = W_self x_v + W_neighbours mean over in-neighbours u of x_u + b; the mean of no neighbours is 0."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.aggregates_inputs = place.aggregates_inputs
        self.reads_a_table = place.first and self.aggregates_inputs  # so that it needs no gradient of its sources
        self.own = nn.Linear(place.width_in, place.width_out)
        self.neighbours = nn.Linear(place.width_in, place.width_out, bias=False)
        for linear in (self.own, self.neighbours):
            nn.init.xavier_uniform_(linear.weight, gain=nn.init.calculate_gain("relu"))
        nn.init.zeros_(self.own.bias)

    def project(self, entered: torch.Tensor) -> torch.Tensor:
        return entered if self.aggregates_inputs else self.neighbours(entered)

    def aggregate(self, operators: Operators, block: Block, projected: torch.Tensor) -> torch.Tensor:
        return operators.aggregate(block, projected, "mean")

    def combine(self, destinations: Destinations, aggregated: torch.Tensor) -> torch.Tensor:
        if self.aggregates_inputs:
            aggregated = self.neighbours(aggregated)
        return self.own(destinations.entered) + aggregated

"""Graph attention (Veličković et al., 2018)."""

import torch
from torch import nn
from torch.nn import functional

from anatomy.training.layers._base import Destinations, GraphLayer, Place
from anatomy.training.operators.base import Operators
from anatomy.training.operators.block import Block


class Layer(GraphLayer):
    """Every node attends to its in-neighbours and to itself.

    The heads' outputs are put side by side, `width_out` over all heads together; in the last layer each head has the
    full `width_out` and the heads are averaged.
    """

    activation = staticmethod(functional.elu)

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.heads = heads = place.model.heads
        width = place.width_out if place.last else place.width_out // heads
        self.linear = nn.Linear(place.width_in, heads * width, bias=False)
        self.source_attention = nn.Parameter(torch.empty(heads, width))
        self.destination_attention = nn.Parameter(torch.empty(heads, width))
        self.bias = nn.Parameter(torch.zeros(place.width_out))
        for weight in (self.linear.weight, self.source_attention, self.destination_attention):
            nn.init.xavier_normal_(weight, gain=nn.init.calculate_gain("relu"))

    def project(self, entered: torch.Tensor) -> torch.Tensor:
        return self.linear(entered).view(entered.shape[0], self.heads, -1)

    def aggregate(self, operators: Operators, block: Block, projected: torch.Tensor) -> torch.Tensor:
        block = block.with_self_edges
        to_sources = (projected * self.source_attention).sum(-1)
        to_destinations = (projected[: block.num_destinations] * self.destination_attention).sum(-1)
        weights = operators.attention(block, to_sources, to_destinations)
        return operators.aggregate(block, projected, "sum", weights)

    def combine(self, destinations: Destinations, aggregated: torch.Tensor) -> torch.Tensor:
        joined = aggregated.mean(1) if self.place.last else aggregated.flatten(1)
        return joined + self.bias

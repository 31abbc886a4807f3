"""Graph convolution with symmetric normalisation (Kipf and Welling, 2017)."""

import torch
from torch import nn

from anatomy.training.layers._base import Destinations, GraphLayer, Place
from anatomy.training.layers._normalised import propagate
from anatomy.training.operators.base import Operators
from anatomy.training.operators.block import Block


class Layer(GraphLayer):
    """x'_v = W (P x)_v + b; P is the normalised adjacency matrix of `propagate`."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.aggregates_inputs = place.aggregates_inputs
        self.linear = nn.Linear(place.width_in, place.width_out, bias=False)
        self.bias = nn.Parameter(torch.zeros(place.width_out))
        nn.init.xavier_uniform_(self.linear.weight)

    def project(self, entered: torch.Tensor) -> torch.Tensor:
        return entered if self.aggregates_inputs else self.linear(entered)

    def aggregate(self, operators: Operators, block: Block, projected: torch.Tensor) -> torch.Tensor:
        return propagate(operators, block, projected)

    def combine(self, destinations: Destinations, aggregated: torch.Tensor) -> torch.Tensor:
        return (self.linear(aggregated) if self.aggregates_inputs else aggregated) + self.bias

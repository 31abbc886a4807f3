"""GCNII: graph convolution with initial residual and identity mapping (Chen et al., ICML 2020), which can be deep."""

import math

import torch
from torch import nn
from torch.nn import functional

from anatomy.training.layers._base import Destinations, GraphLayer, Place
from anatomy.training.layers._normalised import propagate
from anatomy.training.operators.base import Operators
from anatomy.training.operators.block import Block


class Layer(GraphLayer):
    """Layer l, from 1: H_l = ReLU(S ((1 - beta_l) I + beta_l W_l)) with S = (1 - alpha) P H_(l-1) + alpha H_0.

    This is Eq. 5 of the paper: beta_l = log(lambda / l + 1), alpha is the model's `initial_residual`, lambda its
    `identity_mapping`, and P the normalised adjacency matrix of `propagate`.

    H_0 = ReLU(X W_in + b_in) is a part of the first layer, H_L W_out + b_out of the last, so a model of L layers
    propagates L times. H_0 of a node is carried from layer to layer; P H_0 of the first layer needs H_0 of neighbours
    too, which is made from their features. Hidden rows are dropped between layers and before the output projection,
    but neither features nor H_0 are: each rank would drop others of the same neighbour.

    All weights start as in the authors' code, uniform within 1 / sqrt(inputs), which is what nn.Linear does.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        hidden = place.model.hidden
        self.alpha = place.model.initial_residual
        self.beta = math.log(place.model.identity_mapping / (place.index + 1) + 1)
        self.carried_width = 0 if place.last else hidden
        self.input = nn.Linear(place.width_in, hidden) if place.first else None
        self.linear = nn.Linear(hidden, hidden, bias=False)
        self.output = nn.Linear(hidden, place.width_out) if place.last else None

    def enter(self, sources: torch.Tensor) -> torch.Tensor:
        return sources if self.input is None else functional.relu(self.input(sources))

    def project(self, entered: torch.Tensor) -> torch.Tensor:
        return entered

    def aggregate(self, operators: Operators, block: Block, projected: torch.Tensor) -> torch.Tensor:
        return propagate(operators, block, projected)

    def combine(self, destinations: Destinations, aggregated: torch.Tensor) -> torch.Tensor:
        mixed = torch.lerp(aggregated, self._initial(destinations), self.alpha)
        return torch.lerp(mixed, self.linear(mixed), self.beta)

    def finish(self, rows: torch.Tensor) -> torch.Tensor:
        rows = self.drop(self.activation(rows))
        return rows if self.output is None else self.output(rows)

    def carry(self, destinations: Destinations) -> torch.Tensor | None:
        return None if self.place.last else self._initial(destinations)

    def _initial(self, destinations: Destinations) -> torch.Tensor:
        """H_0 of the destinations."""
        if self.place.first:
            return destinations.entered
        assert destinations.carried is not None, "what a layer carries is given to the next"
        return destinations.carried

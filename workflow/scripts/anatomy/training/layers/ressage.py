"""GraphSAGE in residual blocks, which can be deep."""

from dataclasses import replace

import torch
from torch import nn

from anatomy.training.layers import sage
from anatomy.training.layers._base import Destinations, Place


class Layer(sage.Layer):
    """h' = h + dropout(SAGE(ReLU(LayerNorm(h)))), where SAGE is the layer `sage`.

    The order is that of ResGCN+ (Li et al., "DeeperGCN: All You Need to Train Deeper GCNs", 2020): normalisation and
    activation come before the convolution, so that nothing stands in the way of the sum. Normalisation is over a
    node's own row, so a node's output does not depend on which nodes a rank or a batch holds beside it. Dropout comes
    after the convolution, not before: there each rank would drop others of the same neighbour.

    The first layer is SAGE alone, from the features to the hidden width. The last is a block as the others are, and
    then W_out dropout(ReLU(LayerNorm(h))) + b from the hidden width to the classes. So a model of L layers propagates L
    times. W_out starts as SAGE's weights do, b at 0, LayerNorm at 1 and 0.
    """

    def __init__(self, place: Place) -> None:
        hidden = place.model.hidden
        super().__init__(replace(place, width_out=hidden))
        self.norm = None if place.first else nn.LayerNorm(hidden)
        self.output = self.output_norm = None
        if place.last:
            self.output_norm = nn.LayerNorm(hidden)
            self.output = nn.Linear(hidden, place.width_out)
            nn.init.xavier_uniform_(self.output.weight, gain=nn.init.calculate_gain("relu"))
            nn.init.zeros_(self.output.bias)

    def enter(self, sources: torch.Tensor) -> torch.Tensor:
        return sources if self.norm is None else self.activation(self.norm(sources))

    def combine(self, destinations: Destinations, aggregated: torch.Tensor) -> torch.Tensor:
        convolved = super().combine(destinations, aggregated)
        return convolved if self.place.first else destinations.sources + self.drop(convolved)

    def finish(self, rows: torch.Tensor) -> torch.Tensor:
        if self.output is None:
            return rows
        return self.output(self.drop(self.activation(self.output_norm(rows))))

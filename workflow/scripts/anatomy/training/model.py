"""A model: graph convolutions with activations and dropout between them."""

import hashlib

import torch
from torch import nn
from torch.nn import functional

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.operators.base import Operators
from anatomy.training.operators.block import Block
from anatomy.training.options import LAYERS
from anatomy.training.specification import ModelSpecification


class Model(nn.Module):
    """`num_layers` graph convolutions of one kind. Its weights depend on the specification and the seed only."""

    def __init__(self, specification: ModelSpecification, num_features: int, num_classes: int, seed: int) -> None:
        super().__init__()
        self.dropout = specification.dropout
        self.widths = layer_widths(specification, num_features, num_classes)
        kind = LAYERS[specification.layer].load().Layer
        last = specification.num_layers - 1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.layers = nn.ModuleList(
                kind(self.widths[index], self.widths[index + 1], specification.heads, index == 0, index == last)
                for index in range(specification.num_layers)
            )
        self._activation = functional.elu if specification.layer == "gat" else functional.relu

    def layer(self, index: int, operators: Operators, block: Block, sources: torch.Tensor) -> torch.Tensor:
        """Output of one layer for the block's destinations, after activation and dropout unless it is the last."""
        return self.finish(index, self.layers[index](operators, block, sources))

    def finish(self, index: int, rows: torch.Tensor) -> torch.Tensor:
        """What follows a layer's convolution."""
        if index == len(self.layers) - 1:
            return rows
        with phase(Phase.COMBINE):
            return functional.dropout(self._activation(rows), self.dropout, self.training)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def weights_sha256(self) -> str:
        """SHA-256 over all weights, in the order of their names."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def layer_widths(specification: ModelSpecification, num_features: int, num_classes: int) -> list[int]:
    """Widths of what enters each layer, and of what leaves the last."""
    return [num_features, *[specification.hidden] * (specification.num_layers - 1), num_classes]

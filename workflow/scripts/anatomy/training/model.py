"""A model: graph convolutions of one kind, one after the other."""

import hashlib
from collections.abc import Sequence

import torch
from torch import nn

from anatomy.training.layers._base import Passed, Place
from anatomy.training.operators.base import Operators
from anatomy.training.operators.block import Block
from anatomy.training.options import LAYERS
from anatomy.training.specification import ModelSpecification


class Model(nn.Module):
    """`num_layers` graph convolutions of one kind. Its weights depend on the specification and the seed only.

    `widths`, num_layers + 1 numbers: of the rows that enter each layer, and of those that leave the last. What a layer
    carries to the next beside the rows has width `layers[index].carried_width`.
    """

    def __init__(self, specification: ModelSpecification, num_features: int, num_classes: int, seed: int) -> None:
        super().__init__()
        self.widths = layer_widths(specification, num_features, num_classes)
        kind = LAYERS[specification.layer].load().Layer
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.layers = nn.ModuleList(
                kind(Place(index, self.widths[index], self.widths[index + 1], specification))
                for index in range(specification.num_layers)
            )

    def layer(
        self,
        index: int,
        operators: Operators,
        block: Block,
        sources: torch.Tensor,
        carried: torch.Tensor | None = None,
    ) -> Passed:
        """One layer: its destinations' rows, with all that stands before the next layer, and what it carries to it.

        `carried` is what the layer before returned, None for the first. Only rows are exchanged between layers: what
        is carried is read by the node alone that it belongs to. Where a model is cut, both pass from one piece to the
        next.
        """
        return self.layers[index](operators, block, sources, carried)

    def forward(self, operators: Operators, blocks: Sequence[Block], sources: torch.Tensor) -> torch.Tensor:
        """All layers on the blocks of a batch: features of the first block's sources to scores of the seed nodes."""
        rows, carried = sources, None
        for index, block in enumerate(blocks):
            rows, carried = self.layer(index, operators, block, rows, carried)
        return rows

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

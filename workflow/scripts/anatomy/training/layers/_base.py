"""What all graph convolutions have in common."""

from abc import ABC, abstractmethod

import torch
from torch import nn

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.operators.base import Operators
from anatomy.training.operators.block import Block


class GraphLayer(nn.Module, ABC):
    """Rows of a block's sources [sources, in] to rows of its destinations [destinations, out], in three steps.

    `project` and `combine` are dense and belong to the phase combine, `aggregate` is sparse. Where a layer aggregates
    before it projects, `project` does nothing and the aggregate depends on no parameter (`aggregates_inputs`).
    """

    aggregates_inputs = False

    def forward(self, operators: Operators, block: Block, sources: torch.Tensor) -> torch.Tensor:
        with phase(Phase.COMBINE):
            projected = self.project(sources)
        with phase(Phase.AGGREGATE):
            aggregated = self.aggregate(operators, block, projected)
        with phase(Phase.COMBINE):
            return self.combine(sources[: block.num_destinations], aggregated)

    @abstractmethod
    def project(self, sources: torch.Tensor) -> torch.Tensor:
        """Dense work on the rows that are going to be aggregated."""

    @abstractmethod
    def aggregate(self, operators: Operators, block: Block, projected: torch.Tensor) -> torch.Tensor:
        """What each destination gathers from its neighbours."""

    @abstractmethod
    def combine(self, destinations: torch.Tensor, aggregated: torch.Tensor) -> torch.Tensor:
        """The output from a destination's own row and what it gathered."""

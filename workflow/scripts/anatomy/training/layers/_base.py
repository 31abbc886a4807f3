"""What all graph convolutions have in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.operators.base import Operators
from anatomy.training.operators.block import Block
from anatomy.training.options import WIDE_FEATURES
from anatomy.training.specification import ModelSpecification

Passed = tuple[torch.Tensor, torch.Tensor | None]
"""What one layer gives the next, float32 [destinations, width] each: rows, and what is carried beside them, if so.

Rows are what other nodes aggregate, so ranks exchange them; what is carried is read by its own node alone.
"""


@dataclass(frozen=True)
class Place:
    """What a layer is made from: where it stands in the model (`index` from 0), its widths, the model's options."""

    index: int
    width_in: int
    width_out: int
    model: ModelSpecification

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.model.num_layers - 1

    @property
    def aggregates_inputs(self) -> bool:
        """Whether a linear convolution aggregates the rows that come in, and projects what it has aggregated.

        Either order gives the same sum; it aggregates what is narrower. What the first layer aggregates of features
        needs no gradient, and a sampled block has far more sources than destinations, so there it projects first only
        if features are wider by far.
        """
        return self.width_in <= self.width_out * (WIDE_FEATURES if self.first else 1)


@dataclass(frozen=True)
class Destinations:
    """What a layer has of its block's destinations alone.

    `sources`: their rows as they came in; `entered`: the same as `enter` left them; `carried`: what the layers before
    gave along for them.
    """

    sources: torch.Tensor
    entered: torch.Tensor
    carried: torch.Tensor | None


class GraphLayer(nn.Module, ABC):
    """Rows of a block's sources [sources, in] to rows of its destinations [destinations, out].

    `enter`, `project`, `combine` and `finish` are dense and belong to the phase combine, `aggregate` is sparse. Where a
    layer aggregates before anything else, `enter` and `project` do nothing and the aggregate depends on no parameter
    (`aggregates_inputs`).

    A layer that needs more of its destinations than their rows lets it travel along: what `carry` returns comes back as
    `Destinations.carried` of the next layer, for that layer's destinations. A dense projection before the first
    propagation or after the last is a part of the first or last layer, so that layers count propagations.
    """

    aggregates_inputs = False
    reads_a_table = False
    """Whether its sources may be a table with more rows than the block's nodes (`Block.destination_rows`)."""
    carried_width = 0
    """Width of what the layer carries to the next; 0: nothing."""
    activation: Callable[[torch.Tensor], torch.Tensor] = staticmethod(functional.relu)

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    def forward(
        self, operators: Operators, block: Block, sources: torch.Tensor, carried: torch.Tensor | None = None
    ) -> Passed:
        """Rows of the destinations and what is carried for them; `carried` has a row for each destination or more.

        A block's destinations are its first sources, and so the first rows of what the layer before carried.
        """
        with phase(Phase.COMBINE):
            entered = self.enter(sources)
            projected = self.project(entered)
        with phase(Phase.AGGREGATE):
            aggregated = self.aggregate(operators, block, projected)
        with phase(Phase.COMBINE):
            own = block.of_destinations(sources)
            own_entered = own if entered is sources else block.of_destinations(entered)
        destinations = Destinations(own, own_entered, None if carried is None else carried[: block.num_destinations])
        return self.complete(destinations, aggregated)

    def complete(self, destinations: Destinations, aggregated: torch.Tensor) -> Passed:
        """All that follows aggregation."""
        with phase(Phase.COMBINE):
            return self.finish(self.combine(destinations, aggregated)), self.carry(destinations)

    def enter(self, sources: torch.Tensor) -> torch.Tensor:
        """Dense work on the rows that come in; nothing by default."""
        return sources

    @abstractmethod
    def project(self, entered: torch.Tensor) -> torch.Tensor:
        """Dense work on the rows that are going to be aggregated."""

    @abstractmethod
    def aggregate(self, operators: Operators, block: Block, projected: torch.Tensor) -> torch.Tensor:
        """What each destination gathers from its neighbours."""

    @abstractmethod
    def combine(self, destinations: Destinations, aggregated: torch.Tensor) -> torch.Tensor:
        """The output from what each destination has itself and what it gathered."""

    def finish(self, rows: torch.Tensor) -> torch.Tensor:
        """What follows a convolution: activation and dropout; nothing after the last."""
        return rows if self.place.last else self.drop(self.activation(rows))

    def carry(self, destinations: Destinations) -> torch.Tensor | None:
        """What the next layer needs of its own destinations beside the rows, [destinations, `carried_width`]."""
        return None

    def drop(self, rows: torch.Tensor) -> torch.Tensor:
        """The model's dropout."""
        return functional.dropout(rows, self.place.model.dropout, self.training)

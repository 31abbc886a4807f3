"""What all policies of gradient synchronisation share: a step's gradients, loss and number of seed nodes in a buffer.

Another way of it is a subclass that does another part of `update`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.communication import Communicator, Kind, ring_bytes
from anatomy.training.optimizer import Adam, FlatParameters

EXTRA_VALUES = 2
"""Float32 values beside the gradients in a step's bucket: the summed loss and the number of seed nodes."""

Piece = tuple[torch.Tensor | None, int]
"""The summed loss of some seed nodes, None where there are none, and their number."""


class GradientSynchroniser:
    """Makes every rank's gradients those of the mean loss over the seed nodes of all ranks together.

    `parameters` must have EXTRA_VALUES extra values; the gradients lie in one buffer with them, so nothing is packed.
    All ranks call `update` equally often; a rank without seed nodes in a step adds zeros.
    """

    micro_batches: int = 1
    """Into how many pieces a step's seed nodes are to be cut."""

    sums_losses: ClassVar[bool] = True
    """Whether `update` returns what all ranks have together; else each returns its own."""

    make_optimizer: ClassVar[type[Adam]] = Adam
    """The optimiser that `update` is given."""

    def __init__(
        self,
        parameters: FlatParameters,
        communicator: Communicator,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.communicator = communicator
        self.parameters = parameters
        self.options = options
        self._epoch = 0.0, 0
        self._bucket = parameters.bucket
        self._loss, self._count = self._bucket[-2:-1], self._bucket[-1:]

    def update(self, optimizer: Adam, pieces: Iterable[Piece]) -> tuple[float, int]:
        """Backward, synchronise, optimise; returns the summed loss and the number of seed nodes (see `sums_losses`)."""
        self.backward(pieces)
        summed = self.synchronise()
        self.optimise(optimizer)
        return summed

    def backward(self, pieces: Iterable[Piece]) -> None:
        """Gradients of this rank's summed losses, their sum and the number of seed nodes, in the bucket."""
        self._bucket.zero_()
        for piece in pieces:
            self._note(*piece)
            self._differentiate(piece[0])

    def synchronise(self) -> tuple[float, int]:
        """Combine all ranks' gradients; returns what `update` does."""
        with phase(Phase.SYNC):
            self._start_sum(self._bucket)()
            return self._divided()

    def optimise(self, optimizer: Adam) -> None:
        """Update the weights from the gradients."""
        with phase(Phase.OPTIMIZE):
            optimizer.step()

    def mean_loss(self, loss_sum: float, count: int) -> float:
        """Mean loss of an epoch, from sums of what `update` returned: over all ranks' seed nodes, or a rank's own.

        See `sums_losses`; NaN for a rank that has none.
        """
        self._epoch = loss_sum, count
        return loss_sum / count if count else math.nan

    def mean_loss_of_all(self, loss: float) -> float:
        """Of the latest epoch, over all ranks' seed nodes, from what `mean_loss` returned; all ranks call this.

        What it sends counts as no traffic: training needs no loss.
        """
        if self.sums_losses:
            return loss
        summed = torch.tensor(self._epoch, dtype=torch.float64, device=self.communicator.device)
        self.communicator.sum(summed)
        return float(summed[0] / summed[1])

    @contextmanager
    def model_to_evaluate(self, keep: bool) -> Iterator[None]:
        """A block in which the weights are the model that training has come to; `keep`: also after it.

        All ranks enter it together. By default they are anyway.
        """
        yield

    def bytes_per_epoch(self, steps: int) -> int | None:
        """Bytes that all ranks together send in an epoch of so many steps; None where epochs differ."""
        return steps * self._ring_bytes(self._bucket.numel())

    def state(self) -> dict[str, torch.Tensor]:
        """What is carried on from one epoch to the next, on the CPU; nothing by default. It waits for what is sent."""
        return {}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from a `state` of the same policy on the same rank."""
        assert not state, "a policy that keeps a state restores it"

    def loss_and_count(self) -> tuple[float, int]:
        """Summed loss and number of seed nodes as they stand in the bucket: this rank's, until they are combined."""
        return self._loss.item(), int(self._count.item())

    def _note(self, loss_sum: torch.Tensor | None, num_seed_nodes: int) -> None:
        """Add a piece's loss and number of seed nodes to those in the bucket."""
        if loss_sum is not None:
            self._loss.add_(loss_sum.detach())
            self._count.add_(num_seed_nodes)

    def _differentiate(self, loss_sum: torch.Tensor | None) -> None:
        """Add a piece's gradients to those in the bucket."""
        if loss_sum is not None:
            with phase(Phase.BACKWARD):
                loss_sum.backward()

    def _divided(self) -> tuple[float, int]:
        """Make sums of gradients those of the mean loss; returns `loss_and_count`."""
        loss_sum, count = self.loss_and_count()
        if count:
            self.parameters.gradients.div_(count)
        return loss_sum, count

    def _start_sum(self, values: torch.Tensor) -> Callable[[], None]:
        """Begin to add contiguous `values` up over all ranks, in place; returns what waits for the end, once."""
        if values.device == self.communicator.device:
            return self.communicator.start_sum(values, Kind.WEIGHTS).wait
        staged = values.to(self.communicator.device)
        exchange = self.communicator.start_sum(staged, Kind.WEIGHTS)

        def finish() -> None:
            exchange.wait()
            values.copy_(staged)

        return finish

    def _ring_bytes(self, num_values: int) -> int:
        """Bytes that all ranks together send to add up so many float32 values."""
        size = self.communicator.size
        return sum(ring_bytes(4 * num_values, rank, size) for rank in range(size))

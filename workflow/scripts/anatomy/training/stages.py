"""A model that is cut between the ranks: each owns consecutive layers, its stage, and runs them on all nodes.

Several ranks may share a stage: each runs its layers on a part of the nodes. Ranks of a stage follow each other, and
those at the same place in theirs have the same part, so that rows pass between these alone.

Ranks hold whole models, but a stage updates the weights of its own layers alone, and others' are as old as the last
`gather_weights`, which must therefore come before whatever uses the whole model: evaluation, and a run's end.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.communication import Communicator, Exchange, Group, Kind, ring_bytes
from anatomy.training.model import Model
from anatomy.training.optimizer import Adam
from anatomy.training.strategies._base import Context


def layer_spans(num_layers: int, num_stages: int) -> list[range]:
    """The layers of each stage, in order; their numbers differ by 1 at most. Needs a layer for every stage."""
    bounds = [stage * num_layers // num_stages for stage in range(num_stages + 1)]
    return [range(first, stop) for first, stop in pairwise(bounds)]


def passed_widths(model: Model, index: int) -> tuple[int, int]:
    """Widths of the rows that enter a layer, and of what is carried beside them."""
    return model.widths[index], model.layers[index - 1].carried_width if index else 0


class Stage:
    """The layers of this rank. To make it gives the context an optimiser, at its start, of their weights alone.

    `num_stages` divides the ranks, None for as many; `peers` is the transport between the ranks of this stage, and
    `peers.rank` this one's place among them.
    """

    def __init__(self, context: Context, num_stages: int | None = None) -> None:
        self._communicator = context.communicator
        self._model = context.model
        self.num_stages = num_stages or context.communicator.size
        self.peers = Group(context.communicator, context.communicator.size // self.num_stages)
        number = context.communicator.rank // self.peers.size
        self._spans = layer_spans(len(context.model.layers), self.num_stages)
        self.layers = self._spans[number]
        self.before, self.after = (context.communicator.rank + step * self.peers.size for step in (-1, 1))
        self.first = self.layers.start == 0
        self.last = self.layers.stop == len(context.model.layers)
        self.widths_in = passed_widths(context.model, self.layers.start)
        self.widths_out = passed_widths(context.model, self.layers.stop)
        self._num_weights = [
            sum(weight.numel() for index in span for weight in context.model.layers[index].parameters())
            for span in self._spans
        ]
        start = sum(self._num_weights[:number])
        self._all = context.optimizer.parameters
        self.weights = self._all.part(start, start + self._num_weights[number])
        training = context.specification.training
        context.optimizer = Adam(self.weights, training.learning_rate, training.weight_decay)

    def sum_gradients(self) -> None:
        """Add the gradients of the stage's weights up over its ranks."""
        with phase(Phase.SYNC):
            gradients = self.weights.gradients.to(self._communicator.device)
            self.peers.sum(gradients, Kind.WEIGHTS)
            self.weights.gradients.copy_(gradients)

    def gather_weights(self) -> None:
        """Bring every stage's weights to all ranks, each straight from an owner, at the same place in its stage."""
        device = self._communicator.device
        with phase(Phase.EVALUATE):
            send = self.weights.values.repeat(self.num_stages).to(device)
            received = torch.empty_like(self._all.values, device=device)
            own = self._at_this_place([self.weights.values.shape[0]] * self.num_stages)
            self._communicator.exchange(send, own, received, self._at_this_place(self._num_weights), Kind.WEIGHTS)
            self._all.values.copy_(received)

    def _at_this_place(self, by_stage: Sequence[int]) -> list[int]:
        """For each rank the number of its stage, 0 for ranks at other places than this one's."""
        return [count * (place == self.peers.rank) for count in by_stage for place in range(self.peers.size)]

    def share_loss(self, loss: torch.Tensor) -> float:
        """A loss that the last stage knows, its ranks' summed, on all ranks; what the others give is not read."""
        shared = loss.detach().to(self._communicator.device).reshape(1).clone()
        if not self.last:
            shared.zero_()
        with phase(Phase.SYNC):
            self._communicator.sum(shared, Kind.WEIGHTS)
            return shared.item()

    def loss_bytes(self) -> int:
        """Bytes that all ranks together send in one `share_loss`."""
        size = self._communicator.size
        return sum(ring_bytes(4, rank, size) for rank in range(size))

    def gradients_bytes(self) -> int:
        """Bytes that all ranks together send in one `sum_gradients`."""
        return 2 * (self.peers.size - 1) * 4 * sum(self._num_weights)

    def widths_between(self) -> list[tuple[int, int]]:
        """`passed_widths` where one stage ends and the next begins, for all stages but the last."""
        return [passed_widths(self._model, span.stop) for span in self._spans[:-1]]


class Outbox:
    """Rows for one other rank, a piece at a time; the buffer [rows, width] is kept from one round to the next."""

    def __init__(self, communicator: Communicator, to: int, rows: int, width: int, kind: Kind) -> None:
        self._communicator, self._to, self._kind = communicator, to, kind
        self._buffer = torch.empty(rows, width, device=communicator.device)
        self._pending: list[Exchange] = []

    def post(self, piece: slice, columns: Sequence[torch.Tensor | None]) -> None:
        """Begin to send a piece's rows, [piece, width] side by side."""
        with phase(Phase.EXCHANGE):
            rows = self._buffer[piece]
            rows.copy_(torch.cat([column.detach() for column in columns if column is not None], 1))
            self._pending.append(self._communicator.start_send(rows, self._to, self._kind))

    def flush(self) -> None:
        """Return when everything has been sent."""
        with phase(Phase.EXCHANGE):
            for message in self._pending:
                message.wait()
            self._pending.clear()


class Inbox:
    """Rows from one other rank, which sends them a piece at a time."""

    def __init__(self, communicator: Communicator, sender: int, rows: int, width: int) -> None:
        self._communicator, self._sender = communicator, sender
        self._buffer = torch.empty(rows, width, device=communicator.device)
        self._pending: dict[int, Exchange] = {}

    def expect(self, pieces: Sequence[slice]) -> None:
        """Begin to receive the pieces in the order in which they are sent."""
        with phase(Phase.EXCHANGE):
            for piece in pieces:
                self._pending[piece.start] = self._communicator.start_receive(self._buffer[piece], self._sender)

    def take(self, piece: slice, widths: tuple[int, int], device: torch.device) -> list[torch.Tensor | None]:
        """A piece's columns of these widths when they are there; None where there are none."""
        with phase(Phase.EXCHANGE):
            self._pending.pop(piece.start).wait()
            rows = self._buffer[piece].to(device)
            return [columns if columns.shape[1] else None for columns in rows.split(list(widths), 1)]

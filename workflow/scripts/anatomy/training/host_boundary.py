"""The boundary exchange in which a row crosses the link between two hosts once; see `legs`."""

from collections.abc import Sequence

import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.boundary import Boundary
from anatomy.training.communication import Communicator, Kind
from anatomy.training.legs import Leg
from anatomy.training.parts import LocalPart


class HostBoundary(Boundary):
    """Exchanges rows leg by leg, and gradients by the same legs backwards; equal to `Boundary` but for rounding."""

    def __init__(self, part: LocalPart, communicator: Communicator, legs: Sequence[Leg], device: torch.device) -> None:
        super().__init__(part, communicator)
        self._legs = [leg.to(device) for leg in legs]

    def forward(self, own: torch.Tensor, slot: int) -> torch.Tensor:
        with phase(Phase.EXCHANGE):
            rows = self._buffer(f"rows {slot}", self.part.num_rows, own.shape[1], own)
            rows[: self.part.num_own].copy_(own)
            for number, leg in enumerate(self._legs):
                places = (leg.send_rows, leg.send_counts, leg.receive_rows, leg.receive_counts)
                received = self._move(f"{number}", rows, *places, Kind.ACTIVATIONS)
                rows.index_copy_(0, leg.receive_rows, received)
        return rows.detach()

    def backward(self, gradient: torch.Tensor, slot: int) -> torch.Tensor:
        with phase(Phase.EXCHANGE):
            rows = self._buffer(f"sums {slot}", self.part.num_rows, gradient.shape[1], gradient).copy_(gradient)
            for number, leg in reversed(list(enumerate(self._legs))):
                places = (leg.receive_rows, leg.receive_counts, leg.send_rows, leg.send_counts)
                received = self._move(f"back {number}", rows, *places, Kind.GRADIENTS)
                rows.index_add_(0, leg.send_rows, received)
        return rows[: self.part.num_own].detach()

    def _move(
        self,
        name: str,
        rows: torch.Tensor,
        send_rows: torch.Tensor,
        send_counts: list[int],
        receive_rows: torch.Tensor,
        receive_counts: list[int],
        kind: Kind,
    ) -> torch.Tensor:
        """Some rows of a table to others, and what came from them, where the table lies."""
        width, transport = rows.shape[1], self.communicator.device
        send = self._buffer(f"send {name}", send_rows.shape[0], width, rows)
        torch.index_select(rows, 0, send_rows, out=send)
        send = send.to(transport)
        received = self._buffer(f"received {name}", receive_rows.shape[0], width, send)
        self.communicator.exchange(send, send_counts, received, receive_counts, kind)
        return received.to(rows.device)

"""The boundary exchange of all strategies on the whole graph: halo rows forward, their gradients backward."""

import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.communication import Communicator, Kind
from anatomy.training.parts import LocalPart


class Boundary:
    """Exchanges rows of own nodes for rows of the halo; all buffers are kept from one exchange to the next.

    A slot names a place in the model (a layer). The rows that `exchange` returns, and the gradients that it passes on,
    stay valid until the same slot is used again: one forward and backward pass may use each slot once. Autograd adds to
    a gradient in place only where nobody else refers to it, so a kept one is safe. Own rows are copied while others'
    are on their way.
    """

    def __init__(self, part: LocalPart, communicator: Communicator) -> None:
        self.part = part
        self.communicator = communicator
        self._buffers: dict[tuple[str, int], torch.Tensor] = {}

    def exchange(self, own: torch.Tensor, slot: int) -> torch.Tensor:
        """Own rows [own, width] to own and halo rows [own + halo, width]; differentiable, the gradients travel back."""
        if self.communicator.size == 1:
            return own
        return _Exchange.apply(own, self, slot)

    def complete(self, rows: torch.Tensor, kind: Kind, own: torch.Tensor | None = None) -> None:
        """Fill in the halo rows of a table [own + halo, width], and its own rows where they are given apart.

        Not differentiable.
        """
        part = self.part
        send = self._pack(rows[: part.num_own] if own is None else own, "send")
        halo = rows[part.num_own :]
        received = halo if halo.device == send.device else torch.empty_like(halo, device=send.device)
        exchange = self.communicator.start_exchange(send, part.send_counts, received, part.receive_counts, kind)
        if own is not None:
            rows[: part.num_own].copy_(own)
        exchange.wait()
        if received is not halo:
            halo.copy_(received)

    def forward(self, own: torch.Tensor, slot: int) -> torch.Tensor:
        """The exchange without its gradient."""
        with phase(Phase.EXCHANGE):
            rows = self._buffer(f"rows {slot}", self.part.num_rows, own.shape[1], own)
            self.complete(rows, Kind.ACTIVATIONS, own.detach())
        return rows.detach()

    def backward(self, gradient: torch.Tensor, slot: int) -> torch.Tensor:
        """Gradients of own and halo rows [own + halo, width] to those of the own rows, others' contributions added."""
        part = self.part
        with phase(Phase.EXCHANGE):
            device = self.communicator.device
            send = gradient[part.num_own :].contiguous().to(device)
            received = self._buffer("gradients", part.send_rows.shape[0], gradient.shape[1], send)
            counts = part.receive_counts, received, part.send_counts
            exchange = self.communicator.start_exchange(send, *counts, Kind.GRADIENTS)
            own = self._buffer(f"own gradients {slot}", part.num_own, gradient.shape[1], gradient)
            own.copy_(gradient[: part.num_own])
            exchange.wait()
            own.index_add_(0, self._send_rows(own.device), received.to(own.device))
        return own

    def _pack(self, own: torch.Tensor, name: str) -> torch.Tensor:
        """The rows that others need, one consumer after the other, where the transport wants them."""
        rows = self._send_rows(own.device)
        packed = self._buffer(name, rows.shape[0], own.shape[1], own)
        torch.index_select(own.detach(), 0, rows, out=packed)
        return packed.to(self.communicator.device)

    def _send_rows(self, device: torch.device) -> torch.Tensor:
        """The part's `send_rows` where rows lie; they are moved there once, and stay."""
        if self.part.send_rows.device != device:
            self.part.send_rows = self.part.send_rows.to(device)
        return self.part.send_rows

    def _buffer(self, name: str, rows: int, width: int, like: torch.Tensor) -> torch.Tensor:
        key = (name, width)
        if key not in self._buffers:
            self._buffers[key] = torch.empty(rows, width, dtype=like.dtype, device=like.device)
        return self._buffers[key]


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own: torch.Tensor, boundary: Boundary, slot: int) -> torch.Tensor:
        ctx.boundary, ctx.slot = boundary, slot
        return boundary.forward(own, slot)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.boundary.backward(gradient, ctx.slot), None, None

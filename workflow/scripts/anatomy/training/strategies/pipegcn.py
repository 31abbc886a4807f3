"""PipeGCN: full-graph training that computes with boundary rows of the epoch before, so that exchanges are hidden.

Wan, Li, Wolfe, Kyrillidis, Kim and Lin, "PipeGCN: Efficient Full-Graph Training of Graph Convolutional Networks with
Pipelined Feature Communication", ICLR 2022. A layer takes its own nodes' rows from this epoch and the halo's from the
last, zeros in the first epoch. It starts the exchange of this epoch's boundary rows and goes on; the same layer of the
next epoch waits for it. Backward does the same: a boundary node's gradient gets what other ranks made of it in the
last epoch, and this epoch's gradients of the halo set out. Weights are synchronised in every epoch.

`variant` f, g and gf are the paper's PipeGCN-F, -G and -GF: boundary features, their gradients, or both are a moving
average of what came, decay x average + (1 - decay) x received. Averages start at 0, as in the paper's code. In the
variant `exact` each exchange is waited for at once and nothing is stale.

The paper's algorithm exchanges the rows that enter every layer. Features never change, so here the halo's are fetched
once and the first layer is exact, as in the runs of the paper's code, which precomputes what that layer aggregates.
The code drops boundary rows out after the exchange, each rank for itself; here a layer ends with its dropout, so the
rank that owns a node has dropped before it sends.

What an epoch has started may end within the next one, or between the two: evaluation and checkpoints wait for it. In
timed runs ranks also meet between epochs, so what is sent then costs no epoch anything. Gloo tells the end of a message
when it is waited for: in a trace of CPUs an exchange lasts until the next epoch takes it, however soon it came. Bytes
of an epoch are those of exact training, the first and the last included.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.boundary import Boundary
from anatomy.training.communication import Communicator, Exchange, Kind
from anatomy.training.parts import LocalPart
from anatomy.training.strategies._fullgraph import FullGraphStrategy

OPTIONS: dict[str, Any] = {
    "properties": {
        "epochs": {"type": "integer", "minimum": 1, "description": "Epochs to train, warm-up included."},
        "variant": {
            "enum": ["plain", "f", "g", "gf", "exact"],
            "default": "plain",
            "description": "Rows of the last epoch as they came (plain), or moving averages of boundary features (f), "
            "of their gradients (g) or of both (gf); exact: this epoch's rows, waited for.",
        },
        "decay": {
            "type": "number",
            "minimum": 0,
            "exclusiveMaximum": 1,
            "default": 0.95,
            "description": "Weight of what a moving average was before, in the variants f, g and gf (the paper's "
            "gamma).",
        },
    },
    "required": ["epochs"],
}

PAPER: dict[str, Any] = {
    "gain": 28.5,
    "of": "throughput, 1.7 to",
    "over": "existing full-graph training; the abstract does not say whose",
    "on": "GPUs",
    "source": "abstract of PipeGCN, ICLR 2022",
}

EXACT = ({"variant": "exact"},)

AVERAGED = {"plain": (), "f": (Kind.ACTIVATIONS,), "g": (Kind.GRADIENTS,), "gf": (Kind.ACTIVATIONS, Kind.GRADIENTS)}
"""What is a moving average, by variant."""


class Strategy(FullGraphStrategy):
    """See the module."""

    def make_boundary(self, part: LocalPart) -> Boundary:
        context, options = self.context, self.context.specification.strategy
        self._pipes: Mapping[str, Pipe] = {}
        if options["variant"] == "exact":
            return super().make_boundary(part)
        decays = dict.fromkeys(AVERAGED[options["variant"]], options["decay"])
        widths = context.model.widths[1:-1] if context.communicator.size > 1 else []
        boundary = PipelinedBoundary(part, context.communicator, widths, context.device, decays)
        self._pipes = boundary.pipes
        return boundary

    def evaluate(self) -> dict[str, float | None]:
        self.context.communicator.settle()
        return super().evaluate()

    def state(self) -> dict[str, torch.Tensor]:
        self.context.communicator.settle()
        return {f"{name} {key}": rows.cpu() for name, pipe in self._pipes.items() for key, rows in pipe.kept().items()}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        for name, pipe in self._pipes.items():
            for key, rows in pipe.kept().items():
                rows.copy_(state[f"{name} {key}"])


class Pipe:
    """The exchanges of one place in the model in one direction: what comes in one epoch is taken in the next.

    `rows` [rows, width], on the model's device, is what is taken: what came last, or the moving average of all that
    came. It is this pipe's own; 0 at first.
    """

    def __init__(self, rows: torch.Tensor, communicator: Communicator, kind: Kind, decay: float) -> None:
        self.rows = rows.zero_()
        self._received = torch.zeros_like(rows, device=communicator.device)
        self._communicator, self._kind, self._decay = communicator, kind, decay
        self._exchange = Exchange()

    def take(self) -> torch.Tensor:
        """`rows` with what came since the last call; waits for it."""
        self._exchange.wait()
        received = self._received.to(self.rows.device)
        return self.rows.lerp_(received, 1 - self._decay) if self._decay else self.rows.copy_(received)

    def start(self, send: torch.Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]) -> None:
        """Begin this epoch's exchange, after `take`; `send` has to stay as it is until the next `take`."""
        self._exchange = self._communicator.start_exchange(
            send, send_counts, self._received, receive_counts, self._kind
        )

    def kept(self) -> dict[str, torch.Tensor]:
        """All that the next epoch depends on, once nothing is on its way."""
        return {"rows": self.rows, "received": self._received}


class PipelinedBoundary(Boundary):
    """Halo rows and gradients of the epoch before; this epoch's are on their way while the rank computes.

    `widths`: of the slots 1, 2, …; `decays`: of what is a moving average; `pipes`: of every slot and direction.
    """

    def __init__(
        self,
        part: LocalPart,
        communicator: Communicator,
        widths: Sequence[int],
        device: torch.device,
        decays: Mapping[Kind, float],
    ) -> None:
        super().__init__(part, communicator)
        self.pipes: dict[str, Pipe] = {}
        for slot, width in enumerate(widths, start=1):
            table = self._buffers[f"rows {slot}", width] = torch.empty(part.num_rows, width, device=device)
            gradients = torch.empty(part.send_rows.shape[0], width, device=device)
            for kind, rows in ((Kind.ACTIVATIONS, table[part.num_own :]), (Kind.GRADIENTS, gradients)):
                self.pipes[f"{kind} {slot}"] = Pipe(rows, communicator, kind, decays.get(kind, 0.0))

    def forward(self, own: torch.Tensor, slot: int) -> torch.Tensor:
        """Own rows of now and halo rows of the last epoch; own rows that others need set out."""
        part, pipe = self.part, self.pipes[f"{Kind.ACTIVATIONS} {slot}"]
        with phase(Phase.EXCHANGE):
            rows = self._buffer(f"rows {slot}", part.num_rows, own.shape[1], own)
            rows[: part.num_own].copy_(own)
            pipe.take()  # into the halo's rows of this table
            pipe.start(self._pack(own, f"send {slot}"), part.send_counts, part.receive_counts)
        return rows.detach()

    def backward(self, gradient: torch.Tensor, slot: int) -> torch.Tensor:
        """Gradients of the own rows, with others' contributions of the last epoch; the halo's set out."""
        part, pipe = self.part, self.pipes[f"{Kind.GRADIENTS} {slot}"]
        with phase(Phase.EXCHANGE):
            own = gradient[: part.num_own].clone()
            own.index_add_(0, part.send_rows.to(own.device), pipe.take())
            halo = gradient[part.num_own :]
            send = self._buffer(f"gradients {slot}", halo.shape[0], halo.shape[1], halo).copy_(halo)
            pipe.start(send.to(self.communicator.device), part.receive_counts, part.send_counts)
        return own

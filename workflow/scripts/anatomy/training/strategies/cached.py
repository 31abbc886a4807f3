"""Full-graph training that sends a row again only when it has moved, and else reuses what was sent last.

After CDFGNN (Zhang, Jiang and You, "CDFGNN: a systematic design of cache-based distributed full-batch graph neural
network training with communication reduction", arXiv 2408.00232, 2024): activations of boundary nodes and the
gradients that travel back are kept by their receivers. A row x, whose receiver has c, is sent only if
||x - c|| > epsilon ||x||, in both directions and before each layer but the first. Messages may be quantised to 8 bits
within each row's own range; then c is what the receiver makes of it, so that the error does not add up.

The threshold adapts to the training accuracy by a rule of this project: whenever `patience` epochs in a row have not
raised the best accuracy, epsilon is multiplied by `shrink` from the next epoch on. The paper adapts its cache too, but
partitions by a vertex cut in two levels and keeps copies of nodes in step; here, parts are an edge cut's, of any
partitioner, and each consumer of a node has a cache of its own. Dropout moves every row in every epoch: with it, next
to nothing is kept.

What is sent: a bit per row and consumer says which rows follow (`requests`), then come the rows (`activations`,
`gradients`); the number of right predictions that epsilon depends on is counted as `weights`. With an epsilon of 0,
every row is sent. `sent_fraction` in `epochs.parquet` is the share of rows that a rank sent.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.boundary import Boundary
from anatomy.training.communication import Communicator, Kind, ring_bytes
from anatomy.training.layers._base import Passed
from anatomy.training.parts import LocalPart
from anatomy.training.quantisation import HEADER_BYTES
from anatomy.training.row_cache import RowCache
from anatomy.training.strategies._base import EpochResult, PredictedBytes
from anatomy.training.strategies._fullgraph import FullGraphStrategy

OPTIONS: dict[str, Any] = {
    "properties": {
        "epochs": {"type": "integer", "minimum": 1, "description": "Epochs to train, warm-up included."},
        "epsilon": {
            "type": "number",
            "minimum": 0,
            "default": 0.05,
            "description": "Share of its norm by which a row may be off before it is sent again; 0: always sent.",
        },
        "patience": {
            "type": "integer",
            "minimum": 1,
            "default": 5,
            "description": "Epochs without a better training accuracy after which epsilon shrinks.",
        },
        "shrink": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 1,
            "default": 0.5,
            "description": "What epsilon is multiplied by when it shrinks; 1: it stays.",
        },
        "quantise": {
            "enum": ["none", "int8"],
            "default": "none",
            "description": "How rows are sent: as float32, or as 8-bit codes within each row's own range.",
        },
    },
    "required": ["epochs"],
}

PAPER: dict[str, Any] = {
    "gain": 1.3039,
    "of": "speed, in its experiments",
    "over": "the best distributed full-batch frameworks, with quantised messages and a partitioner of its own",
    "on": "a cluster of GPUs",
    "source": "abstract of CDFGNN, arXiv 2408.00232",
}

EXACT = ({"epsilon": 0, "quantise": "none"},)

COUNT_BYTES = 8
"""The number of right predictions that the ranks add up where epsilon adapts, int64."""


class CachedBoundary(Boundary):
    """Sends rows and gradients only where they moved by more than `epsilon`. `widths`: of the rows of each slot."""

    def __init__(
        self,
        part: LocalPart,
        communicator: Communicator,
        widths: Mapping[int, int],
        device: torch.device,
        quantised: bool,
    ) -> None:
        super().__init__(part, communicator)
        self.epsilon = 0.0
        self._rows = {slot: torch.empty(part.num_rows, width, device=device) for slot, width in widths.items()}
        self._forward = {
            slot: RowCache(
                rows[part.num_own :], part.send_counts, part.receive_counts, communicator, Kind.ACTIVATIONS, quantised
            )
            for slot, rows in self._rows.items()
        }
        self._backward = {
            slot: RowCache(
                torch.empty(sum(part.send_counts), width, device=device),
                part.receive_counts,
                part.send_counts,
                communicator,
                Kind.GRADIENTS,
                quantised,
            )
            for slot, width in widths.items()
        }
        self._send_rows = part.send_rows.to(device)
        self._sent, self._exact = 0, 0

    def forward(self, own: torch.Tensor, slot: int) -> torch.Tensor:
        with phase(Phase.EXCHANGE):
            rows = self._rows[slot]
            rows[: self.part.num_own].copy_(own)
            boundary = self._buffer("boundary", self._send_rows.shape[0], own.shape[1], own)
            torch.index_select(own.detach(), 0, self._send_rows, out=boundary)
            self._exchange(self._forward[slot], boundary)
        return rows.detach()

    def backward(self, gradient: torch.Tensor, slot: int) -> torch.Tensor:
        with phase(Phase.EXCHANGE):
            cache = self._backward[slot]
            self._exchange(cache, gradient[self.part.num_own :])
            return gradient[: self.part.num_own].clone().index_add_(0, self._send_rows, cache.held)

    def take_sent_fraction(self) -> float | None:
        """Share of the rows since the last call that were sent; None where there were none."""
        fraction = self._sent / self._exact if self._exact else None
        self._sent, self._exact = 0, 0
        return fraction

    def tensors(self) -> dict[str, torch.Tensor]:
        """All that is carried from one exchange to the next, by name; to read and to fill in."""
        caches = {"activations": self._forward, "gradients": self._backward}
        return {
            f"{name} {slot} {side}": getattr(cache, side)
            for name, by_slot in caches.items()
            for slot, cache in by_slot.items()
            for side in ("sent", "held")
        }

    def _exchange(self, cache: RowCache, rows: torch.Tensor) -> None:
        self._sent += cache.exchange(rows, self.epsilon)
        self._exact += rows.shape[0]


class Strategy(FullGraphStrategy):
    """See the module."""

    boundary: CachedBoundary

    def make_boundary(self, part: LocalPart) -> Boundary:
        context = self.context
        options, widths = context.specification.strategy, context.model.widths
        boundary = CachedBoundary(
            part,
            context.communicator,
            {index: widths[index] for index in range(1, len(context.model.layers))},
            context.device,
            options["quantise"] == "int8",
        )
        boundary.epsilon = float(options["epsilon"])
        self._most_right, self._waited = -1, 0
        return boundary

    def run_layer(self, index: int, rows: torch.Tensor, carried: torch.Tensor | None) -> Passed:
        passed = super().run_layer(index, rows, carried)
        if self._adapts and index == len(self.context.model.layers) - 1:
            with phase(Phase.SYNC):
                self._right = self._count_right(passed[0].detach())
        return passed

    def train_epoch(self, epoch: int, record_accesses: bool = False) -> EpochResult:
        result = super().train_epoch(epoch, record_accesses)
        if self._adapts:
            self._adapt()
        return replace(result, sent_fraction=self.boundary.take_sent_fraction())

    def state(self) -> dict[str, torch.Tensor]:
        tensors = {name: tensor.to("cpu", copy=True) for name, tensor in self.boundary.tensors().items()}
        adapted = torch.tensor([self.boundary.epsilon, self._most_right, self._waited], dtype=torch.float64)
        return tensors | {"adapted": adapted}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in self.boundary.tensors().items():
            tensor.copy_(state[name])
        self.boundary.epsilon, most_right, waited = state["adapted"].tolist()
        self._most_right, self._waited = int(most_right), int(waited)

    def predict(self) -> PredictedBytes:
        options, widths, exact = self.context.specification.strategy, self.context.model.widths, super().predict()
        row_bytes = [HEADER_BYTES + width if options["quantise"] == "int8" else 4 * width for width in widths[1:-1]]
        exchanged = self.volume() * sum(row_bytes) if options["epsilon"] == 0 else None
        return replace(exact, sent_activations_bytes_per_epoch=exchanged, sent_gradients_bytes_per_epoch=exchanged)

    def weights_bytes(self) -> int:
        size = self.context.communicator.size
        counts = sum(ring_bytes(COUNT_BYTES, rank, size) for rank in range(size)) if self._adapts else 0
        return super().weights_bytes() + counts

    @property
    def _adapts(self) -> bool:
        options = self.context.specification.strategy
        return options["epsilon"] > 0 and options["shrink"] < 1

    def _count_right(self, scores: torch.Tensor) -> int:
        """Training nodes of all ranks whose class is predicted right."""
        communicator = self.context.communicator
        right = (scores[self._training_rows].argmax(1) == self._labels).sum().to(communicator.device)
        communicator.sum(right, Kind.WEIGHTS)
        return int(right.item())

    def _adapt(self) -> None:
        """The next epoch's epsilon; see the module."""
        options = self.context.specification.strategy
        if self._right > self._most_right:
            self._most_right, self._waited = self._right, 0
            return
        self._waited += 1
        if self._waited == options["patience"]:
            self.boundary.epsilon *= options["shrink"]
            self._waited = 0

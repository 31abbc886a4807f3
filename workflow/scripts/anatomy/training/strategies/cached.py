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

With `hierarchical_exchange`, rows go by hosts (see `legs`): what has come to an entry anew is handed on in the same
epoch. Gradients are held back at each leg, so an entry's sum may be off by what each of its summands may, and again by
its own share.

What is sent: a bit per row and consumer says which rows follow (`requests`), then come the rows (`activations`,
`gradients`); the number of right predictions that epsilon depends on is counted as `weights`. With an epsilon of 0,
every row is sent. `sent_fraction` in `epochs.parquet` is the share of rows that a rank sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.boundary import Boundary
from anatomy.training.communication import Communicator, Kind, ring_bytes
from anatomy.training.layers._base import Passed
from anatomy.training.legs import Leg, counts_between_hosts
from anatomy.training.parts import LocalPart
from anatomy.training.quantisation import HEADER_BYTES
from anatomy.training.row_cache import RowCache, bytes_of_bits
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
        "hierarchical_exchange": {
            "type": "boolean",
            "default": False,
            "description": "Whether a row that several ranks of another host need is sent to that host once.",
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

CAME_ANEW = 1e-5
"""Share of its norm by which a row that is handed on has moved, if it has come anew; quantised twice, it moves by less.
"""
COUNT_BYTES = 8
"""The number of right predictions that the ranks add up where epsilon adapts, int64."""


class CachedBoundary(Boundary):
    """Sends rows and gradients only where they moved by more than `epsilon`, by each of the `legs` that they go.

    `widths`: of the rows of each slot.
    """

    def __init__(
        self,
        part: LocalPart,
        communicator: Communicator,
        widths: Mapping[int, int],
        device: torch.device,
        quantised: bool,
        legs: Sequence[Leg],
    ) -> None:
        super().__init__(part, communicator)
        self.epsilon = 0.0
        self._legs = [leg.to(device) for leg in legs]
        self._rows = {slot: torch.empty(part.num_rows, width, device=device) for slot, width in widths.items()}
        self._forward: dict[int, list[RowCache]] = {}
        self._backward: dict[int, list[RowCache]] = {}
        for slot, rows in self._rows.items():
            self._forward[slot] = [
                RowCache(
                    self._held(leg, rows),
                    leg.send_counts,
                    leg.receive_counts,
                    communicator,
                    Kind.ACTIVATIONS,
                    quantised,
                )
                for leg in self._legs
            ]
            self._backward[slot] = [
                RowCache(
                    rows.new_empty(leg.send_rows.shape[0], rows.shape[1]),
                    leg.receive_counts,
                    leg.send_counts,
                    communicator,
                    Kind.GRADIENTS,
                    quantised,
                )
                for leg in self._legs
            ]
        self._sent, self._exact = 0, 0

    def _held(self, leg: Leg, rows: torch.Tensor) -> torch.Tensor:
        """Where what a leg brings is kept: in the table, if it is the whole halo in its order, or apart."""
        if len(self._legs) == 1:
            return rows[self.part.num_own :]
        return rows.new_empty(leg.receive_rows.shape[0], rows.shape[1])

    def forward(self, own: torch.Tensor, slot: int) -> torch.Tensor:
        with phase(Phase.EXCHANGE):
            rows = self._rows[slot]
            rows[: self.part.num_own].copy_(own)
            for number, (leg, cache) in enumerate(zip(self._legs, self._forward[slot], strict=True)):
                send = self._buffer(f"leg {number}", leg.send_rows.shape[0], own.shape[1], own)
                torch.index_select(rows, 0, leg.send_rows, out=send)
                self._exchange(cache, send, self.epsilon if number == 0 else min(self.epsilon, CAME_ANEW))
                if len(self._legs) > 1:
                    rows.index_copy_(0, leg.receive_rows, cache.held)
        return rows.detach()

    def backward(self, gradient: torch.Tensor, slot: int) -> torch.Tensor:
        with phase(Phase.EXCHANGE):
            rows = gradient.clone()
            for leg, cache in reversed(list(zip(self._legs, self._backward[slot], strict=True))):
                self._exchange(cache, rows[leg.receive_rows], self.epsilon)
                rows.index_add_(0, leg.send_rows, cache.held)
            return rows[: self.part.num_own]

    def take_sent_fraction(self) -> float | None:
        """Share of the rows since the last call that were sent; None where there were none."""
        fraction = self._sent / self._exact if self._exact else None
        self._sent, self._exact = 0, 0
        return fraction

    def tensors(self) -> dict[str, torch.Tensor]:
        """All that is carried from one exchange to the next, by name; to read and to fill in."""
        caches = {"activations": self._forward, "gradients": self._backward}
        return {
            f"{name} {slot} {leg} {side}": getattr(cache, side)
            for name, by_slot in caches.items()
            for slot, by_leg in by_slot.items()
            for leg, cache in enumerate(by_leg)
            for side in ("sent", "held")
        }

    def _exchange(self, cache: RowCache, rows: torch.Tensor, epsilon: float) -> None:
        self._sent += cache.exchange(rows, epsilon)
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
            self.legs(part),
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
        if options["epsilon"] > 0:
            return replace(exact, sent_activations_bytes_per_epoch=None, sent_gradients_bytes_per_epoch=None)
        exchanged = self.volume() * sum(row_bytes)
        counts = counts_between_hosts(
            self.context.partition, self.context.communicator.ranks_per_host, self.goes_by_hosts
        )
        announced = len(row_bytes) * sum(map(bytes_of_bits, counts))
        return replace(
            exact,
            sent_activations_bytes_per_epoch=exchanged,
            sent_gradients_bytes_per_epoch=exchanged,
            between_hosts_bytes_per_epoch=2 * (sum(counts) * sum(row_bytes) + announced),
        )

    def weights_bytes(self) -> int | None:
        size = self.context.communicator.size
        counts = sum(ring_bytes(COUNT_BYTES, rank, size) for rank in range(size)) if self._adapts else 0
        gradients = super().weights_bytes()
        return None if gradients is None else gradients + counts

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

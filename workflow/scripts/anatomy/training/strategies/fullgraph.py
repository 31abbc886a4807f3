"""Full-graph training: a step is an epoch; every rank holds its part and its halo.

Before each layer but the first, activations of boundary nodes are exchanged, and in the backward pass their gradients
travel back, so that the ranks together compute exactly what one process would. The halo's features are fetched once.
"""

from typing import Any

import torch
from torch.nn import functional

from anatomy.graphs.splits import TRAIN
from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.communication import Kind, ring_bytes
from anatomy.training.evaluation import Evaluator
from anatomy.training.gradients import EXTRA_VALUES
from anatomy.training.parts import local_part
from anatomy.training.strategies._base import EpochResult, PredictedBytes
from anatomy.training.strategies._base import Strategy as Base

OPTIONS: dict[str, Any] = {
    "properties": {
        "epochs": {"type": "integer", "minimum": 1, "description": "Epochs to train, warm-up included."},
    },
    "required": ["epochs"],
}


class Strategy(Base):
    """See the module."""

    def prepare(self) -> None:
        context = self.context
        part = local_part(context.graph, context.partition, context.communicator.rank)
        own = torch.from_numpy(context.graph.features[part.nodes.numpy()])
        self._evaluator = Evaluator(context, part)
        self._boundary, self._block = self._evaluator.boundary, self._evaluator.block
        self._features = self._evaluator.with_halo(own, Kind.FEATURES)
        self._num_own = part.num_own
        training = torch.from_numpy(context.graph.split[part.nodes.numpy()] == TRAIN)
        self._training_rows = torch.nonzero(training).squeeze(1).to(context.device)
        self._labels = self._evaluator.labels.to(context.device)[self._training_rows]

    def train_epoch(self, epoch: int, record_accesses: bool = False) -> EpochResult:
        context = self.context
        context.model.train()
        num_seed_nodes = self._training_rows.shape[0]
        with context.step():
            rows, carried = self._features, None
            for index in range(len(context.model.layers)):
                if index > 0:
                    rows = self._boundary.exchange(rows, slot=index)
                rows, carried = context.model.layer(index, context.operators, self._block, rows, carried)
            with phase(Phase.LOSS):
                loss = functional.cross_entropy(rows[self._training_rows], self._labels, reduction="sum")
            loss_sum, count = context.update(loss, num_seed_nodes)
        return EpochResult(1, num_seed_nodes, loss_sum / count)

    def evaluate(self) -> dict[str, float | None]:
        return self._evaluator.accuracies(self._features[: self._num_own], self._features)

    def predict(self) -> PredictedBytes:
        context = self.context
        size = context.communicator.size
        volume = sum(len(context.partition.halo(owner, consumer)) for owner in range(size) for consumer in range(size))
        widths = context.model.widths
        exchanged = 4 * volume * sum(widths[1:-1])
        payload = 4 * (context.model.num_parameters + EXTRA_VALUES)
        return PredictedBytes(
            sent_activations_bytes_per_epoch=exchanged,
            sent_gradients_bytes_per_epoch=exchanged,
            sent_weights_bytes_per_epoch=sum(ring_bytes(payload, rank, size) for rank in range(size)),
            sent_features_bytes_once=4 * volume * widths[0],
        )

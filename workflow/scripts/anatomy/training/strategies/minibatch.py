"""Neighbour-sampled mini-batches: every rank trains on the training nodes of its own part, all ranks step together.

The graph's structure is mapped by every rank, its features are partitioned; each batch's features come in one exchange.
In a step in which a rank has no seed nodes left it still answers requests and adds zeros to the gradients.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from anatomy.graphs.splits import TRAIN
from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.evaluation import Evaluator
from anatomy.training.features import FeatureStore
from anatomy.training.gradients import Piece
from anatomy.training.parts import local_part, mapped_tensor
from anatomy.training.sampling import MiniBatch, NeighbourSampler, generator_for
from anatomy.training.strategies._base import EpochResult, PredictedBytes
from anatomy.training.strategies._base import Strategy as Base

OPTIONS: dict[str, Any] = {
    "properties": {
        "epochs": {"type": "integer", "minimum": 1, "description": "Epochs to train, warm-up included."},
        "fanouts": {
            "type": "array",
            "items": {"type": "integer", "anyOf": [{"minimum": 1}, {"const": -1}]},
            "minItems": 1,
            "description": "Neighbours sampled per node and layer, from the input layer to the output layer; -1: all.",
        },
        "batch_size": {"type": "integer", "minimum": 1, "description": "Seed nodes per rank and step."},
    },
    "required": ["epochs", "fanouts", "batch_size"],
}

GRADIENTS = ("own_losses", "micro_batches")
"""What policies of gradients may need and find here."""


class Strategy(Base):
    """See the module."""

    def prepare(self) -> None:
        context = self.context
        options, graph, communicator = context.specification.strategy, context.graph, context.communicator
        self._batch_size = options["batch_size"]
        self._seed_nodes = torch.from_numpy(self._training_nodes(communicator.rank))
        self._steps, self._trained = self._num_steps(), 0
        self._labels = mapped_tensor(graph.labels)
        self._sampler = NeighbourSampler(
            context.operators, mapped_tensor(graph.indptr), mapped_tensor(graph.indices), options["fanouts"]
        )
        part = local_part(graph, context.partition, communicator.rank)
        capacity = min(graph.num_nodes - part.num_own, self._largest_input()) if communicator.size > 1 else 0
        self._store = FeatureStore(graph.features, context.partition.assignment, part.nodes, communicator, capacity)
        self._evaluator = Evaluator(context, part)

    def train_epoch(self, epoch: int, record_accesses: bool = False) -> EpochResult:
        context = self.context
        context.model.train()
        self._store.record_accesses(record_accesses)
        self._store.remote_nodes = 0
        generator = generator_for(context.specification.seed, context.communicator.rank, epoch)
        batches = self.batches(epoch, generator)
        loss_sum, count, self._trained = 0.0, 0, 0
        for seeds in batches:
            with context.step():
                step_loss, step_count = context.update_in_pieces(self._losses(seeds, generator))
                loss_sum, count = loss_sum + step_loss, count + step_count
        return EpochResult(self._steps, self._trained, context.mean_loss(loss_sum, count), self._store.remote_nodes)

    def batches(self, epoch: int, generator: torch.Generator) -> list[torch.Tensor]:
        """This rank's seed nodes, int64, in every step of an epoch; all ranks have as many steps, some without any.

        `generator` is this rank's of the epoch.
        """
        return self.own_batches(self._seed_nodes, generator)

    def own_batches(self, seed_nodes: torch.Tensor, generator: torch.Generator) -> list[torch.Tensor]:
        """A part's seed nodes, shuffled, cut into the steps of an epoch."""
        shuffled = seed_nodes[torch.randperm(seed_nodes.shape[0], generator=generator)]
        return [shuffled[step * self._batch_size : (step + 1) * self._batch_size] for step in range(self._steps)]

    def evaluate(self) -> dict[str, float | None]:
        return self._evaluator.accuracies(self._store.own_rows)

    def accesses(self) -> tuple[np.ndarray, np.ndarray]:
        return self._store.accesses()

    def predict(self) -> PredictedBytes:
        return PredictedBytes(sent_weights_bytes_per_epoch=self.context.gradients.bytes_per_epoch(self._num_steps()))

    def _losses(self, seeds: torch.Tensor, generator: torch.Generator) -> Iterator[Piece]:
        """A step's losses in `micro_batches` pieces, one without seed nodes; all features come in one exchange before.

        All ranks take part in the exchange, with seed nodes or without; between the pieces none waits for another.
        """
        batches, places = [], []
        if seeds.shape[0]:
            with phase(Phase.SAMPLE):
                pieces = seeds.chunk(self.context.gradients.micro_batches)
                batches = [self._sampler.sample(piece, generator) for piece in pieces]
                nodes, places = _distinct_inputs(batches)
        fetched = self._store.fetch(nodes if batches else seeds)
        if not batches:
            yield None, 0
        for batch, place in zip(batches, places, strict=True):
            num_seed_nodes = batch.seed_nodes.shape[0]
            self._trained += num_seed_nodes
            yield self._loss(batch, fetched[place]), num_seed_nodes

    def _loss(self, batch: MiniBatch, fetched: torch.Tensor) -> torch.Tensor:
        """Summed loss of a batch whose input nodes' features are in these rows of the store."""
        context = self.context
        rows = self._store.gather(fetched)
        with phase(Phase.COPY):
            rows = rows.to(context.device, non_blocking=True)
            labels = self._labels[batch.seed_nodes].to(context.device, non_blocking=True)
            blocks = [block.to(context.device) for block in batch.blocks]
        scores = context.model(context.operators, blocks, rows)
        with phase(Phase.LOSS):
            return functional.cross_entropy(scores, labels, reduction="sum")

    def _training_nodes(self, rank: int) -> np.ndarray:
        graph, assignment = self.context.graph, self.context.partition.assignment
        return np.flatnonzero((np.asarray(graph.split) == TRAIN) & (np.asarray(assignment) == rank))

    def _num_steps(self) -> int:
        """Steps of an epoch: those of the rank with the most training nodes."""
        most = max(len(self._training_nodes(rank)) for rank in range(self.context.communicator.size))
        return math.ceil(most / self.context.specification.strategy["batch_size"])

    def _largest_input(self) -> int:
        """The most input nodes that a batch can have."""
        fanouts = self.context.specification.strategy["fanouts"]
        if min(fanouts) < 0:
            return self.context.graph.num_nodes
        pieces = self.context.gradients.micro_batches
        return pieces * math.ceil(self.largest_batch() / pieces) * math.prod(fanout + 1 for fanout in fanouts)

    def largest_batch(self) -> int:
        """The most seed nodes that this rank can have in a step."""
        return self.context.specification.strategy["batch_size"]


def _distinct_inputs(batches: list[MiniBatch]) -> tuple[torch.Tensor, list[torch.Tensor | slice]]:
    """Distinct input nodes of all batches, int64, and where each batch's are among them, int64 or all."""
    if len(batches) == 1:
        return batches[0].input_nodes, [slice(None)]
    nodes, places = torch.unique(torch.cat([batch.input_nodes for batch in batches]), return_inverse=True)
    return nodes, list(places.split([batch.input_nodes.shape[0] for batch in batches]))

"""Mini-batches whose sampler and features may live on other hosts than their trainer.

After the placement of Luo, Bao and Wu ("Optimizing task placement and online scheduling for distributed GNN training
acceleration", INFOCOM 2022, arXiv:2204.11224): graph stores, samplers and workers are tasks that may run anywhere, and
where they are not together, the graph's data travels between hosts. The paper searches for a placement and schedules
the transmissions online, under limits of each host's resources. Here a placement is given, with one task of each kind
per rank, so that all of them can be tried, and steps are synchronous.

Rank t's batches are sampled on rank `samplers[t]`, which draws what t itself would draw and sends the blocks; the
features of part p lie on rank `stores[p]`, where the trainers fetch them, and its training nodes are still trained on
by rank p. So a placement changes what travels and nothing else: losses and weights are those of `minibatch`, and with
all together so are the bytes. What travels is predicted by `placement.traffic`. The graph's structure is mapped by
every rank, as in `minibatch`.

All ranks make the same exchanges in every step; a rank without seed nodes sends or gets a batch of nothing.
"""

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.batch_messages import as_message, deliver, from_message, num_bytes
from anatomy.training.features import FeatureStore
from anatomy.training.placement import identity
from anatomy.training.sampling import MiniBatch, generator_for
from anatomy.training.strategies import minibatch
from anatomy.training.strategies._base import EpochResult

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
        "samplers": {
            "type": ["array", "null"],
            "items": {"type": "integer", "minimum": 0},
            "default": None,
            "description": "For each rank the rank that samples its batches, each named once; null: itself.",
        },
        "stores": {
            "type": ["array", "null"],
            "items": {"type": "integer", "minimum": 0},
            "default": None,
            "description": "For each part the rank that keeps its features, each named once; null: its own.",
        },
    },
    "required": ["epochs", "fanouts", "batch_size"],
}
BASE = "minibatch"
PACKAGES = ("numba",)
EXACT = ({},)
GRADIENTS = ("own_losses",)
PERMUTATIONS = ("samplers", "stores")
"""Options that name every rank once."""


class Strategy(minibatch.Strategy):
    """See the module."""

    def prepare(self) -> None:
        super().prepare()
        context = self.context
        graph, communicator, options = context.graph, context.communicator, context.specification.strategy
        samplers, stores = (options[name] or identity(communicator.size) for name in PERMUTATIONS)
        self._sampler_rank, self._trainer_rank = samplers[communicator.rank], samplers.index(communicator.rank)
        self._own_features = self._store.own_rows.clone()
        self._assignment = torch.from_numpy(np.array(context.partition.assignment))
        keeper = np.array(stores, np.int32)[self._assignment.numpy()]
        kept = np.flatnonzero(keeper == communicator.rank)
        capacity = min(graph.num_nodes - len(kept), self._largest_input()) if communicator.size > 1 else 0
        self._store = FeatureStore(graph.features, keeper, torch.from_numpy(kept), communicator, capacity)

    def train_epoch(self, epoch: int, record_accesses: bool = False) -> EpochResult:
        communicator = self.context.communicator
        communicator.take_sent_to()
        self._rows, self._batch_bytes = torch.zeros(communicator.size, dtype=torch.int64), 0
        result = super().train_epoch(epoch, record_accesses)
        counted = {"rows": self._rows.tolist(), "batch_bytes": self._batch_bytes}
        return replace(result, traffic={"sent_to_bytes": communicator.take_sent_to()} | counted)

    def batches(self, epoch: int, generator: torch.Generator) -> list[torch.Tensor]:
        """The seed nodes of the rank that this one samples for, as that rank would draw them."""
        self._generator = generator_for(self.context.specification.seed, self._trainer_rank, epoch)
        return self.own_batches(torch.from_numpy(self._training_nodes(self._trainer_rank)), self._generator)

    def evaluate(self) -> dict[str, float | None]:
        return self._evaluator.accuracies(self._own_features)

    def _prepare(
        self, seeds: torch.Tensor, generator: torch.Generator
    ) -> Generator[None, None, list[tuple[MiniBatch, torch.Tensor]]]:
        """Sample for another rank, get what this one trains on from the rank that sampled it, and fetch its features.

        All ranks take part, with seed nodes or without.
        """
        with phase(Phase.SAMPLE):
            sampled = self._sampler.sample(seeds, self._generator) if seeds.shape[0] else None
            message = as_message(sampled, len(self.context.model.layers))
        with phase(Phase.FETCH):
            message = deliver(message, self._trainer_rank, self._sampler_rank, self.context.communicator)
        self._batch_bytes += num_bytes(message)
        batch = from_message(message)
        nodes = torch.empty(0, dtype=torch.int64) if batch is None else batch.input_nodes
        self._rows += torch.bincount(self._assignment[nodes], minlength=self._rows.shape[0])
        rows = yield from self._store.fetch(nodes)
        return [] if batch is None else [(batch, rows)]

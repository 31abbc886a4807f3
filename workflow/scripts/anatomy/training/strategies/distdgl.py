"""Mini-batches by DGL's distributed engine (Zheng et al., 2020): what `minibatch` does, sampled and fetched by DistDGL.

Each host's graph server holds its part's structure and features, and its rank samples with `DistNodeDataLoader` and
reads features from a `DistTensor`. All else is as in `minibatch`: parts, seed nodes and their order, fan-outs, layers,
gradient synchronisation and evaluation. With all neighbours (fan-out -1) the two therefore train alike, to float
tolerance; sampled neighbours are other ones. They depend on seed, rank and epoch alone, since each request brings its
seed (`distdgl.seeded_requests`), so that a run that goes on from a checkpoint is the same as an uninterrupted one.

One rank per host, each with an address of its own, since DGL serves one part per address.

What a trace shows: the phases of `minibatch`, but for two things that DGL does inside one call. Features are read from
this host's memory and from other hosts in one, so that there is no `gather` beside `fetch`. And sampling and reading
ask the servers through sockets of DGL's own, which are no collectives: what a rank waits for them stands in `sample`
and `fetch` as preparation, not as communication, and only `sync` has waiting and transfer. The servers are processes
of their own, whose work no trace shows. Of what DGL sends, feature rows are counted, by the rank that gets them;
requests, and the structure that sampling brings, are not.
"""

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from anatomy.graphs.splits import TRAIN
from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.communication import Kind
from anatomy.training.distdgl.client import connect
from anatomy.training.evaluation import Evaluator
from anatomy.training.operators.block import Block
from anatomy.training.parts import local_part, mapped_tensor
from anatomy.training.sampling import generator_for
from anatomy.training.strategies._base import EpochResult
from anatomy.training.strategies.minibatch import Strategy as Minibatch

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

PACKAGES = ("dgl",)
"""Packages that it needs whatever the operators."""

GRADIENTS = ("own_losses",)

ONE_RANK_PER_HOST = True
"""Ranks on one host cannot run this strategy."""


class Strategy(Minibatch):
    """See the module."""

    uncounted = ("requests",)

    def prepare(self) -> None:
        context = self.context
        self._batch_size = context.specification.strategy["batch_size"]
        self._steps = self._num_steps()
        self._labels = mapped_tensor(context.graph.labels)
        self._indptr = mapped_tensor(context.graph.indptr)
        self._servers = connect(context)
        self._original = torch.from_numpy(self._servers.numbering.original)
        self._first_own, self._end_own = self._servers.numbering.node_starts[context.communicator.rank :][:2].tolist()
        self._seed_nodes = self._split()
        self._sampler = self._servers.dgl.dataloading.NeighborSampler(context.specification.strategy["fanouts"])
        self._evaluator = Evaluator(context, local_part(context.graph, context.partition, context.communicator.rank))
        self._accesses: list[torch.Tensor] | None = None

    def train_epoch(self, epoch: int, record_accesses: bool = False) -> EpochResult:
        context = self.context
        context.model.train()
        self._accesses = [] if record_accesses else None
        self._remote_nodes = 0
        generator = generator_for(context.specification.seed, context.communicator.rank, epoch)
        shuffled = self._seed_nodes[torch.randperm(self._seed_nodes.shape[0], generator=generator)]
        self._servers.sample_from(generator)
        batches = iter(self._loader(shuffled))
        loss_sum, count = 0.0, 0
        for _ in range(self._steps):
            with context.step():
                loss, num_seed_nodes = self._next_loss(batches)
                step_loss, step_count = context.update(loss, num_seed_nodes)
                loss_sum, count = loss_sum + step_loss, count + step_count
        context.communicator.count(Kind.FEATURES, self._remote_nodes * context.graph.num_features * 4)
        return EpochResult(self._steps, shuffled.shape[0], context.mean_loss(loss_sum, count), self._remote_nodes)

    def evaluate(self) -> dict[str, float | None]:
        return self._evaluator.accuracies(self._servers.features.local_partition)

    def accesses(self) -> tuple[np.ndarray, np.ndarray]:
        nodes = torch.cat(self._accesses).numpy() if self._accesses else np.empty(0, np.int64)
        nodes, counts = np.unique(nodes, return_counts=True)
        return nodes, counts.astype(np.int32)

    def _split(self) -> torch.Tensor:
        """This rank's training nodes in DGL's numbering, in the order of their ids, int64."""
        training = torch.from_numpy(self.context.graph.split[self._servers.numbering.original] == TRAIN)
        book = self._servers.graph.get_partition_book()
        with self._servers.answered():
            return self._servers.dgl.distributed.node_split(training, book, force_even=False)

    def _loader(self, seed_nodes: torch.Tensor) -> Any:
        """Batches of the seed nodes in the given order."""
        if not seed_nodes.shape[0]:
            return []
        loader = self._servers.dgl.dataloading.DistNodeDataLoader
        return loader(
            self._servers.graph, seed_nodes, self._sampler, batch_size=self._batch_size, shuffle=False, drop_last=False
        )

    def _next_loss(self, batches: Any) -> tuple[torch.Tensor | None, int]:
        """Summed loss and number of seed nodes of the next batch, None and 0 where there is none left."""
        context = self.context
        with phase(Phase.SAMPLE), self._servers.answered():
            batch = next(batches, None)
            if batch is None:
                return None, 0
            input_nodes, seeds, structures = batch
            blocks = [self._block(structure) for structure in structures]
        rows = self._fetch(input_nodes)
        with phase(Phase.COPY):
            rows = rows.to(context.device, non_blocking=True)
            labels = self._labels[self._original[seeds]].to(context.device, non_blocking=True)
            blocks = [block.to(context.device) for block in blocks]
        scores = context.model(context.operators, blocks, rows)
        with phase(Phase.LOSS):
            return functional.cross_entropy(scores, labels, reduction="sum"), seeds.shape[0]

    def _block(self, structure: Any) -> Block:
        """DGL's message-flow graph as a block; its destinations are its first sources, as ours are."""
        indptr, indices, _ = structure.adj_tensors("csc")
        sources = self._original[structure.srcdata[self._servers.dgl.NID]]
        degrees = (self._indptr[sources + 1] - self._indptr[sources]).to(torch.float32)
        return Block(indptr, indices, sources.shape[0], degrees)

    def _fetch(self, nodes: torch.Tensor) -> torch.Tensor:
        """Features of some nodes, float32 [nodes, width], from this host's memory and from other hosts."""
        with phase(Phase.FETCH), self._servers.answered():
            rows = self._servers.features[nodes]
            remote = nodes[(nodes < self._first_own) | (nodes >= self._end_own)]
            self._remote_nodes += remote.shape[0]
            if self._accesses is not None:
                self._accesses.append(self._original[remote])
            return rows

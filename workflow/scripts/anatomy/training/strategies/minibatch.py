"""Neighbour-sampled mini-batches: every rank trains on the training nodes of its own part, all ranks step together.

The graph's structure is mapped by every rank, its features are partitioned; each batch's features come in one exchange.
In a step in which a rank has no seed nodes left it still answers requests and adds zeros to the gradients.
"""

import math
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from anatomy.graphs.splits import TRAIN
from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.caching import access_weight, chosen_nodes, degree_weight, inclusion_probability, num_kept
from anatomy.training.evaluation import Evaluator
from anatomy.training.features import FeatureStore
from anatomy.training.gradients import Piece
from anatomy.training.operators.block import Block
from anatomy.training.parts import local_part, mapped_tensor
from anatomy.training.prefetching import Prefetcher, Staged
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
        "cache": {
            "type": ["object", "null"],
            "additionalProperties": False,
            "default": None,
            "description": "Remote features that every rank keeps from the start; null: none.",
            "properties": {
                "policy": {
                    "enum": ["degree", "accesses", "reverse_reachability"],
                    "description": "Which nodes: those that most nodes aggregate, those asked for most often in epochs "
                    "that are sampled before training, or those that are likeliest to be in a batch of the rank.",
                },
                "fraction": {
                    "type": "number",
                    "minimum": 0,
                    "maximum": 1,
                    "description": "How many, as a share of the nodes of all other ranks.",
                },
            },
            "required": ["policy", "fraction"],
        },
        "prefetch": {
            "type": "integer",
            "minimum": 0,
            "default": 0,
            "description": "Batches that are prepared while another is trained on: what they fetch is on its way.",
        },
    },
    "required": ["epochs", "fanouts", "batch_size"],
}

GRADIENTS = ("own_losses", "micro_batches")
"""What policies of gradients may need and find here."""

PACKAGES = ("numba",)
"""Packages that it needs whatever the operators."""

PRESAMPLED_EPOCHS = 2
"""Epochs that are sampled to count accesses. GNNLab finds one enough."""

Prepared = list[tuple[MiniBatch, torch.Tensor]]
"""A step's pieces, and their input nodes' rows of the feature table, int64 each."""


class Strategy(Base):
    """See the module."""

    def prepare(self) -> None:
        context = self.context
        options, graph, communicator = context.specification.strategy, context.graph, context.communicator
        self._batch_size = options["batch_size"]
        self._seed_nodes = torch.from_numpy(self._training_nodes(communicator.rank))
        self._steps, self._trained = self._num_steps(), 0
        self._labels = mapped_tensor(graph.labels)
        self._sampler = NeighbourSampler(mapped_tensor(graph.indptr), mapped_tensor(graph.indices), options["fanouts"])
        part = local_part(graph, context.partition, communicator.rank)
        capacity = min(graph.num_nodes - part.num_own, self._largest_input()) if communicator.size > 1 else 0
        self._prefetch = options.get("prefetch", 0)
        kept = self._cached_nodes()
        self._store = FeatureStore(
            graph.features,
            context.partition.assignment,
            part.nodes,
            communicator,
            capacity,
            num_kept=kept.shape[0],
            slots=1 + self._prefetch,
        )
        if self._cache_fraction:
            self._store.keep(kept)
        self._evaluator = Evaluator(context, part)

    def train_epoch(self, epoch: int, record_accesses: bool = False) -> EpochResult:
        context, store = self.context, self._store
        context.model.train()
        store.record_accesses(record_accesses)
        store.remote_nodes = store.hits = 0
        generator = generator_for(context.specification.seed, context.communicator.rank, epoch)
        batches = self.batches(epoch, generator)
        prefetcher = Prefetcher((self._prepare(seeds, generator) for seeds in batches), self._prefetch)
        loss_sum, count, self._trained = 0.0, 0, 0
        for _ in batches:
            with context.step():
                pieces = self._losses(prefetcher.take(), prefetcher.go_on)
                step_loss, step_count = context.update_in_pieces(pieces)
                prefetcher.go_on()
                loss_sum, count = loss_sum + step_loss, count + step_count
        return EpochResult(
            len(batches),
            self._trained,
            context.mean_loss(loss_sum, count),
            store.remote_nodes,
            cache_hits=store.hits,
            cache_bytes=store.kept_bytes,
        )

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
        context, size = self.context, self.context.communicator.size
        sizes = np.bincount(context.partition.assignment, minlength=size)
        kept = sum(num_kept(self._cache_fraction, context.graph.num_nodes - int(own)) for own in sizes)
        return PredictedBytes(
            sent_weights_bytes_per_epoch=context.gradients.bytes_per_epoch(self._num_steps()),
            sent_features_bytes_once=4 * kept * context.graph.num_features,
        )

    @property
    def _cache_fraction(self) -> float:
        cache = self.context.specification.strategy.get("cache")
        return 0.0 if cache is None else cache["fraction"]

    def _cached_nodes(self) -> torch.Tensor:
        """The remote nodes whose features this rank keeps, int64."""
        graph, rank = self.context.graph, self.context.communicator.rank
        remote = np.flatnonzero(np.asarray(self.context.partition.assignment) != rank)
        if not num_kept(self._cache_fraction, len(remote)):
            return torch.empty(0, dtype=torch.int64)
        options = self.context.specification.strategy
        match options["cache"]["policy"]:
            case "degree":
                weight = degree_weight(graph)
            case "accesses":
                weight = access_weight(graph.num_nodes, self._presampled())
            case "reverse_reachability":
                training = self._training_nodes(rank)
                weight = inclusion_probability(graph, training, options["batch_size"], options["fanouts"])
        return chosen_nodes(remote, self._cache_fraction, weight)

    def _presampled(self) -> Iterator[torch.Tensor]:
        """The input nodes of this rank's batches in epochs that nobody trains on, int64 each."""
        seed, rank = self.context.specification.seed, self.context.communicator.rank
        for epoch in range(PRESAMPLED_EPOCHS):
            generator = generator_for(seed, rank, epoch, 1)  # one more key than training has: other batches
            for seeds in self.batches(epoch, generator):
                yield self._sampler.sample(seeds, generator).input_nodes

    def _prepare(self, seeds: torch.Tensor, generator: torch.Generator) -> Generator[None, None, Prepared]:
        """A step's seed nodes in `micro_batches` pieces, whose features come in one exchange.

        All ranks take part in the exchange, with seed nodes or without.
        """
        with phase(Phase.SAMPLE):
            pieces = seeds.chunk(self.context.gradients.micro_batches) if seeds.shape[0] else []
            batches = [self._sampler.sample(piece, generator) for piece in pieces]
            nodes, places = _distinct_inputs(batches)
        rows = yield from self._store.fetch(nodes)
        return [(batch, rows[place]) for batch, place in zip(batches, places, strict=True)]

    def _losses(self, prepared: Prepared, go_on: Callable[[], None] = lambda: None) -> Iterator[Piece]:
        """The losses of a step's pieces, one without seed nodes; between the pieces no rank waits for another.

        `go_on` is called after the first piece's forward pass, which every rank's gradients take.
        """
        if not prepared:
            go_on()
            yield None, 0
        for number, (batch, rows) in enumerate(prepared):
            loss, num_seed_nodes = self._forward(batch, rows), batch.seed_nodes.shape[0]
            if number == 0:
                go_on()
            self._trained += num_seed_nodes
            yield loss, num_seed_nodes

    def _unprepared_losses(self, seeds: torch.Tensor, generator: torch.Generator) -> Iterator[Piece]:
        """`_losses` of a batch that nothing has prepared; all ranks call this together."""
        return self._losses(Staged(self._prepare(seeds, generator)).finish())

    def _forward(self, batch: MiniBatch, rows: torch.Tensor) -> torch.Tensor:
        """Summed loss of a prepared batch."""
        context = self.context
        blocks, sources = self._sources(batch.blocks, rows)
        with phase(Phase.COPY):
            sources = sources.to(context.device, non_blocking=True)
            labels = self._labels[batch.seed_nodes].to(context.device, non_blocking=True)
            blocks = [block.to(context.device) for block in blocks]
        scores = context.model(context.operators, blocks, sources)
        with phase(Phase.LOSS):
            return functional.cross_entropy(scores, labels, reduction="sum")

    def _sources(self, blocks: list[Block], rows: torch.Tensor) -> tuple[list[Block], torch.Tensor]:
        """The blocks and the first one's sources: the feature table itself where the first layer can read it."""
        table = self._store.table
        if table.device != self.context.device or not self.context.model.layers[0].reads_a_table:
            return blocks, self._store.gather(rows)
        with phase(Phase.GATHER):
            return [blocks[0].within(table, rows), *blocks[1:]], table

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
    if not batches:
        return torch.empty(0, dtype=torch.int64), []
    if len(batches) == 1:
        return batches[0].input_nodes, [slice(None)]
    nodes, places = torch.unique(torch.cat([batch.input_nodes for batch in batches]), return_inverse=True)
    return nodes, list(places.split([batch.input_nodes.shape[0] for batch in batches]))

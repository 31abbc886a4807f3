"""Layers of a pipeline: every stage owns consecutive layers and runs them on the whole graph, chunk after chunk.

Chen, Chen and Qian, "GNNPipe: Scaling Deep GNN Training with Pipelined Model Parallelism", arXiv 2308.10087. A rank is
a stage, or in the paper's hybrid of pipeline and graph parallelism, with fewer `stages` than ranks, one of several that
share a stage as parts of the graph. Chunks travel from stage to stage, so that a stage works on one while the next
works on that before. A layer of a chunk aggregates what its neighbours' chunks have put out in this epoch, where they
have come before; for the others it uses history, which is constant: no gradient goes there. Three measures keep this
near to exact training. The order of the chunks is drawn anew in each epoch; history is kept for `refresh_every` epochs;
and gradients that cross chunks count twice (`chunks.CROSSING_WEIGHT`). Backwards, the chunks go in reverse. Weight
gradients add up over all chunks, and one update ends the epoch. What is sent is one row per node, stage and direction,
whatever the edge cut, and no weight gradient.

In the hybrid, R ranks make S stages of R / S ranks that follow each other. As in the authors' code, every part of the
graph is cut into chunks, and chunk k is the k-th piece of all parts, which the ranks of a stage run together. Before a
layer, they exchange the chunk's rows that others of them need, now or for later chunks, and on the way back those rows'
gradients: as many as full-graph training on R / S parts exchanges for that layer. Such a row is as new as one of the
rank's own, and neighbours within a chunk never are history, whoever has them. Gradients of a stage's weights are summed
over its ranks. A partition of the run has R parts, so the k-th part of a stage is the union of S of them that follow
each other, from k S on. With one stage of one chunk this is full-graph training on the run's parts. A rank talks to
those of its stage and to the one at its place in the stages before and after alone. All ranks of a stage take the
chunks in one order, so that a rank waits for what others do at an earlier chunk or layer or at the same one, and there
is no circle of ranks that wait for each other.

Chosen here: history is what the epochs 0, `refresh_every`, 2 `refresh_every`, … have put out, and zeros before;
chunks are pieces of the partition's parts, by nearness in the graph (`chunks.cut_into_chunks`). All chunks go forward
before the first goes back, as one update per epoch and the reversed order make it necessary. Weights are gathered
before an evaluation and counted there; the loss, which the last stage knows, is shared in every epoch and counted as
weights.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from anatomy.graphs.splits import TRAIN
from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.chunks import ChunkedLayer, chunks_of, cut_into_chunks
from anatomy.training.communication import Kind
from anatomy.training.sampling import generator_for
from anatomy.training.stages import Inbox, Outbox, Stage
from anatomy.training.strategies._base import EpochResult, PredictedBytes
from anatomy.training.strategies._fullgraph import FullGraphStrategy

OPTIONS: dict[str, Any] = {
    "properties": {
        "epochs": {"type": "integer", "minimum": 1, "description": "Epochs to train, warm-up included."},
        "stages": {
            "type": ["integer", "null"],
            "minimum": 1,
            "default": None,
            "description": "Stages of the pipeline, each of as many ranks; null: every rank is one.",
        },
        "chunks": {
            "type": ["integer", "null"],
            "minimum": 1,
            "default": None,
            "description": "Pieces of the graph that go through the pipeline; null: 4 per stage; 1: exact, no overlap.",
        },
        "refresh_every": {
            "type": "integer",
            "minimum": 1,
            "default": 20,
            "description": "Epochs for which the history of chunks that come later is kept.",
        },
    },
    "required": ["epochs"],
}

PAPER: dict[str, Any] = {
    "gain": 2.45,
    "of": "epoch time, 1.58 on average, up to",
    "over": "graph parallelism, which gives every rank a part of the graph",
    "on": "GPUs",
    "source": "abstract of GNNPipe, arXiv 2308.10087",
}

EXACT = ({"chunks": 1}, {"chunks": 1, "stages": 1})
GRADIENTS = None

LAYER_OWNERS = "stages"
"""The option that says how many groups of ranks own layers; null: each rank is one."""

CHUNKS_PER_STAGE = 4


class Strategy(FullGraphStrategy):
    """See the module."""

    def prepare(self) -> None:
        super().prepare()
        context, options = self.context, self.context.specification.strategy
        self.stage = Stage(context, options["stages"])
        num_chunks = options["chunks"] or CHUNKS_PER_STAGE * self.stage.num_stages
        cut = cut_into_chunks(context.graph, context.partition.assignment, self._owners(), num_chunks)
        nodes, chunks = chunks_of(context.graph, cut, self.stage.peers.rank)
        self._chunks = [chunk.to(context.device) for chunk in chunks]
        self._not_empty = np.bincount(cut.chunk, minlength=num_chunks) > 0
        fixed_history = num_chunks > 1 and options["refresh_every"] > 1
        self._layers = [
            ChunkedLayer(context, index, self._chunks, self.stage.peers, self._input(index, nodes), fixed_history)
            for index in self.stage.layers
        ]
        own = nodes[: self._chunks[-1].nodes.stop]
        self._prepare_messages(len(own))
        self._num_seed_nodes = 0
        if self.stage.last:
            self._prepare_loss(own)
        # The first backward pass that is given gradients has torch import what it asks about symbolic shapes: seconds,
        # which are not the first epoch's.
        torch.ones(1, requires_grad=True).clone().backward(torch.ones(1))

    def train_epoch(self, epoch: int, record_accesses: bool = False) -> EpochResult:
        context, stage = self.context, self.stage
        context.model.train()
        order = self._order(epoch)
        with context.step():
            stage.weights.gradients.zero_()
            for layer in self._layers:
                layer.start_epoch()
            loss_sum = self._forward(order)
            self._backward(order[::-1])
            for layer in self._layers:
                layer.end_epoch(remember=epoch % context.specification.strategy["refresh_every"] == 0)
            num_seed_nodes = context.graph.manifest["split"]["train"]
            stage.sum_gradients()
            with phase(Phase.OPTIMIZE):
                stage.weights.gradients.div_(num_seed_nodes)
                context.optimizer.step()
            loss = stage.share_loss(loss_sum) / num_seed_nodes
        return EpochResult(1, self._num_seed_nodes, loss)

    def evaluate(self) -> dict[str, float | None]:
        self.stage.gather_weights()
        return super().evaluate()

    def predict(self) -> PredictedBytes:
        """Between stages a row per node, and within each what full-graph training on its parts exchanges."""
        widths = self.context.model.widths
        passed = self.context.graph.num_nodes * sum(map(sum, self.stage.widths_between()))
        passed += self._volume_within() * sum(widths[1:-1])
        return PredictedBytes(
            sent_activations_bytes_per_epoch=4 * passed,
            sent_gradients_bytes_per_epoch=4 * passed,
            sent_weights_bytes_per_epoch=self.stage.loss_bytes() + self.stage.gradients_bytes(),
            sent_features_bytes_once=super().predict().sent_features_bytes_once,
        )

    def _owners(self) -> list[int]:
        """For each part of the partition, the place in a stage of the rank that has it."""
        return [part // self.stage.num_stages for part in range(self.context.partition.num_parts)]

    def _volume_within(self) -> int:
        """Rows that the ranks of one stage together send in an exchange of all chunks."""
        halo, owners = self.context.partition.halo, self._owners()
        parts, places = range(len(owners)), range(self.stage.peers.size)
        needed = {pair: [np.empty(0, np.int64)] for pair in product(places, repeat=2)}
        for owner, consumer in product(parts, repeat=2):
            needed[owners[owner], owners[consumer]].append(halo(owner, consumer))
        return sum(len(np.unique(np.concatenate(nodes))) for (a, b), nodes in needed.items() if a != b)

    def state(self) -> dict[str, torch.Tensor]:
        if len(self._chunks) == 1:
            return {}
        tables = zip(self.stage.layers, self._layers, strict=True)
        return {f"rows {index}": layer.table.cpu() for index, layer in tables if index > 0}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        for index, layer in zip(self.stage.layers, self._layers, strict=True):
            if f"rows {index}" in state:
                layer.restore(state[f"rows {index}"])

    def _input(self, index: int, nodes: np.ndarray) -> torch.Tensor:
        """A layer's input table at the start: the features, or zeros."""
        if index == 0:
            return torch.from_numpy(self.context.graph.features[nodes]).to(self.context.device)
        return torch.zeros(len(nodes), self.context.model.widths[index], device=self.context.device)

    def _prepare_messages(self, num_own: int) -> None:
        """Buffers for what comes from and goes to the neighbouring stages."""
        communicator, stage = self.context.communicator, self.stage
        width_in, width_out = sum(stage.widths_in), sum(stage.widths_out)
        if not stage.first:
            self._inputs = Inbox(communicator, stage.before, num_own, width_in)
            self._input_gradients = Outbox(communicator, stage.before, num_own, width_in, Kind.GRADIENTS)
        if not stage.last:
            self._outputs = Outbox(communicator, stage.after, num_own, width_out, Kind.ACTIVATIONS)
            self._output_gradients = Inbox(communicator, stage.after, num_own, width_out)

    def _prepare_loss(self, own: np.ndarray) -> None:
        """Of each chunk, the training nodes' rows and labels; and where the scores' gradients go."""
        graph, device = self.context.graph, self.context.device
        chosen, labels = graph.split[own] == TRAIN, graph.labels[own]
        self._num_seed_nodes = int(chosen.sum())
        self._targets = [
            (
                torch.from_numpy(np.flatnonzero(chosen[chunk.nodes])).to(device),
                torch.from_numpy(labels[chunk.nodes][chosen[chunk.nodes]]).to(device),
            )
            for chunk in self._chunks
        ]
        self._score_gradients = torch.empty(len(own), self.stage.widths_out[0], device=device)

    def _order(self, epoch: int) -> list[int]:
        """The chunks that have nodes, on any rank, in the order of an epoch, the same on all ranks."""
        seed = self.context.specification.seed
        shuffled = torch.randperm(len(self._chunks), generator=generator_for(seed, 0, epoch)).tolist()
        return [number for number in shuffled if self._not_empty[number]]

    def _own_rows(self, order: list[int]) -> list[slice]:
        """The rows that this rank has of chunks, where it has any."""
        return [self._chunks[number].nodes for number in order if self._chunks[number].num_nodes]

    def _forward(self, order: list[int]) -> torch.Tensor:
        """All chunks through this stage; returns the summed loss, 0 where the scores are another's."""
        context, stage = self.context, self.stage
        is_done = torch.zeros(len(self._chunks), dtype=torch.bool, device=context.device)
        loss_sum = torch.zeros((), device=context.device)
        if not stage.first:
            self._inputs.expect(self._own_rows(order))
        for number in order:
            chunk, rows, carried = self._chunks[number], None, None
            if not stage.first and chunk.num_nodes:
                rows, carried = self._inputs.take(chunk.nodes, stage.widths_in, context.device)
            for layer in self._layers:
                if rows is not None:
                    layer.table[chunk.nodes] = rows.detach()
                rows, carried = layer.forward(number, is_done, carried)
            if chunk.num_nodes and stage.last:
                loss_sum += self._loss(number, rows)
            elif chunk.num_nodes:
                self._outputs.post(chunk.nodes, [rows, carried])
            is_done[number] = True
        if not stage.last:
            self._outputs.flush()
        return loss_sum

    def _loss(self, number: int, scores: torch.Tensor) -> torch.Tensor:
        """The summed loss of a chunk; its gradient is kept."""
        rows, labels = self._targets[number]
        with phase(Phase.LOSS):
            scores = scores.detach().requires_grad_()
            loss = functional.cross_entropy(scores[rows], labels, reduction="sum")
        with phase(Phase.BACKWARD):
            loss.backward()
            self._score_gradients[self._chunks[number].nodes] = scores.grad
        return loss.detach()

    def _backward(self, order: list[int]) -> None:
        """All chunks back through this stage."""
        stage = self.stage
        if not stage.last:
            self._output_gradients.expect(self._own_rows(order))
        for number in order:
            chunk, rows, carried = self._chunks[number], None, None
            if chunk.num_nodes and stage.last:
                rows = self._score_gradients[chunk.nodes]
            elif chunk.num_nodes:
                rows, carried = self._output_gradients.take(chunk.nodes, stage.widths_out, self.context.device)
            for layer in reversed(self._layers):
                carried = layer.backward(number, rows, carried)
                rows = layer.gradients[chunk.nodes] if layer.gradients is not None else None
            if not stage.first and chunk.num_nodes:
                self._input_gradients.post(chunk.nodes, [rows, carried])
        if not stage.first:
            self._input_gradients.flush()

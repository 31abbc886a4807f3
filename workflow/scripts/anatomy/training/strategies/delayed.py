"""DistGNN: full-graph training on a vertex cut, in which ranks add up what they have gathered r epochs late (cd-r).

Md, Misra, Ma, Mohanty, Georganas, Heinecke, Kalamkar, Ahmed and Avancha, "DistGNN: Scalable Distributed Training for
Large-Scale Graph Neural Networks", SC 2021. Each edge is on one rank, and a node has a replica wherever it has an edge;
one of them is its root, the others are leaves. A rank sums over its own edges. Leaves send such a partial sum to the
root, which adds what it gets and sends the total back. All replicas of a node then do the same dense work, and only
roots have a loss. `delay` chooses among the paper's three algorithms:

- 0 (cd-0): both legs are waited for in every layer, which is exact;
- r >= 1 (cd-r): shared nodes are in r bins, and epoch e is the turn of bin e mod r. A root of that bin adds what leaves
  sent in epoch e - r; a leaf takes the total that its root sent in epoch e - r, which contains leaves' sums of e - 2 r.
  Nodes of other bins, and all in the first epochs, make do with the sum over the rank's own edges;
- null (0c): nothing is exchanged.

As in the authors' code for DGL, a mean divides by the number of edges that are in the sum, so a partial sum is the mean
of fewer neighbours, not a smaller one; `gcn` and `gcnii` scale it up to the degree likewise. What came is used in its
bin's turn alone, as in the code, and not kept for the epochs between. Every layer is exchanged, the first one too,
since even its totals are there in one of r epochs alone; and the last one's totals go back to leaves although no loss
asks for them. Where a layer projects before it aggregates, what travels, late, is projected.

Versions of the code differ in gradients. The first exchanges none: the gradient of a total is taken for that of the
rank's own part. A later one exchanges them, of the same nodes by the same two legs, but from epoch 2 r on, and has
losses at roots alone. Here the gradients of sums are exchanged as sums are, by the same bins and delays, from the first
epoch on. The sum over replicas is its own transpose, so with delay 0 gradients are exact: what a replica's dense work
adds to the weights' gradients belongs to its own row, and nothing is counted twice.

The abstract (arXiv 2104.06700) has no gain of cd-r over cd-0: up to 3.7 times is what faster kernels give on one
socket, and up to 97 times is 128 sockets over DGL's on one. Neither is over training of the same graph on as many
ranks, which is what this study measures gains over, so the module states none.

The code calls cd-0 one round, and 0c -1. It sends each node's number of edges with its sum, which is known here, so
bytes are fewer by one number a row. It lets each rank choose the bins of its leaves; here shared nodes take turns in
the order of their ids, so that all leaves of a node are in the same bin.

Dropout draws on each rank for itself, so replicas of a node drop different values, as in the code. Attention needs all
edges of a node in one place, so `gat` cannot be trained. Evaluation is exact and reads the halo lists of the roots'
parts; it and checkpoints wait for what is on its way.
"""

from collections.abc import Mapping
from typing import Any

import torch

from anatomy.training.communication import Kind
from anatomy.training.evaluation import Evaluator
from anatomy.training.layers._base import GraphLayer, Passed
from anatomy.training.operators.base import Operators
from anatomy.training.operators.block import Block
from anatomy.training.parts import local_part
from anatomy.training.replicas import Leg, PartialSums, local_replicas
from anatomy.training.strategies._base import PredictedBytes
from anatomy.training.strategies._fullgraph import FullGraphStrategy

OPTIONS: dict[str, Any] = {
    "properties": {
        "epochs": {"type": "integer", "minimum": 1, "description": "Epochs to train, warm-up included."},
        "delay": {
            "type": ["integer", "null"],
            "minimum": 0,
            "default": 5,
            "description": "Epochs that partial sums are on their way to the root, and again to the leaves (the "
            "paper's r); 0: waited for at once; null: no exchange.",
        },
    },
    "required": ["epochs"],
}

EXACT = ({"delay": 0},)

LAYERS = ("gcn", "sage", "gcnii", "ressage")

PARTITION = "vertex_cut"
"""What it trains on, where there are several ranks."""


class Strategy(FullGraphStrategy):
    """See the module. `features` [own + mirrors, width] and `replicas` are there after `prepare`."""

    def prepare(self) -> None:
        context = self.context
        delay = context.specification.strategy["delay"]
        self._delay = None if delay is None else int(delay)
        rank = context.communicator.rank
        self.replicas = local_replicas(context.graph, context.partition, rank, self._delay or 1)
        self.part = local_part(context.graph, context.partition, rank)
        self._evaluator = Evaluator(context, self.part)
        self._edges = self.replicas.edges.to(context.device)
        self.features = self._with_mirrors(torch.from_numpy(context.graph.features[self.part.nodes.numpy()]))
        self._operators = [self._sums_of(layer) for layer in context.model.layers]
        self.find_seed_nodes()

    def start_epoch(self, epoch: int) -> None:
        self.block = self._summed_block(epoch)
        for operators in self._operators:
            operators.epoch = epoch

    def run_layer(self, index: int, rows: torch.Tensor, carried: torch.Tensor | None) -> Passed:
        return self.context.model.layer(index, self._operators[index], self.block, rows, carried)

    def evaluate(self) -> dict[str, float | None]:
        for sums in self._all_sums().values():
            sums.settle()
        return self._evaluator.accuracies(self.features[: self.replicas.num_own])

    def predict(self) -> PredictedBytes:
        """With a delay, bytes differ between epochs: bins differ in size, and the first epochs send one leg alone."""
        num_mirrors = self._num_mirrors()
        exchanged = {Kind.ACTIVATIONS: 0, Kind.GRADIENTS: 0}
        for layer in self.context.model.layers:
            projected = self._projected(layer)
            for kind in self._exchanged(projected):
                exchanged[kind] += 2 * num_mirrors * projected.shape[1] * 4
        known = not self._delay or not num_mirrors
        return PredictedBytes(
            sent_activations_bytes_per_epoch=exchanged[Kind.ACTIVATIONS] if known else None,
            sent_gradients_bytes_per_epoch=exchanged[Kind.GRADIENTS] if known else None,
            sent_weights_bytes_per_epoch=self.weights_bytes(),
            sent_features_bytes_once=4 * num_mirrors * self.context.model.widths[0],
        )

    def state(self) -> dict[str, torch.Tensor]:
        return {
            f"{place} {key}": rows.cpu()
            for place, sums in self._all_sums().items()
            for key, rows in sums.kept().items()
        }

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        for place, sums in self._all_sums().items():
            for key, rows in sums.kept().items():
                rows.copy_(state[f"{place} {key}"])

    def _with_mirrors(self, own: torch.Tensor) -> torch.Tensor:
        """Features of all replicas, on the model's device; roots send them to their leaves."""
        context, replicas = self.context, self.replicas
        features = torch.empty(len(replicas.nodes), own.shape[1], device=context.device)
        features[: replicas.num_own] = own
        for shared in replicas.bins:
            leg = Leg(shared, False, own.shape[1], context.communicator, Kind.FEATURES, context.device)
            leg.start(features)
            features.index_copy_(0, leg.receive_rows, leg.take())
        return features

    def _sums_of(self, layer: GraphLayer) -> "SumsOfReplicas":
        """The operators of one layer."""
        context, projected = self.context, self._projected(layer)
        directions = {
            kind: PartialSums(
                self.replicas.bins, self._delay, projected.shape[1], context.communicator, kind, context.device
            )
            for kind in self._exchanged(projected)
        }
        return SumsOfReplicas(context.operators, self._edges, directions)

    def _exchanged(self, projected: torch.Tensor) -> tuple[Kind, ...]:
        """What is exchanged of a layer that aggregates such rows: no gradient where none is asked for."""
        if self._delay is None:
            return ()
        return (Kind.ACTIVATIONS, Kind.GRADIENTS) if projected.requires_grad else (Kind.ACTIVATIONS,)

    def _projected(self, layer: GraphLayer) -> torch.Tensor:
        """What a layer aggregates, of no rows: [0, width], with a gradient where the layer's needs one."""
        rows = torch.empty(0, layer.place.width_in, device=self.context.device, requires_grad=not layer.place.first)
        return layer.project(layer.enter(rows))

    def _summed_block(self, epoch: int) -> Block:
        """What layers know of the edges whose sums they get, wherever these lie: how many, and the nodes' degrees."""
        edges, delay = self._edges, self._delay
        counts = edges.counts.clone()
        if delay is not None:
            shared = self.replicas.bins[epoch % len(self.replicas.bins)]
            for rows, since in ((shared.root_rows, delay), (shared.leaf_rows, 2 * delay)):
                if epoch >= since:
                    counts[rows] = edges.degrees[rows].to(counts.dtype)
        indptr = torch.zeros_like(edges.indptr)
        torch.cumsum(counts, 0, out=indptr[1:])
        return Block(indptr, edges.indices.new_empty(0), edges.num_sources, edges.degrees)

    def _num_mirrors(self) -> int:
        return len(self.context.partition.mirror_nodes) if self.context.communicator.size > 1 else 0

    def _all_sums(self) -> dict[str, PartialSums]:
        """Every exchange of an epoch, by kind and layer."""
        return {
            f"{kind} {index}": sums
            for index, operators in enumerate(self._operators)
            for kind, sums in operators.directions.items()
        }


class SumsOfReplicas(Operators):
    """Sums over in-neighbours of a rank's replicas: over its own edges, then with what other ranks have summed.

    `directions`: the exchange of sums (activations) and that of their gradients; none where nothing is exchanged.
    `epoch` is the one that trains.
    """

    def __init__(self, operators: Operators, edges: Block, directions: Mapping[Kind, PartialSums]) -> None:
        self._operators, self._edges = operators, edges
        self.directions = directions
        self.epoch = 0

    def weighted_sum(self, block: Block, features: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        assert weights is None, "only layers without weights on edges are given these operators"
        partial = self._operators.weighted_sum(self._edges, features, None)
        return _Total.apply(partial, self) if self.directions else partial

    def edge_softmax(self, block: Block, scores: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("attention needs all edges of a node on one rank")


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial: torch.Tensor, sums: SumsOfReplicas) -> torch.Tensor:
        ctx.sums = sums
        return sums.directions[Kind.ACTIVATIONS].total(partial, sums.epoch)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.sums.directions[Kind.GRADIENTS].total(gradient, ctx.sums.epoch), None

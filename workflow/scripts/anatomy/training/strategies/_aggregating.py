"""What strategies share whose communication is a part of aggregation: a layer gets the rows of own nodes alone.

A layer asks its operators for sums over in-neighbours. Here that one call sends what is needed and sums it up, A x over
all ranks, where A is the whole graph's adjacency matrix; the backward pass is the same with its transpose. So rows
travel as they are aggregated: where a layer projects first (a last layer that is narrower than what enters it), they
travel projected. The sum is linear, so that no exchanged row is kept from the forward pass to the backward pass.

The first layer is that of `fullgraph`: the halo's features are fetched once. Attention needs the rows of all neighbours
of a node side by side, so a strategy of this kind cannot train `gat`.
"""

from abc import abstractmethod
from dataclasses import replace

import torch

from anatomy.training.layers._base import Passed
from anatomy.training.operators.base import Operators
from anatomy.training.operators.block import Block
from anatomy.training.strategies._base import PredictedBytes
from anatomy.training.strategies._fullgraph import FullGraphStrategy


class SumsAcrossRanks(Operators):
    """Sums over in-neighbours, whichever rank has them; the block that a layer names stands for the whole graph.

    All ranks must call `gather` and `scatter` together.
    """

    @abstractmethod
    def gather(self, own: torch.Tensor) -> torch.Tensor:
        """A x: of every own node the sum of its in-neighbours' rows, both float32 [own, width]."""

    @abstractmethod
    def scatter(self, gradient: torch.Tensor) -> torch.Tensor:
        """Transposed A g: of every own node the sum of the rows of those that it is an in-neighbour of."""

    def weighted_sum(self, block: Block, features: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        assert weights is None, "only layers without weights on edges are given these operators"
        return _Sum.apply(features, self)

    def edge_softmax(self, block: Block, scores: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("attention needs the edges of all neighbours on one rank")


class AggregatingStrategy(FullGraphStrategy):
    """See the module. `sums` are the operators of all layers but the first, there after `prepare`."""

    def prepare(self) -> None:
        super().prepare()
        context, block = self.context, self.block
        self.sums = self.make_sums() if context.communicator.size > 1 else context.operators
        self._own_block = Block(block.indptr, block.indices, self.part.num_own, block.degrees[: self.part.num_own])

    @abstractmethod
    def make_sums(self) -> SumsAcrossRanks:
        """How several ranks sum; one rank has the whole graph and sums alone."""

    @abstractmethod
    def exchanged_bytes(self, width: int) -> int:
        """Bytes that all ranks together send for sums of rows of that width, forward or backward."""

    def run_layer(self, index: int, rows: torch.Tensor, carried: torch.Tensor | None) -> Passed:
        if index == 0:
            return super().run_layer(index, rows, carried)
        return self.context.model.layer(index, self.sums, self._own_block, rows, carried)

    def predict(self) -> PredictedBytes:
        exchanged = sum(self.exchanged_bytes(width) for width in self._aggregated_widths())
        return replace(
            super().predict(), sent_activations_bytes_per_epoch=exchanged, sent_gradients_bytes_per_epoch=exchanged
        )

    def _aggregated_widths(self) -> list[int]:
        """Widths of the rows that the layers but the first aggregate, as the layers themselves make them."""
        layers, widths = self.context.model.layers[1:], self.context.model.widths[1:-1]
        with torch.no_grad():
            return [
                layer.project(layer.enter(torch.zeros(1, width, device=self.context.device))).shape[1]
                for layer, width in zip(layers, widths, strict=True)
            ]


def matrix(indptr: torch.Tensor, indices: torch.Tensor, num_sources: int) -> Block:
    """A sparse matrix for `Operators.weighted_sum`: a block whose destinations need not be its first sources."""
    return Block(indptr, indices, num_sources, torch.empty(0))


def transpose(block: Block) -> Block:
    """The transposed matrix of a block; the block itself keeps nothing of what is made on the way."""
    indptr, destinations, _ = matrix(block.indptr, block.indices, block.num_sources).transposed
    return matrix(indptr, destinations, block.num_destinations)


def selected_edges(block: Block, chosen: torch.Tensor, rows: torch.Tensor, num_sources: int) -> Block:
    """A block's edges that are `chosen`, bool [edges], from `rows`, int64 [chosen edges], of another table."""
    before = torch.zeros(block.num_edges + 1, dtype=torch.int64)
    torch.cumsum(chosen, 0, out=before[1:])
    return matrix(before[block.indptr], rows, num_sources)


def even_sizes(total: int, num_pieces: int) -> list[int]:
    """Sizes of pieces that differ by 1 at most, the larger ones first."""
    size, rest = divmod(total, num_pieces)
    return [size + (piece < rest) for piece in range(num_pieces)]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own: torch.Tensor, sums: SumsAcrossRanks) -> torch.Tensor:
        ctx.sums = sums
        return sums.gather(own)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.sums.scatter(gradient), None

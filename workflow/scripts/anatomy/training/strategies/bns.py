"""Boundary-node sampling, BNS-GCN: full-graph training in which each epoch exchanges a random sample of the halo.

Wan, Li, Li, Kim and Lin, "BNS-GCN: Efficient Full-Graph Training of Graph Convolutional Networks with
Partition-Parallelism and Random Boundary Node Sampling", MLSys 2022. Of the B nodes that one rank has and another
needs, int(rate x B) are drawn in every epoch, without replacement. Edges from the others are left out of the epoch,
forward and backward. Those drawn stand for all: their rows, and so the gradients of these, are multiplied by B over the
number drawn. With rate 1 nothing is left out; with rate 0 each rank trains on its part alone.

Where the paper and its code differ: the paper draws each node with probability `rate`, the code int(rate x B) of each
pair of ranks, as here. The paper's algorithm exchanges the rows that enter every layer, so the features of those drawn
are sent anew in each epoch (`first_layer: sent`). Its code, in all runs, fetches the halo's features once and
precomputes what the first layer aggregates from the whole halo, with GraphSAGE and GCN (`first_layer: whole`).

Degrees are those of the whole graph, as in the code: a mean divides the scaled sum by all in-neighbours of a node,
GCN by the square roots of the degrees. The code divides rows before they are sent; here their reader multiplies them
where it sums them up, which is the same where all before the sum is linear (GCN, GraphSAGE) and unbiased also where it
is not (`gcnii`, `ressage`). Attention is a softmax over the neighbours that are there: sums to 1 without a factor, so
rows are not scaled for it; the code scales them, with a note that it should not.

Both ranks of a pair draw from a generator of seed, epoch and pair, so no indices are sent; the code sends them. What
the halo needs for exact evaluation is fetched once, in set-up, whatever the first layer does.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.boundary import Boundary
from anatomy.training.communication import Kind
from anatomy.training.layers._base import Passed
from anatomy.training.operators.block import Block
from anatomy.training.parts import LocalPart
from anatomy.training.sampling import generator_for
from anatomy.training.strategies._base import PredictedBytes
from anatomy.training.strategies._fullgraph import FullGraphStrategy

OPTIONS: dict[str, Any] = {
    "properties": {
        "epochs": {"type": "integer", "minimum": 1, "description": "Epochs to train, warm-up included."},
        "rate": {
            "type": "number",
            "minimum": 0,
            "maximum": 1,
            "default": 0.1,
            "description": "Share of the boundary nodes that each pair of ranks exchanges in an epoch (the paper's p).",
        },
        "first_layer": {
            "enum": ["sent", "kept", "whole"],
            "default": "sent",
            "description": "Features of the halo in the first layer: those of the sample, sent in each epoch, as in "
            "the paper; the same from features that are kept, with nothing sent; or those of the whole halo, kept, as "
            "in the paper's code.",
        },
    },
    "required": ["epochs"],
}


PAPER: dict[str, Any] = {
    "gain": 16.2,
    "of": "throughput, up to",
    "over": "full-graph training as it was; the abstract does not say whose",
    "on": "GPUs",
    "source": "abstract of BNS-GCN, MLSys 2022",
}

EXACT = ({"rate": 1.0}, {"rate": 1.0, "first_layer": "whole"})


class Strategy(FullGraphStrategy):
    """See the module. `sample` is the part of the current epoch: own nodes, and those of the halo that are drawn."""

    accounted = (*FullGraphStrategy.accounted, "sample", "_sampled_features", "_halo_rows")

    def prepare(self) -> None:
        super().prepare()
        options = self.context.specification.strategy
        self._rate, self._first_layer = options["rate"], options["first_layer"]
        self.sample = self._draw_part(epoch=0)
        if self._first_layer != "whole":
            own = self.features[: self.part.num_own]
            self._sampled_features = torch.cat([own, own.new_empty(self.sample.halo.shape[0], own.shape[1])])

    def make_boundary(self, part: LocalPart) -> Boundary:
        """One whose part changes from epoch to epoch; the number of rows does not, so its buffers stay."""
        return Boundary(part, self.context.communicator)

    def start_epoch(self, epoch: int) -> None:
        with phase(Phase.SAMPLE):
            self.sample = self.boundary.part = self._draw_part(epoch)

    def run_layer(self, index: int, rows: torch.Tensor, carried: torch.Tensor | None) -> Passed:
        block = self.sample.block
        if index > 0:
            rows = self.boundary.exchange(rows, slot=index)
        elif self._first_layer == "whole":
            block = self.block
        else:
            rows = self._features_of_sample()
        return self.context.model.layer(index, self.context.operators, block, rows, carried)

    def predict(self) -> PredictedBytes:
        ranks, widths = range(self.context.communicator.size), self.context.model.widths
        row_bytes = 4 * sum(self._num_drawn(owner, consumer) for owner in ranks for consumer in ranks)
        return replace(
            super().predict(),
            sent_features_bytes_per_epoch=row_bytes * widths[0] if self._first_layer == "sent" else 0,
            sent_activations_bytes_per_epoch=row_bytes * sum(widths[1:-1]),
            sent_gradients_bytes_per_epoch=row_bytes * sum(widths[1:-1]),
        )

    def _features_of_sample(self) -> torch.Tensor:
        """Features of own and drawn nodes [own + drawn, width], by way of the other ranks or from those kept."""
        table, num_own = self._sampled_features, self.part.num_own
        if self._first_layer == "sent":
            with phase(Phase.EXCHANGE):
                self.boundary.complete(table, Kind.FEATURES)
        else:
            with phase(Phase.GATHER):
                torch.index_select(self.features, 0, self._halo_rows, out=table[num_own:])
        return table

    def _draw_part(self, epoch: int) -> LocalPart:
        """This rank's part in an epoch; another rank's draws for the pairs with this one are the same."""
        part, rank = self.part, self.context.communicator.rank
        ranks = range(self.context.communicator.size)
        sent = [self._draw(epoch, rank, consumer) for consumer in ranks]
        received = [self._draw(epoch, owner, rank) for owner in ranks]
        halo = _positions(received, part.receive_counts)
        device = self.block.indptr.device
        self._halo_rows = (halo + part.num_own).to(device)
        stand_for = [
            torch.full((len(drawn),), count / max(len(drawn), 1))
            for drawn, count in zip(received, part.receive_counts, strict=True)
        ]
        scale = torch.cat([torch.ones(part.num_own), *stand_for]).to(device)
        sources = torch.cat([torch.arange(part.num_own, device=device), self._halo_rows])
        return LocalPart(
            nodes=part.nodes,
            halo=part.halo[halo],
            block=thinned(self.block, sources, scale),
            send_rows=part.send_rows[_positions(sent, part.send_counts)],
            send_counts=[len(drawn) for drawn in sent],
            receive_counts=[len(drawn) for drawn in received],
        )

    def _draw(self, epoch: int, owner: int, consumer: int) -> torch.Tensor:
        """Which nodes of a pair's halo list an epoch exchanges, as sorted positions in the list, int64."""
        count = len(self.context.partition.halo(owner, consumer))
        generator = generator_for(self.context.specification.seed, epoch, owner, consumer)
        return torch.randperm(count, generator=generator)[: self._num_drawn(owner, consumer)].sort().values

    def _num_drawn(self, owner: int, consumer: int) -> int:
        return int(self._rate * len(self.context.partition.halo(owner, consumer)))


def _positions(drawn: Sequence[torch.Tensor], counts: Sequence[int]) -> torch.Tensor:
    """Positions in lists that lie one after the other, `counts` long, from positions in each of them."""
    starts = torch.tensor([0, *counts]).cumsum(0).tolist()
    return torch.cat([positions + start for positions, start in zip(drawn, starts, strict=False)])


def thinned(block: Block, sources: torch.Tensor, scale: torch.Tensor) -> Block:
    """The block with some of its sources, int64 rows that begin with all destinations, and with the edges from them.

    `scale` float32 [sources]: how many each stands for.
    """
    row_of = torch.full((block.num_sources,), -1, device=sources.device)
    row_of[sources] = torch.arange(sources.shape[0], device=sources.device)
    rows = row_of[block.indices]
    kept = rows >= 0
    kept_before = torch.zeros(block.num_edges + 1, dtype=torch.int64, device=sources.device)
    torch.cumsum(kept, 0, out=kept_before[1:])
    return Block(kept_before[block.indptr], rows[kept], sources.shape[0], block.degrees[sources], scale)

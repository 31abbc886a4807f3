"""MG-GCN: full-graph training in which every rank in turn broadcasts all of its rows to all others.

Balın, Sancak and Çatalyürek, "MG-GCN: A Scalable Multi-GPU GCN Training Framework", ICPP 2022 (arXiv 2110.08688). The
adjacency matrix is partitioned in one dimension: a rank has the rows of its own nodes, cut into one block of columns
per rank. A layer's sums come in as many stages as there are ranks: in stage s, rank s broadcasts its rows, and every
rank adds the product of its block s with them. There are two buffers, so that the next stage's rows are on their way
while those of this one are multiplied. The backward pass is the same with the rows of the transposed matrix.

What travels does not depend on the cut: each layer sends (ranks - 1) * nodes rows, forward and again backward, however
few of them a rank needs.

The paper permutes the nodes at random and cuts them evenly; here the parts are those of any partitioner, of which
`random` comes closest. The first layer aggregates features that were fetched once, as it does in `fullgraph`.
"""

from typing import Any

import numpy as np
import torch

from anatomy.graphs.store import Graph
from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.communication import Exchange, Kind
from anatomy.training.features import rows_within_parts
from anatomy.training.operators.block import Block
from anatomy.training.parts import LocalPart, in_neighbours
from anatomy.training.strategies._aggregating import (
    AggregatingStrategy,
    SumsAcrossRanks,
    matrix,
    selected_edges,
)
from anatomy.training.strategies._base import Context

OPTIONS: dict[str, Any] = {
    "properties": {
        "epochs": {"type": "integer", "minimum": 1, "description": "Epochs to train, warm-up included."},
    },
    "required": ["epochs"],
}

EXACT = ({},)
"""Options with which this is `fullgraph`: all there are."""

LAYERS = ("gcn", "sage", "gcnii", "ressage")
"""Layers that this strategy can train."""

EDGES_AT_A_TIME = 1 << 24
"""How many of the graph's edges are looked at together."""


class StagedProducts(SumsAcrossRanks):
    """See the module."""

    def __init__(self, context: Context, part: LocalPart) -> None:
        self._operators, self._communicator = context.operators, context.communicator
        assignment = np.asarray(context.partition.assignment)
        self._num_rows = np.bincount(assignment, minlength=self._communicator.size).tolist()
        rows = in_neighbours(context.graph, part.nodes.numpy())
        transposed_rows = out_neighbours(context.graph, assignment, self._communicator.rank)
        self._rows = self._columns(*rows, assignment, context.device)
        self._transposed_rows = self._columns(*transposed_rows, assignment, context.device)
        self._buffers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def gather(self, own: torch.Tensor) -> torch.Tensor:
        return self._product(self._rows, own, Kind.ACTIVATIONS)

    def scatter(self, gradient: torch.Tensor) -> torch.Tensor:
        return self._product(self._transposed_rows, gradient, Kind.GRADIENTS)

    def _product(self, blocks: list[Block], own: torch.Tensor, kind: Kind) -> torch.Tensor:
        """The sum over all stages of a block times the rows of the rank whose turn it is."""
        total = torch.zeros_like(own)
        with phase(Phase.EXCHANGE):
            sent = own.detach().contiguous().to(self._communicator.device)
            arriving = self._start(0, sent, kind)
        for stage, block in enumerate(blocks):
            rows, broadcast = arriving
            with phase(Phase.EXCHANGE):
                broadcast.wait()
                if stage + 1 < len(blocks):
                    arriving = self._start(stage + 1, sent, kind)
                rows = rows.to(own.device)
            if block.num_edges:
                total += self._operators.weighted_sum(block, rows, None)
        return total

    def _start(self, stage: int, own: torch.Tensor, kind: Kind) -> tuple[torch.Tensor, Exchange]:
        """The rows of a stage, which are there when its broadcast has ended."""
        rows = own
        if stage != self._communicator.rank:
            rows = self._buffer(stage % 2, own)[: self._num_rows[stage]]
        return rows, self._communicator.start_broadcast(rows, stage, kind)

    def _buffer(self, which: int, like: torch.Tensor) -> torch.Tensor:
        width = like.shape[1]
        if width not in self._buffers:
            largest = max(self._num_rows)
            self._buffers[width] = (like.new_empty(largest, width), like.new_empty(largest, width))
        return self._buffers[width][which]

    def _columns(
        self, indptr: np.ndarray, nodes: np.ndarray, assignment: np.ndarray, device: torch.device
    ) -> list[Block]:
        """Rows of the matrix, whose columns are node ids, cut into one block per rank, whose columns are its rows."""
        edges = matrix(torch.from_numpy(indptr), torch.from_numpy(nodes), len(assignment))
        row_of = rows_within_parts(assignment)[edges.indices].to(torch.int64)
        owner_of = torch.from_numpy(assignment[nodes])
        owned = [owner_of == owner for owner in range(self._communicator.size)]
        return [
            selected_edges(edges, chosen, row_of[chosen], num_rows).to(device)
            for chosen, num_rows in zip(owned, self._num_rows, strict=True)
        ]


class Strategy(AggregatingStrategy):
    """See the module."""

    def make_sums(self) -> StagedProducts:
        return StagedProducts(self.context, self.part)

    def exchanged_bytes(self, width: int) -> int:
        return 4 * width * (self.context.communicator.size - 1) * self.context.partition.num_nodes


def out_neighbours(graph: Graph, assignment: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Of a rank's nodes those that they are in-neighbours of: where each node's begin, int64 [nodes + 1], and ids."""
    found = [
        start + np.flatnonzero(assignment[graph.indices[start : start + EDGES_AT_A_TIME]] == rank)
        for start in range(0, len(graph.indices), EDGES_AT_A_TIME)
    ]
    positions = np.concatenate([np.empty(0, np.int64), *found])
    rows = rows_within_parts(assignment)[graph.indices[positions]].numpy()
    order = np.argsort(rows, kind="stable")
    counts = np.bincount(rows, minlength=np.count_nonzero(assignment == rank))
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return indptr, np.searchsorted(graph.indptr, positions[order], side="right") - 1

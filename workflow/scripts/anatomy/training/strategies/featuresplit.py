"""Feature parallelism: for aggregation every rank has all nodes, but only some of the columns.

Wan et al., "MixGCN: Scalable GCN Training by Mixture of Parallelism and Mixture of Accelerators", 2025 (arXiv
2501.01951), mix two parallelisms: here sparse products are split by feature columns and dense ones by nodes.
Ai et al., "NeutronTP: Load-Balanced Distributed Full-Graph GNN Training with Tensor Parallelism", PVLDB 18(2), 2024,
split alike. Before a layer's sums an all-to-all turns the rows of own nodes into all nodes' rows of own columns; each
rank sums over the whole graph; a second all-to-all turns the sums back. The backward pass is the same with the
transposed matrix.

What travels does not depend on the cut, and every rank aggregates as many edges: each layer sends 2 (P - 1) / P numbers
per node and column, forward and again backward, where the P parts are of one size. For that, each rank holds the whole
graph's structure, twice (for both passes).

Columns are shared out evenly; the first ranks take one more where they do not come out even, and a rank has none where
there are fewer columns than ranks. Not taken over are MixGCN's accelerators and its pipeline between them, and that
NeutronTP pulls all dense work of a model before all sparse work, so that an epoch has one pair of all-to-alls per
direction instead of one per layer: that trains another model. The first layer aggregates features that were fetched
once, as it does in `fullgraph`.
"""

from itertools import accumulate
from typing import Any

import numpy as np
import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.communication import Kind
from anatomy.training.operators.block import Block
from anatomy.training.parts import in_neighbours
from anatomy.training.strategies._aggregating import (
    AggregatingStrategy,
    SumsAcrossRanks,
    even_sizes,
    matrix,
    transpose,
)
from anatomy.training.strategies._base import Context

OPTIONS: dict[str, Any] = {
    "properties": {
        "epochs": {"type": "integer", "minimum": 1, "description": "Epochs to train, warm-up included."},
    },
    "required": ["epochs"],
}

PAPER: dict[str, Any] = {
    "gain": 10.4,
    "of": "throughput, up to",
    "over": "other distributed full-graph training, with accelerators for sparse products beside",
    "on": "GPUs",
    "source": "MixGCN, arXiv 2501.01951; its abstract has no number",
}

EXACT = ({},)
"""Options with which this is `fullgraph`: all there are."""

LAYERS = ("gcn", "sage", "gcnii", "ressage")
"""Layers that this strategy can train."""


class ColumnSums(SumsAcrossRanks):
    """See the module. Tables of all nodes are in the order of parts, and within a part of ids."""

    def __init__(self, context: Context) -> None:
        self._operators, self._communicator = context.operators, context.communicator
        assignment = np.asarray(context.partition.assignment)
        self._num_rows = np.bincount(assignment, minlength=self._communicator.size).tolist()
        order = np.argsort(assignment, kind="stable")
        row_of = np.empty(len(order), np.int64)
        row_of[order] = np.arange(len(order))
        indptr, neighbours = in_neighbours(context.graph, order)
        whole = matrix(torch.from_numpy(indptr), torch.from_numpy(row_of[neighbours]), len(order))
        self._matrix, self._transposed = whole.to(context.device), transpose(whole).to(context.device)
        self._buffers: dict[tuple[str, int], torch.Tensor] = {}

    def gather(self, own: torch.Tensor) -> torch.Tensor:
        return self._product(self._matrix, own, Kind.ACTIVATIONS)

    def scatter(self, gradient: torch.Tensor) -> torch.Tensor:
        return self._product(self._transposed, gradient, Kind.GRADIENTS)

    def _product(self, whole: Block, own: torch.Tensor, kind: Kind) -> torch.Tensor:
        """The whole matrix times own columns, and the own rows of what that is with all columns."""
        communicator, num_own = self._communicator, own.shape[0]
        columns = even_sizes(own.shape[1], communicator.size)
        own_columns = columns[communicator.rank]
        by_columns = [num_own * width for width in columns]
        by_rows = [num_rows * own_columns for num_rows in self._num_rows]
        with phase(Phase.EXCHANGE):
            packed = self._pack(own.detach(), columns)
            table = self._buffer("table", sum(by_rows))
            communicator.exchange(packed, by_columns, table, by_rows, kind)
        sums = table
        if own_columns and whole.num_edges:
            rows = table.view(-1, own_columns).to(own.device)
            sums = self._operators.weighted_sum(whole, rows, None).flatten()
        else:
            sums.zero_()
        with phase(Phase.EXCHANGE):
            communicator.exchange(sums.to(communicator.device), by_rows, packed, by_columns, kind)
            pieces = packed.to(own.device).split(by_columns)
            return torch.cat([piece.view(num_own, -1) for piece in pieces if piece.shape[0]], 1)

    def _pack(self, own: torch.Tensor, columns: list[int]) -> torch.Tensor:
        """The own rows, each rank's columns behind those of the rank before, flat, where the transport wants them."""
        packed = self._buffer("packed", own.numel())
        ends = list(accumulate(columns))
        for width, end in zip(columns, ends, strict=True):
            first = end - width
            place = packed[own.shape[0] * first : own.shape[0] * end].view(own.shape[0], width)
            place.copy_(own[:, first:end])
        return packed

    def _buffer(self, name: str, size: int) -> torch.Tensor:
        if (name, size) not in self._buffers:
            self._buffers[name, size] = torch.empty(size, device=self._communicator.device)
        return self._buffers[name, size]


class Strategy(AggregatingStrategy):
    """See the module."""

    def make_sums(self) -> ColumnSums:
        return ColumnSums(self.context)

    def exchanged_bytes(self, width: int) -> int:
        """There and back, all numbers travel but those of a rank's own nodes in its own columns."""
        size = self.context.communicator.size
        num_rows = np.bincount(self.context.partition.assignment, minlength=size).tolist()
        staying = sum(rows * columns for rows, columns in zip(num_rows, even_sizes(width, size), strict=True))
        return 2 * 4 * (self.context.partition.num_nodes * width - staying)

"""Full-graph training whose halo exchange is cut into chunks, so that rows are summed up while others are under way.

The idea is that of Wang et al., "MGG: Accelerating Graph Neural Networks with Fine-Grained Intra-Kernel
Communication-Computation Pipelining on Multi-GPU Platforms", OSDI 2023: a node's neighbours are split into local and
remote ones, the remote ones into small groups, and local sums fill the time in which remote rows come. MGG does so
within a GPU kernel that reads single rows of other GPUs by itself (NVSHMEM) and tunes the groups' size at run time.
Here the host does it: `chunks` all-to-alls per layer, of which each brings its share of every other rank's rows. All
are begun, sums over own neighbours come first, and each chunk's are added when it has come. In the backward pass
gradients of each chunk's rows leave as soon as they are there, and those between own nodes are summed meanwhile.

What travels is what `fullgraph` sends, row by row; but rows travel as they are aggregated (see `_aggregating`), so a
last layer that projects first sends narrower ones.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.communication import Kind
from anatomy.training.operators.block import Block
from anatomy.training.parts import LocalPart
from anatomy.training.strategies._aggregating import (
    AggregatingStrategy,
    SumsAcrossRanks,
    even_sizes,
    matrix,
    selected_edges,
    transpose,
)
from anatomy.training.strategies._base import Context

OPTIONS: dict[str, Any] = {
    "properties": {
        "epochs": {"type": "integer", "minimum": 1, "description": "Epochs to train, warm-up included."},
        "chunks": {
            "type": "integer",
            "minimum": 1,
            "default": 4,
            "description": "Exchanges into which the halo exchange of a layer is cut.",
        },
    },
    "required": ["epochs"],
}

PAPER: dict[str, Any] = {
    "gain": 4.41,
    "of": "speed, on average",
    "over": "DGL",
    "on": "several GPUs of one machine",
    "source": "abstract of MGG, OSDI 2023",
}

EXACT = ({}, {"chunks": 1}, {"chunks": 50})
"""Options with which this is `fullgraph`: all there are; the last has more chunks than a small halo has rows."""

LAYERS = ("gcn", "sage", "gcnii", "ressage")
"""Layers that this strategy can train."""


@dataclass(frozen=True)
class Chunk:
    """One exchange: which own rows it sends, and what the halo rows that it brings are added to.

    `send_rows` int64, one consumer after the other, `send_counts[q]` for rank q; `receive_counts[p]`: how many come
    from rank p. `sums` leads from the rows that come to the own nodes `destinations`, int64, alone; `transposed` back.
    """

    send_rows: torch.Tensor
    send_counts: list[int]
    receive_counts: list[int]
    sums: Block
    transposed: Block
    destinations: torch.Tensor


class ChunkedSums(SumsAcrossRanks):
    """See the module."""

    def __init__(self, context: Context, part: LocalPart, num_chunks: int) -> None:
        self._operators, self._communicator = context.operators, context.communicator
        local = part.block.indices < part.num_own
        own_sums = selected_edges(part.block, local, part.block.indices[local], part.num_own)
        self._own, self._own_transposed = own_sums.to(context.device), transpose(own_sums).to(context.device)
        self._chunks = [chunk_of(part, number, num_chunks, context.device) for number in range(num_chunks)]
        self._buffers: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def gather(self, own: torch.Tensor) -> torch.Tensor:
        own, exchanges = own.detach(), []
        with phase(Phase.EXCHANGE):
            for chunk, (sent, received) in zip(self._chunks, self._buffers_for(own), strict=True):
                pack(own, chunk.send_rows, sent)
                counts = (sent, chunk.send_counts, received, chunk.receive_counts)
                exchanges.append((self._communicator.start_exchange(*counts, Kind.ACTIVATIONS), received))
        total = self._sum(self._own, own)
        for chunk, (exchange, received) in zip(self._chunks, exchanges, strict=True):
            with phase(Phase.EXCHANGE):
                exchange.wait()
                rows = received.to(own.device)
            total.index_add_(0, chunk.destinations, self._sum(chunk.sums, rows))
        return total

    def scatter(self, gradient: torch.Tensor) -> torch.Tensor:
        exchanges = []
        for chunk, (received, _) in zip(self._chunks, self._buffers_for(gradient), strict=True):
            halo = self._sum(chunk.transposed, gradient.index_select(0, chunk.destinations))
            with phase(Phase.EXCHANGE):
                counts = (halo.to(received.device), chunk.receive_counts, received, chunk.send_counts)
                exchanges.append((self._communicator.start_exchange(*counts, Kind.GRADIENTS), received))
        total = self._sum(self._own_transposed, gradient)
        for chunk, (exchange, received) in zip(self._chunks, exchanges, strict=True):
            with phase(Phase.EXCHANGE):
                exchange.wait()
                total.index_add_(0, chunk.send_rows, received.to(total.device))
        return total

    def _sum(self, block: Block, rows: torch.Tensor) -> torch.Tensor:
        if not block.num_edges:
            return rows.new_zeros(block.num_destinations, rows.shape[1])
        return self._operators.weighted_sum(block, rows.contiguous(), None)

    def _buffers_for(self, like: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """For each chunk its rows of own nodes, where their gradients come too, and those of the halo."""
        width = like.shape[1]
        if width not in self._buffers:

            def empty(counts: list[int]) -> torch.Tensor:
                return torch.empty(sum(counts), width, device=self._communicator.device)

            self._buffers[width] = [(empty(chunk.send_counts), empty(chunk.receive_counts)) for chunk in self._chunks]
        return self._buffers[width]


class Strategy(AggregatingStrategy):
    """See the module."""

    def make_sums(self) -> ChunkedSums:
        return ChunkedSums(self.context, self.part, self.context.specification.strategy["chunks"])

    def exchanged_bytes(self, width: int) -> int:
        return 4 * width * self.volume()


def pack(table: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> None:
    """Copy rows of a table into a buffer, which may lie on another device."""
    if table.device == out.device:
        torch.index_select(table, 0, rows, out=out)
    else:
        out.copy_(table.index_select(0, rows))


def chunk_of(part: LocalPart, number: int, num_chunks: int, device: torch.device) -> Chunk:
    """A part's chunk: of the rows between any two ranks its even share, so that both ranks name the same."""
    send_rows, send_counts = _share(part.send_counts, number, num_chunks)
    halo_rows, receive_counts = _share(part.receive_counts, number, num_chunks)
    row_of = torch.full((part.num_rows,), -1)
    row_of[part.num_own + halo_rows] = torch.arange(halo_rows.shape[0])
    rows = row_of[part.block.indices]
    coming = rows >= 0
    destinations, counts = torch.unique_consecutive(part.block.edge_destinations[coming], return_counts=True)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    sums = matrix(indptr, rows[coming], halo_rows.shape[0])
    return Chunk(
        part.send_rows[send_rows].to(device),
        send_counts,
        receive_counts,
        sums.to(device),
        transpose(sums).to(device),
        destinations.to(device),
    )


def _share(counts: list[int], number: int, num_chunks: int) -> tuple[torch.Tensor, list[int]]:
    """Places of a chunk's rows in a list of `counts[p]` rows for each rank, int64, and how many of each rank's."""
    places, taken = [torch.empty(0, dtype=torch.int64)], []
    for start, count in zip(accumulate(counts, initial=0), counts, strict=False):
        sizes = even_sizes(count, num_chunks)
        first = start + sum(sizes[:number])
        places.append(torch.arange(first, first + sizes[number]))
        taken.append(sizes[number])
    return torch.cat(places), taken

"""A graph in chunks, which go through layers one after the other, and back in reverse.

One rank may run all nodes of a chunk, or several have a part of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse
import torch
from scipy.sparse.csgraph import reverse_cuthill_mckee

from anatomy.graphs.store import Graph
from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.communication import Exchanges, Kind
from anatomy.training.layers._base import Passed
from anatomy.training.operators.block import Block
from anatomy.training.parts import in_neighbours
from anatomy.training.strategies._base import Context

CROSSING_WEIGHT = 2.0
"""What gradients are multiplied by that go from one chunk to another.

In a random order, one of two chunks comes first. So half of these gradients meet history and are lost, and twice the
other half has the same mean.
"""


@dataclass(frozen=True)
class Chunk:
    """What a rank has of a chunk: consecutive rows of its tables, and a block from their in-neighbours to them.

    `sources` int64 [sources]: the rows of the block's sources, `nodes` first; `source_chunks` int64: the chunks of the
    other sources, which may be this one where others have a part of it. `halo`: the table's rows of what others have of
    this chunk and this rank needs, of which `receive_counts[p]` from rank p; `send_rows` int64: own rows of this chunk
    that others need, one consumer after the other, `send_counts[q]` for rank q.
    """

    nodes: slice
    block: Block
    sources: torch.Tensor
    source_chunks: torch.Tensor
    halo: slice
    receive_counts: list[int]
    send_rows: torch.Tensor
    send_counts: list[int]

    @property
    def num_nodes(self) -> int:
        return self.nodes.stop - self.nodes.start

    def to(self, device: torch.device) -> "Chunk":
        """The chunk on another device."""
        moved = {name: getattr(self, name).to(device) for name in ("block", "sources", "source_chunks", "send_rows")}
        return replace(self, **moved)


@dataclass(frozen=True)
class Cut:
    """A graph in parts and chunks: `order[p]`, the nodes of part p as its rows follow each other, int64 [own];
    `owner`, `row` and `chunk` of each node, int64 [nodes]."""

    order: list[np.ndarray]
    owner: np.ndarray
    row: np.ndarray
    chunk: np.ndarray
    num_chunks: int

    def piece(self, part: int, chunk: int) -> slice:
        """The rows of a part that are in a chunk."""
        size = len(self.order[part])
        return slice(chunk * size // self.num_chunks, (chunk + 1) * size // self.num_chunks)


def cut_into_chunks(graph: Graph, assignment: np.ndarray, owners: Sequence[int], num_chunks: int) -> Cut:
    """Cut each part into as many pieces, of which the first make the first chunk, and so on.

    `assignment` int [nodes] is a partition, and `owners` says which part of the cut each part of it belongs to: one
    comes after the other there, each in an order that puts neighbours near to each other. All this is cut into pieces
    whose sizes differ by 1 at most. So few edges leave a chunk that do not have to. Where there are more pieces than
    nodes, some are empty.
    """
    nodes_of = [np.flatnonzero(assignment == part) for part in range(len(owners))]
    near = [nodes[_near_order(graph, nodes)] if len(nodes) else nodes for nodes in nodes_of]
    order = [
        np.concatenate([nodes for nodes, owner in zip(near, owners, strict=True) if owner == part])
        for part in range(max(owners) + 1)
    ]
    owner, row, chunk = np.empty((3, graph.num_nodes), np.int64)
    cut = Cut(order, owner, row, chunk, num_chunks)
    for part, nodes in enumerate(order):
        owner[nodes], row[nodes] = part, np.arange(len(nodes))
        for number in range(num_chunks):
            chunk[nodes[cut.piece(part, number)]] = number
    return cut


def chunks_of(graph: Graph, cut: Cut, part: int) -> tuple[np.ndarray, list[Chunk]]:
    """The nodes' ids in the order of a part's tables, int64 [own + halo], and what the part has of each chunk.

    Own rows are as in the cut; those of the halo, what the own nodes aggregate beside them, come by chunk, owner and
    row.
    """
    parts = range(len(cut.order))
    needed = [np.unique(in_neighbours(graph, nodes)[1]) for nodes in cut.order]
    halo = needed[part][cut.owner[needed[part]] != part]
    halo = halo[np.lexsort([cut.row[halo], cut.owner[halo], cut.chunk[halo]])]
    sent = [nodes[(cut.owner[nodes] == part) & (part != consumer)] for consumer, nodes in enumerate(needed)]
    sent = [nodes[np.argsort(cut.row[nodes])] for nodes in sent]
    table = np.concatenate([cut.order[part], halo])
    row_of = np.empty(graph.num_nodes, np.int64)
    row_of[table] = np.arange(len(table))
    halo_ends = len(cut.order[part]) + np.searchsorted(cut.chunk[halo], np.arange(cut.num_chunks + 1))
    chunks = []
    for number in range(cut.num_chunks):
        own, received = cut.piece(part, number), slice(*halo_ends[number : number + 2].tolist())
        block, sources = _block(graph, table, row_of, own)
        send = [nodes[cut.chunk[nodes] == number] for nodes in sent]
        chunks.append(
            Chunk(
                nodes=own,
                block=block,
                sources=torch.from_numpy(sources),
                source_chunks=torch.from_numpy(cut.chunk[table[sources[own.stop - own.start :]]]),
                halo=received,
                receive_counts=np.bincount(cut.owner[table[received]], minlength=len(parts)).tolist(),
                send_rows=torch.from_numpy(cut.row[np.concatenate(send)]),
                send_counts=[len(nodes) for nodes in send],
            )
        )
    return table, chunks


def _block(graph: Graph, table: np.ndarray, row_of: np.ndarray, own: slice) -> tuple[Block, np.ndarray]:
    """The block to some consecutive own rows, and its sources' rows, those first, int64 [sources]."""
    indptr, neighbours = in_neighbours(graph, table[own])
    rows, size = row_of[neighbours], own.stop - own.start
    inside = (rows >= own.start) & (rows < own.stop)
    others = np.unique(rows[~inside])
    sources = np.concatenate([np.arange(own.start, own.stop), others])
    indices = np.where(inside, rows - own.start, size + np.searchsorted(others, rows))
    nodes = table[sources]
    degrees = torch.from_numpy((graph.indptr[nodes + 1] - graph.indptr[nodes]).astype(np.float32))
    return Block(torch.from_numpy(indptr), torch.from_numpy(indices), len(sources), degrees), sources


def _near_order(graph: Graph, nodes: np.ndarray) -> np.ndarray:
    """An order of sorted nodes by the edges between them: reverse Cuthill-McKee (George, 1971), int [nodes]."""
    indptr, neighbours = in_neighbours(graph, nodes)
    columns = np.searchsorted(nodes, neighbours).clip(max=len(nodes) - 1)
    inside = nodes[columns] == neighbours
    starts = np.concatenate([[0], np.cumsum(inside)])[indptr]
    shape = (len(nodes), len(nodes))
    matrix = scipy.sparse.csr_array((np.ones(starts[-1], np.int8), columns[inside], starts), shape=shape)
    return reverse_cuthill_mckee(matrix, symmetric_mode=False)


class ChunkedLayer:
    """One layer, chunk by chunk: a chunk's other sources are read as they stand in `table` [own + halo, width].

    Between epochs, `table` is what the layer remembers of its input; in an epoch, chunk after chunk takes the place of
    its own history. With `fixed_history` this is undone at the end of an epoch that is not to be remembered.
    `gradients` [own + halo, width] add up backwards; the first layer's input, the features, has neither. `peers` have
    the chunks' other nodes: all call `forward` and `backward` for the same chunks in the same order.
    """

    def __init__(
        self,
        context: Context,
        index: int,
        chunks: list[Chunk],
        peers: Exchanges,
        table: torch.Tensor,
        fixed_history: bool,
    ) -> None:
        self._context = context
        self._index = index
        self._chunks = chunks
        self._peers = peers
        self.table = table
        self.gradients = torch.zeros_like(table) if index else None
        self._history = table.clone() if index and fixed_history else None
        self._saved: dict[int, tuple[torch.Tensor, torch.Tensor | None, Passed, torch.Tensor]] = {}

    def start_epoch(self) -> None:
        """Forget the last epoch's gradients."""
        if self.gradients is not None:
            self.gradients.zero_()

    def end_epoch(self, remember: bool) -> None:
        """Make the epoch's inputs the history, or go back to the history before."""
        if self._history is not None and remember:
            self._history.copy_(self.table)
        elif self._history is not None:
            self.table.copy_(self._history)

    def restore(self, table: torch.Tensor) -> None:
        """Go on from a `table` that was there between two epochs."""
        self.table.copy_(table)
        if self._history is not None:
            self._history.copy_(table)

    def forward(self, number: int, is_done: torch.Tensor, carried: torch.Tensor | None) -> Passed | tuple[None, None]:
        """The outputs of a chunk whose own rows are in `table`; `is_done` bool [chunks]: which came before it.

        Nothing where the rank has no node of the chunk.
        """
        context, chunk = self._context, self._chunks[number]
        if self._index:
            self._fill_halo(chunk)
        if not chunk.num_nodes:
            return None, None
        with phase(Phase.AGGREGATE):
            sources = self.table.index_select(0, chunk.sources).requires_grad_(self._index > 0)
        if carried is not None:
            carried = carried.detach().clone().requires_grad_()
        passed = context.model.layer(self._index, context.operators, chunk.block, sources, carried)
        weights = torch.where(chunk.source_chunks == number, 1.0, CROSSING_WEIGHT * is_done[chunk.source_chunks])
        self._saved[number] = sources, carried, passed, weights
        return passed

    def backward(self, number: int, rows: torch.Tensor, carried: torch.Tensor | None) -> torch.Tensor | None:
        """From gradients of a chunk's outputs, add to those of weights and inputs; returns that of what was carried.

        Chunks come in the reverse of their order, so that with this call `gradients` of the chunk's own rows are
        complete.
        """
        chunk, carried_gradient = self._chunks[number], None
        if chunk.num_nodes:
            sources, carried_in, outputs, weights = self._saved.pop(number)
            with phase(Phase.BACKWARD):
                roots = [(outputs[0], rows), *([] if carried is None else [(outputs[1], carried)])]
                torch.autograd.backward([root for root, _ in roots], [gradient for _, gradient in roots])
                if self.gradients is not None:
                    self._add_gradients(chunk, sources.grad, weights)
            carried_gradient = None if carried_in is None else carried_in.grad
        if self._index:
            self._return_gradients(chunk)
        return carried_gradient

    def _add_gradients(self, chunk: Chunk, gradients: torch.Tensor, weights: torch.Tensor) -> None:
        """Of a chunk's sources; `weights` of those beside its own, 0 for what was history."""
        self.gradients[chunk.nodes] += gradients[: chunk.num_nodes]
        current = weights > 0
        others = gradients[chunk.num_nodes :][current] * weights[current, None]
        self.gradients.index_add_(0, chunk.sources[chunk.num_nodes :][current], others)

    def _fill_halo(self, chunk: Chunk) -> None:
        """Exchange the input rows of a chunk that others need than those who have them."""
        if self._peers.size == 1:
            return
        with phase(Phase.EXCHANGE):
            halo = self.table[chunk.halo]
            send = self.table.index_select(0, chunk.send_rows).to(self._peers.device)
            received = halo if halo.device == send.device else torch.empty_like(halo, device=send.device)
            self._peers.exchange(send, chunk.send_counts, received, chunk.receive_counts, Kind.ACTIVATIONS)
            if received is not halo:
                halo.copy_(received)

    def _return_gradients(self, chunk: Chunk) -> None:
        """Exchange the gradients of what `_fill_halo` exchanged, the other way; they add up where the rows are."""
        if self._peers.size == 1:
            return
        with phase(Phase.EXCHANGE):
            send = self.gradients[chunk.halo].to(self._peers.device)
            received = send.new_empty(len(chunk.send_rows), send.shape[1])
            self._peers.exchange(send, chunk.receive_counts, received, chunk.send_counts, Kind.GRADIENTS)
            self.gradients.index_add_(0, chunk.send_rows, received.to(self.gradients.device))

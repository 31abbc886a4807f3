"""A graph in chunks, which one rank runs through its layers one after the other, and back in reverse."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import scipy.sparse
import torch
from scipy.sparse.csgraph import reverse_cuthill_mckee

from anatomy.graphs.store import Graph
from anatomy.phases import Phase
from anatomy.training.annotations import phase
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
    """Some nodes, which are consecutive rows of tables of all nodes, and a block from their in-neighbours to them.

    `sources` int64 [sources]: the rows of the block's sources, `nodes` first; `source_chunks` int64: the chunks of the
    other sources.
    """

    nodes: slice
    block: Block
    sources: torch.Tensor
    source_chunks: torch.Tensor

    @property
    def num_nodes(self) -> int:
        return self.nodes.stop - self.nodes.start

    def to(self, device: torch.device) -> "Chunk":
        """The chunk on another device."""
        moved = {name: getattr(self, name).to(device) for name in ("block", "sources", "source_chunks")}
        return replace(self, **moved)


def cut_into_chunks(graph: Graph, assignment: np.ndarray, num_chunks: int) -> tuple[np.ndarray, list[Chunk]]:
    """The nodes' ids in the order of the tables' rows, int64 [nodes], and the chunks.

    Parts come one after the other, each in an order that puts neighbours near to each other, and all this is cut into
    chunks whose sizes differ by 1 at most. So few edges leave a chunk that do not have to, and with parts of one size
    and a multiple of as many chunks, each chunk is a piece of one part. Where there are more chunks than nodes, some
    are empty.
    """
    parts = [np.flatnonzero(assignment == part) for part in np.unique(assignment)]
    order = np.concatenate([nodes[_near_order(graph, nodes)] for nodes in parts])
    row_of = np.empty_like(order)
    row_of[order] = np.arange(len(order))
    bounds = np.arange(num_chunks + 1) * len(order) // num_chunks
    degrees = np.diff(graph.indptr)[order].astype(np.float32)
    chunks = []
    for start, stop in pairwise(bounds.tolist()):
        indptr, neighbours = in_neighbours(graph, order[start:stop])
        rows = row_of[neighbours]
        inside = (rows >= start) & (rows < stop)
        others = np.unique(rows[~inside])
        sources = np.concatenate([np.arange(start, stop), others])
        indices = np.where(inside, rows - start, stop - start + np.searchsorted(others, rows))
        block = Block(
            torch.from_numpy(indptr), torch.from_numpy(indices), len(sources), torch.from_numpy(degrees[sources])
        )
        owners = np.searchsorted(bounds, others, side="right") - 1
        chunks.append(Chunk(slice(start, stop), block, torch.from_numpy(sources), torch.from_numpy(owners)))
    return order, chunks


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
    """One layer, chunk by chunk: a chunk's other sources are read as they stand in `table` [nodes, width].

    Between epochs, `table` is what the layer remembers of its input; in an epoch, chunk after chunk takes the place of
    its own history. With `fixed_history` this is undone at the end of an epoch that is not to be remembered.
    `gradients` [nodes, width] add up backwards; the first layer's input, the features, has neither.
    """

    def __init__(
        self, context: Context, index: int, chunks: list[Chunk], table: torch.Tensor, fixed_history: bool
    ) -> None:
        self._context = context
        self._index = index
        self._chunks = chunks
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

    def forward(self, number: int, is_done: torch.Tensor, carried: torch.Tensor | None) -> Passed:
        """The outputs of a chunk whose own rows are in `table`; `is_done` bool [chunks]: which came before it."""
        context, chunk = self._context, self._chunks[number]
        with phase(Phase.AGGREGATE):
            sources = self.table.index_select(0, chunk.sources).requires_grad_(self._index > 0)
        if carried is not None:
            carried = carried.detach().clone().requires_grad_()
        passed = context.model.layer(self._index, context.operators, chunk.block, sources, carried)
        self._saved[number] = sources, carried, passed, is_done[chunk.source_chunks]
        return passed

    def backward(self, number: int, rows: torch.Tensor, carried: torch.Tensor | None) -> torch.Tensor | None:
        """From gradients of a chunk's outputs, add to those of weights and inputs; returns that of what was carried.

        Chunks come in the reverse of their order, so that with this call `gradients` of the chunk are complete.
        """
        sources, carried_in, outputs, is_current = self._saved.pop(number)
        with phase(Phase.BACKWARD):
            roots = [(outputs[0], rows), *([] if carried is None else [(outputs[1], carried)])]
            torch.autograd.backward([root for root, _ in roots], [gradient for _, gradient in roots])
            if self.gradients is not None:
                chunk = self._chunks[number]
                self.gradients[chunk.nodes] += sources.grad[: chunk.num_nodes]
                others = chunk.sources[chunk.num_nodes :][is_current]
                crossing = sources.grad[chunk.num_nodes :][is_current]
                self.gradients.index_add_(0, others, crossing, alpha=CROSSING_WEIGHT)
        return None if carried_in is None else carried_in.grad

"""What a rank trains on alone, without a word from the others: some parts whole, and the features around them.

The nodes of the parts that are held have all their in-edges. A source of these that lies in another part has its
features and no in-edge of its own. Whatever is held is read from the stored graph, which every rank maps.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from anatomy.graphs.store import Graph
from anatomy.training.gradients import GradientSynchroniser, Piece
from anatomy.training.operators.block import Block
from anatomy.training.parts import in_neighbours


@dataclass(frozen=True)
class Held:
    """Rows of a rank's tables: its own nodes by id, those of the other parts held, and the sources outside of them.

    `nodes` int64 node ids; `block` from all rows to all rows; `last` from all rows to the own nodes alone, for a last
    layer. Degrees are those in the whole graph.
    """

    nodes: np.ndarray
    num_own: int
    block: Block
    last: Block


def hold(graph: Graph, assignment: np.ndarray, rank: int, others: Sequence[int]) -> Held:
    """The part of a rank and those of some others, each of int32 [num_nodes] `assignment`."""
    assignment = np.asarray(assignment)
    own = np.flatnonzero(assignment == rank)
    inside = np.concatenate([own, np.flatnonzero(np.isin(assignment, others))])
    indptr, sources = in_neighbours(graph, inside)
    needed = np.zeros(graph.num_nodes, bool)
    needed[sources] = True
    needed[inside] = False
    nodes = np.concatenate([inside, np.flatnonzero(needed)])
    row_of = np.empty(graph.num_nodes, np.int64)
    row_of[nodes] = np.arange(len(nodes))
    degrees = torch.from_numpy((graph.indptr[nodes + 1] - graph.indptr[nodes]).astype(np.float32))
    ends = np.concatenate([indptr, np.full(len(nodes) - len(inside), indptr[-1])])
    indices = torch.from_numpy(row_of[sources])
    block = Block(torch.from_numpy(ends), indices, len(nodes), degrees)
    last = Block(torch.from_numpy(indptr[: len(own) + 1]), indices[: indptr[len(own)]], len(nodes), degrees)
    return Held(nodes, len(own), block, last)


def coverage(block: Block, num_layers: int) -> torch.Tensor:
    """How much of what so many layers aggregate for each row is there, float64 [rows], from 0 to 1.

    The probability that `num_layers` steps from a node to a random in-neighbour, one after the other, stay within the
    block's edges, where all of the graph's are drawn alike; a node without in-neighbours has all that there is. `block`
    leads from all rows to all rows.
    """
    covered = torch.ones(block.num_sources, dtype=torch.float64)
    degrees = block.degrees.to(torch.float64)
    for _ in range(num_layers):
        summed = torch.zeros_like(covered).index_add_(0, block.edge_destinations, covered[block.indices])
        covered = torch.where(degrees > 0, summed / degrees, 1.0)
    return covered


class WeightedGradients(GradientSynchroniser):
    """Sums the ranks' gradients with a `weight` for each; losses and numbers of seed nodes are as they are."""

    weight = 1.0

    def backward(self, pieces: Iterable[Piece]) -> None:
        super().backward(pieces)
        self.parameters.gradients.mul_(self.weight)

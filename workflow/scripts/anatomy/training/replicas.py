"""What a rank knows of its part of a vertex cut: replicas of nodes, its own edges, and with whom it shares sums."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from anatomy.graphs.store import Graph
from anatomy.partitions.store import Partition
from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.communication import Communicator, Exchange, Kind
from anatomy.training.operators.block import Block


@dataclass(frozen=True)
class Shared:
    """Some of the nodes that a rank has replicas of and shares with others.

    `root_rows` int64: rows whose root is here, for one rank with a mirror after the other, `root_counts[q]` for rank q;
    `leaf_rows` int64: mirrors, `leaf_counts[p]` with their root on rank p. Ranks list what they share in equal order.
    """

    root_rows: torch.Tensor
    root_counts: list[int]
    leaf_rows: torch.Tensor
    leaf_counts: list[int]


@dataclass(frozen=True)
class Replicas:
    """Rows of a rank's tables: its own nodes, whose roots they are, by id, then its mirrors, by owner and id.

    `edges` leads from all rows to all rows and has the rank's own edges alone; its degrees are those in the whole
    graph. `bins`: all that is shared, in so many pieces; a node is in the same one on all ranks.
    """

    nodes: torch.Tensor
    num_own: int
    edges: Block
    bins: list[Shared]


def local_replicas(graph: Graph, partition: Partition, rank: int, num_bins: int) -> Replicas:
    """The replicas of one rank. Any partition into one part will do; of more, it has to be a vertex cut.

    Shared nodes take turns in the bins, in the order of their ids.

    Raises StudyError where the partition gives parts to nodes alone.
    """
    several = partition.num_parts > 1
    positions = partition.edges(rank) if several else np.arange(graph.num_edges)
    ranks = range(partition.num_parts)
    roots = [partition.mirrors(rank, other) if several else np.empty(0, np.int64) for other in ranks]
    leaves = [partition.mirrors(other, rank) if several else np.empty(0, np.int64) for other in ranks]
    own = partition.nodes(rank)
    nodes = np.concatenate([own, *leaves])
    row_of = np.full(graph.num_nodes, -1, np.int64)
    row_of[nodes] = np.arange(len(nodes))
    bin_of = np.full(graph.num_nodes, -1, np.int64)
    shared = np.unique(partition.mirror_nodes) if several else np.empty(0, np.int64)
    bin_of[shared] = np.arange(len(shared)) % num_bins
    return Replicas(
        torch.from_numpy(nodes),
        len(own),
        _edges(graph, positions, nodes, row_of),
        [_shared(roots, leaves, row_of, bin_of == number) for number in range(num_bins)],
    )


def _edges(graph: Graph, positions: np.ndarray, nodes: np.ndarray, row_of: np.ndarray) -> Block:
    """The edges at some positions of the graph's `indices`, as rows."""
    targets = row_of[np.searchsorted(graph.indptr, positions, side="right") - 1]
    order = np.argsort(targets, kind="stable")
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(targets, minlength=len(nodes)))])
    degrees = (graph.indptr[nodes + 1] - graph.indptr[nodes]).astype(np.float32)
    sources = row_of[graph.indices[positions[order]]]
    return Block(torch.from_numpy(indptr), torch.from_numpy(sources), len(nodes), torch.from_numpy(degrees))


def _shared(
    roots: Sequence[np.ndarray], leaves: Sequence[np.ndarray], row_of: np.ndarray, chosen: np.ndarray
) -> Shared:
    """What is shared of the nodes that are `chosen`, bool [num_nodes]."""
    roots, leaves = ([nodes[chosen[nodes]] for nodes in lists] for lists in (roots, leaves))
    return Shared(
        torch.from_numpy(row_of[np.concatenate(roots)]),
        [len(nodes) for nodes in roots],
        torch.from_numpy(row_of[np.concatenate(leaves)]),
        [len(nodes) for nodes in leaves],
    )


class Leg:
    """Rows of one width on their way between replicas: from leaves to roots (`up`), or back; buffers are kept."""

    def __init__(
        self, shared: Shared, up: bool, width: int, communicator: Communicator, kind: Kind, device: torch.device
    ) -> None:
        ends = (shared.leaf_rows, shared.leaf_counts), (shared.root_rows, shared.root_counts)
        (send_rows, self._send_counts), (receive_rows, self._receive_counts) = ends if up else reversed(ends)
        self._send_rows, self.receive_rows = send_rows.to(device), receive_rows.to(device)
        self._packed = torch.empty(send_rows.shape[0], width, device=device)
        self._communicator, self._kind = communicator, kind
        self._sent: torch.Tensor = self._packed
        self.received = torch.zeros(receive_rows.shape[0], width, device=communicator.device)
        self._exchange = Exchange()

    def start(self, table: torch.Tensor) -> None:
        """Send rows of a table [rows, width]; what came last time has to be used by now."""
        torch.index_select(table.detach(), 0, self._send_rows, out=self._packed)
        self._sent = self._packed.to(self._communicator.device)
        self._exchange = self._communicator.start_exchange(
            self._sent, self._send_counts, self.received, self._receive_counts, self._kind
        )

    def wait(self) -> None:
        """Return when what was sent to this rank is there."""
        self._exchange.wait()

    def take(self) -> torch.Tensor:
        """What was sent to this rank, for the rows `receive_rows` of the table; waits for it."""
        self.wait()
        return self.received.to(self._packed.device)


class PartialSums:
    """Sums to which several ranks contribute, at one place in the model and in one direction.

    What the leaves hold of a node is added to what its root holds; the total replaces what the leaves hold. A leg takes
    `delay` epochs: what an epoch sends is taken by the epoch that is so many later, whose turn the same bin has.
    """

    def __init__(
        self,
        bins: Sequence[Shared],
        delay: int,
        width: int,
        communicator: Communicator,
        kind: Kind,
        device: torch.device,
    ) -> None:
        self._delay = delay
        self._legs = [
            tuple(Leg(shared, up, width, communicator, kind, device) for up in (True, False)) for shared in bins
        ]

    def total(self, partial: torch.Tensor, epoch: int) -> torch.Tensor:
        """This rank's sums [rows, width], in which those of the epoch's bin have what came; not differentiable."""
        up, down = self._legs[epoch % len(self._legs)]
        total = partial.detach().clone()
        with phase(Phase.EXCHANGE):
            if self._delay == 0:
                up.start(total)
            if epoch >= self._delay:
                total.index_add_(0, up.receive_rows, up.take())
            if self._delay == 0:
                down.start(total)
            if epoch >= 2 * self._delay:
                total.index_copy_(0, down.receive_rows, down.take())
            if self._delay > 0:
                up.start(partial)
            if epoch >= self._delay > 0:
                down.start(total)
        return total

    def kept(self) -> dict[str, torch.Tensor]:
        """What later epochs take, by bin and leg; waits for all that is on its way."""
        self.settle()
        return {
            f"{number} {name}": leg.received
            for number, legs in enumerate(self._legs)
            for name, leg in zip(("up", "down"), legs, strict=True)
        }

    def settle(self) -> None:
        """Wait for all that is on its way."""
        for leg in (leg for legs in self._legs for leg in legs):
            leg.wait()

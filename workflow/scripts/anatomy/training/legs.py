"""The ways of boundary rows between ranks: straight to each that needs them, or once to each host and on from there.

Links between hosts are the slow ones. Where several ranks of a host need a row of another host, it crosses once, to one
of them (its entry), which hands it to the others. Gradients go the same way back: those of a host's ranks are added up
at the entry, and the sum crosses. As many rows travel as without hosts; fewer of them between hosts.

CDFGNN (arXiv 2408.00232, 2024) has such a hierarchy in mind for its partitioner ("for the hierarchical communication
architecture", abstract), which keeps cuts inside hosts; the exchange here is this project's own. The entry of a node is
the consumer whose place among the host's consumers of it is the node's id modulo their number, so that entries are
spread over the ranks and everybody knows them without asking.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from anatomy.partitions.store import Partition
from anatomy.training.parts import LocalPart


@dataclass(frozen=True)
class Leg:
    """One all-to-all of rows of a rank's table [own + halo].

    `send_rows` int64, one receiver after the other, `send_counts[q]` of them for rank q; `receive_rows` int64, where
    the others' go, one sender after the other, `receive_counts[p]` from rank p.
    """

    send_rows: torch.Tensor
    send_counts: list[int]
    receive_rows: torch.Tensor
    receive_counts: list[int]

    def to(self, device: torch.device) -> "Leg":
        """The same with its rows on another device."""
        return Leg(self.send_rows.to(device), self.send_counts, self.receive_rows.to(device), self.receive_counts)


def straight(part: LocalPart) -> list[Leg]:
    """One leg: from every owner to everybody that needs its rows."""
    return [Leg(part.send_rows, part.send_counts, torch.arange(part.num_own, part.num_rows), part.receive_counts)]


def by_hosts(part: LocalPart, partition: Partition, rank: int, ranks_per_host: int) -> list[Leg]:
    """Two legs: from owners to the ranks of their host and to entries, then from entries to the ranks of theirs.

    Rank r is on host r // ranks_per_host. With one rank for each host, or one host, this is `straight`.
    """
    ranks = range(partition.num_parts)
    if ranks_per_host == 1 or ranks_per_host >= partition.num_parts:
        return straight(part)
    beside = range(rank - rank % ranks_per_host, rank - rank % ranks_per_host + ranks_per_host)
    row_of = _rows_of_nodes(part, partition.num_nodes)
    first_sent = [_first(partition, rank, consumer, ranks_per_host) for consumer in ranks]
    first_received = [_first(partition, owner, rank, ranks_per_host) for owner in ranks]
    on_sent = [_handed_on(partition, rank, other, ranks_per_host) if other in beside else _NONE for other in ranks]
    on_received = [_handed_on(partition, other, rank, ranks_per_host) if other in beside else _NONE for other in ranks]
    return [_leg(row_of, sent, received) for sent, received in ((first_sent, first_received), (on_sent, on_received))]


def counts_between_hosts(partition: Partition, ranks_per_host: int, hierarchical: bool) -> list[int]:
    """Rows that one exact exchange moves from one rank to another, of every two on different hosts."""
    ranks = range(partition.num_parts)
    apart = [(owner, other) for owner in ranks for other in ranks if owner // ranks_per_host != other // ranks_per_host]
    if hierarchical:
        return [len(_first(partition, owner, other, ranks_per_host)) for owner, other in apart]
    return [len(partition.halo(owner, other)) for owner, other in apart]


_NONE = np.empty(0, np.int64)


def _first(partition: Partition, owner: int, consumer: int, ranks_per_host: int) -> np.ndarray:
    """Nodes that a consumer gets from their owner: all on the same host, else those that it is the entry of."""
    nodes = np.asarray(partition.halo(owner, consumer))
    if owner // ranks_per_host == consumer // ranks_per_host:
        return nodes
    return nodes[_entries(partition, owner, consumer, ranks_per_host) == consumer]


def _handed_on(partition: Partition, entry: int, consumer: int, ranks_per_host: int) -> np.ndarray:
    """Nodes of other hosts that a consumer gets from an entry beside it, by owner and id."""
    far = [owner for owner in range(partition.num_parts) if owner // ranks_per_host != entry // ranks_per_host]
    if entry == consumer:
        return _NONE
    return np.concatenate(
        [
            np.asarray(partition.halo(owner, consumer))[_entries(partition, owner, consumer, ranks_per_host) == entry]
            for owner in far
        ]
    )


def _entries(partition: Partition, owner: int, consumer: int, ranks_per_host: int) -> np.ndarray:
    """The entry of each node that a consumer needs of an owner on another host, int64 [nodes], in their order."""
    start = consumer - consumer % ranks_per_host
    beside = np.arange(start, start + ranks_per_host)
    nodes = np.asarray(partition.halo(owner, consumer))
    needs = np.stack([np.isin(nodes, partition.halo(owner, int(rank)), assume_unique=True) for rank in beside])
    place = nodes % needs.sum(0)
    return beside[(needs.cumsum(0) > place).argmax(0)]


def _rows_of_nodes(part: LocalPart, num_nodes: int) -> np.ndarray:
    rows = np.full(num_nodes, -1, np.int64)
    rows[part.nodes.numpy()] = np.arange(part.num_own)
    rows[part.halo.numpy()] = np.arange(part.num_own, part.num_rows)
    return rows


def _leg(row_of: np.ndarray, sent: Sequence[np.ndarray], received: Sequence[np.ndarray]) -> Leg:
    return Leg(
        torch.from_numpy(row_of[np.concatenate(sent)]),
        [len(nodes) for nodes in sent],
        torch.from_numpy(row_of[np.concatenate(received)]),
        [len(nodes) for nodes in received],
    )

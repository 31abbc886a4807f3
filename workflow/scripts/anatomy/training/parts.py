"""What a rank knows of its part: its nodes, its halo, and the block that leads from both to its own nodes."""

import warnings
from dataclasses import dataclass

import numpy as np
import torch

from anatomy.graphs.store import Graph
from anatomy.partitions.store import Partition
from anatomy.training.operators.block import Block


@dataclass
class LocalPart:
    """Rows of a rank's tables: its own nodes in order of their ids, then its halo, by owner and id.

    `nodes`, `halo` int64 node ids; `block` from both to the own nodes, with all their in-neighbours;
    `send_rows` int64: own rows that others need, one consumer after the other, `send_counts[q]` for rank q;
    `receive_counts[p]`: halo rows that rank p owns.
    """

    nodes: torch.Tensor
    halo: torch.Tensor
    block: Block
    send_rows: torch.Tensor
    send_counts: list[int]
    receive_counts: list[int]

    @property
    def num_own(self) -> int:
        return self.nodes.shape[0]

    @property
    def num_rows(self) -> int:
        return self.nodes.shape[0] + self.halo.shape[0]


def local_part(graph: Graph, partition: Partition, rank: int) -> LocalPart:
    """The part of one rank; reads only its own nodes' edges, and the degrees of its halo."""
    ranks = range(partition.num_parts)
    nodes = np.flatnonzero(np.asarray(partition.assignment) == rank)
    received = [np.asarray(partition.halo(owner, rank)) for owner in ranks]
    sent = [np.asarray(partition.halo(rank, consumer)) for consumer in ranks]
    halo = np.concatenate(received) if received else np.empty(0, np.int64)
    everything = np.concatenate([nodes, halo])
    row_of = np.full(graph.num_nodes, -1, np.int64)
    row_of[everything] = np.arange(len(everything))

    indptr, neighbours = in_neighbours(graph, nodes)
    degrees = (graph.indptr[everything + 1] - graph.indptr[everything]).astype(np.float32)
    block = Block(
        torch.from_numpy(indptr),
        torch.from_numpy(row_of[neighbours]),
        len(everything),
        torch.from_numpy(degrees),
    )
    return LocalPart(
        nodes=torch.from_numpy(nodes),
        halo=torch.from_numpy(halo),
        block=block,
        send_rows=torch.from_numpy(np.concatenate([row_of[part] for part in sent])),
        send_counts=[len(part) for part in sent],
        receive_counts=[len(part) for part in received],
    )


def whole_graph(graph: Graph) -> Block:
    """The block from all nodes to all nodes, its structure mapped."""
    degrees = torch.from_numpy(np.diff(graph.indptr).astype(np.float32))
    return Block(mapped_tensor(graph.indptr), mapped_tensor(graph.indices), graph.num_nodes, degrees)


def in_neighbours(graph: Graph, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All in-neighbours of some nodes: where each node's begin, int64 [nodes + 1], and their ids, int64 [edges]."""
    starts, counts = graph.indptr[nodes], graph.indptr[nodes + 1] - graph.indptr[nodes]
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    positions = np.repeat(starts - indptr[:-1], counts) + np.arange(indptr[-1])
    return indptr, graph.indices[positions]


def mapped_tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor over a read-only mapped array, without a copy. Nothing may write to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)

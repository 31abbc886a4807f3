"""Mini-batches of clusters: the graph in many more pieces than ranks, of which a few make a batch."""

import math

import numpy as np
import torch
from torch.nn import functional

from anatomy.errors import StudyError
from anatomy.graphs.splits import TRAIN
from anatomy.graphs.store import Graph
from anatomy.partitions.methods import metis
from anatomy.partitions.options import complete_options
from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.operators.block import Block
from anatomy.training.parts import in_neighbours
from anatomy.training.sampling import generator_for
from anatomy.training.strategies._base import Context


def cut_into_clusters(context: Context) -> np.ndarray:
    """The cluster of each node, int32 [nodes], the same on every rank: METIS with the run's seed, run by rank 0.

    Every rank has to call this. Raises StudyError on rank 0 where the graph has fewer nodes than clusters are asked
    for, or METIS fails.
    """
    specification, graph = context.specification, context.graph
    count = specification.strategy["clusters"]
    if count > graph.num_nodes:
        raise StudyError(
            f"{specification.path}: strategy.clusters: found {count} for {graph.num_nodes} nodes, expected at most one "
            "cluster per node; use fewer"
        )
    options = complete_options({"method": "metis", "seed": specification.seed, "attempts": 1})
    first = context.communicator.rank == 0
    return context.communicator.broadcast(metis.assign(graph, count, options) if first else None)


class ClusterBatches:
    """The batches of an epoch, and what a batch gives to a model.

    `clusters` int [nodes]: the cluster of each node, numbered from 0 without a gap.
    """

    def __init__(self, clusters: np.ndarray, clusters_per_batch: int) -> None:
        bounds = np.cumsum(np.bincount(clusters))
        self._members = np.split(np.argsort(clusters, kind="stable"), bounds[:-1])
        self._per_batch = clusters_per_batch

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return math.ceil(len(self._members) / self._per_batch)

    def of_epoch(self, seed: int, epoch: int) -> list[np.ndarray]:
        """The nodes of each batch, int64 ids in order: all clusters in random order, cut into batches.

        The last batch may have fewer clusters. Depends on seed and epoch alone, so every rank has the same list.
        """
        order = torch.randperm(len(self._members), generator=generator_for(seed, epoch)).tolist()
        starts = range(0, len(order), self._per_batch)
        chosen = (order[start : start + self._per_batch] for start in starts)
        return [np.sort(np.concatenate([self._members[cluster] for cluster in batch])) for batch in chosen]


class ClusterLoss:
    """The loss of a batch, from the graph as it is mapped: structure, features and labels."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._row_of = np.full(context.graph.num_nodes, -1, np.int64)

    def __call__(self, nodes: np.ndarray) -> tuple[torch.Tensor | None, int]:
        """Summed loss over the training nodes among a batch's nodes, None where there are none, and their number."""
        context, graph = self._context, self._context.graph
        with phase(Phase.SAMPLE):
            training = np.flatnonzero(graph.split[nodes] == TRAIN)
            if not len(training):
                return None, 0
            block = induced_block(graph, nodes, self._row_of)
        with phase(Phase.GATHER):
            rows = torch.from_numpy(graph.features[nodes])
        with phase(Phase.COPY):
            rows, block = rows.to(context.device, non_blocking=True), block.to(context.device)
            labels = torch.from_numpy(graph.labels[nodes[training]]).to(context.device, non_blocking=True)
            chosen = torch.from_numpy(training).to(context.device, non_blocking=True)
        scores = context.model(context.operators, [block] * len(context.model.layers), rows)
        with phase(Phase.LOSS):
            return functional.cross_entropy(scores[chosen], labels, reduction="sum"), len(training)


def induced_block(graph: Graph, nodes: np.ndarray, row_of: np.ndarray) -> Block:
    """The subgraph of some nodes, int64 ids: all edges between them, and degrees that count these edges alone.

    `row_of` int64 [nodes of the graph] is all -1, and is so again afterwards.
    """
    indptr, neighbours = in_neighbours(graph, nodes)
    row_of[nodes] = np.arange(len(nodes))
    rows = row_of[neighbours]
    row_of[nodes] = -1
    inside = rows >= 0
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(inside)])[indptr]
    degrees = torch.from_numpy(np.diff(indptr).astype(np.float32))
    return Block(torch.from_numpy(indptr), torch.from_numpy(rows[inside]), len(nodes), degrees)

"""Which remote nodes' features a rank keeps from the start: the policies of a static cache.

`degree`: the nodes that most nodes aggregate: PaGraph (Lin et al., "PaGraph: Scaling GNN training on large graphs via
computation-aware caching", SoCC 2020).

`accesses`: the nodes asked for most often in some epochs that are sampled before training and trained on by nobody:
GNNLab's pre-sampling (Yang et al., "GNNLab: a factored system for sample-based GNN training over GPUs", EuroSys 2022).

`reverse_reachability`: the nodes that are most likely to be in a batch of this rank, computed, not sampled: the vertex
inclusion probability of SALIENT++ (Kaler et al., "Communication-efficient graph neural networks with probabilistic
neighborhood expansion analysis and caching", MLSys 2023, arXiv 2305.03152).
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from anatomy.graphs.popularity import heaviest_first, out_degrees
from anatomy.graphs.store import Graph

ROUNDING = 1e-9
"""Keeps 0.29 of 100 nodes from being 28, since 0.29 * 100 is a little less than 29 in floating point."""


def num_kept(fraction: float, num_remote: int) -> int:
    """How many of the remote nodes are kept."""
    return int(fraction * num_remote + ROUNDING)


def chosen_nodes(remote: np.ndarray, fraction: float, weight: np.ndarray) -> torch.Tensor:
    """The share of some remote nodes, int64, with the largest weight [all nodes]; ties go to the smaller id."""
    return torch.from_numpy(heaviest_first(remote, weight[remote])[: num_kept(fraction, len(remote))].copy())


def degree_weight(graph: Graph) -> np.ndarray:
    """How many nodes aggregate each node, int64 [nodes]."""
    return out_degrees(graph.indices, graph.num_nodes)


def access_weight(num_nodes: int, input_nodes: Iterable[torch.Tensor]) -> np.ndarray:
    """In how many of some sampled batches each node is, int64 [nodes]; `input_nodes` int64, of each batch."""
    counts = np.zeros(num_nodes, np.int64)
    for nodes in input_nodes:
        counts[nodes.numpy()] += 1  # a batch has a node once
    return counts


def inclusion_probability(
    graph: Graph, training_nodes: np.ndarray, batch_size: int, fanouts: Sequence[int]
) -> np.ndarray:
    """How likely each node is to be in a batch of a rank with these training nodes, float64 [nodes].

    p_0 is batch_size over the number of training nodes, for these. Node u is sampled in hop h with probability
    p_h(u) = 1 - prod (1 - min(1, fanout / degree(v)) p_{h-1}(v)) over the v that aggregate it, as if independently, and
    is in the batch with 1 - prod (1 - p_h(u)) over the hops; the training nodes themselves are own ones.
    """
    reached = np.zeros(graph.num_nodes)
    reached[training_nodes] = min(1.0, batch_size / max(1, len(training_nodes)))
    degrees = np.diff(graph.indptr)
    missed = np.zeros(graph.num_nodes)  # logarithms of probabilities
    for fanout in reversed(fanouts):
        share = np.ones(graph.num_nodes) if fanout < 0 else np.minimum(1, fanout / np.maximum(1, degrees))
        with np.errstate(divide="ignore"):  # of what is certain to be reached
            missed_by = np.log1p(-share * reached)
        missed_in_hop = _summed_over_aggregators(graph, degrees, missed_by)
        missed += missed_in_hop
        reached = -np.expm1(missed_in_hop)
    return -np.expm1(missed)


def _summed_over_aggregators(
    graph: Graph, degrees: np.ndarray, values: np.ndarray, nodes_at_once: int = 1 << 20
) -> np.ndarray:
    """For each node the sum of `values` over the nodes that aggregate it, in pieces of the mapped structure."""
    total = np.zeros(graph.num_nodes)
    for first in range(0, graph.num_nodes, nodes_at_once):
        last = min(first + nodes_at_once, graph.num_nodes)
        edges = graph.indices[graph.indptr[first] : graph.indptr[last]]
        total += np.bincount(edges, np.repeat(values[first:last], degrees[first:last]), minlength=graph.num_nodes)
    return total

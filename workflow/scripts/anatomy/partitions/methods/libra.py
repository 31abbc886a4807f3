"""`libra`: a vertex cut, one greedy pass over a stream of edges, with the less connected end deciding.

Xie, Yan, Li & Zhang, "Distributed power-law graph computing: theoretical and empirical analysis", NIPS 2014, replicate
that end of an edge that has the higher degree: few nodes have one, and they are replicated anyway. Their rule hashes
the other end; Libra, as DistGNN uses it (Md et al., "DistGNN", SC 2021), is greedy instead.
Implemented here is the greedy one. An edge goes to the least loaded part of the first of these sets that has one:

1. parts that hold edges of both ends;
2. parts that hold edges of the end with the lower degree, at a tie of either;
3. parts that hold edges of either end;
4. all parts.

A part's load is the number of stored edges in it; of equal loads the lower number is taken. Without a limit, edges in
the order of a connected graph would all follow the first one, so a part takes no more edges once it holds its mean
number of them and `imbalance` of it; the last ones that it took may exceed that.

All stored edges between the same two nodes, in both directions, go together, so an undirected edge is in one part. The
stream has the in-edges of one node after the other.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from anatomy.graphs.store import Graph
from anatomy.partitions.adjacency import degrees

SUMMARY = "Libra: a vertex cut, each edge greedily to where its ends are, the end of lower degree first"
PACKAGES = ("numba",)
PARTITION = "vertex_cut"
OPTIONS = {
    "properties": {
        "imbalance": {
            "type": "number",
            "minimum": 0,
            "maximum": 1,
            "default": 0.03,
            "description": "How far a part may exceed the mean number of edges, as a share of it.",
        },
        "order": {
            "type": "string",
            "enum": ["random", "natural"],
            "default": "random",
            "description": "Order of the stream's nodes: shuffled by the seed, or by node id.",
        },
    },
    "required": [],
}


def assign_edges(graph: Graph, num_parts: int, options: Mapping[str, Any]) -> np.ndarray:
    """The part of each stored edge, int32 [num_edges]; a part may stay empty where edges are few."""
    order = np.arange(graph.num_nodes)
    if options["order"] == "random":
        order = np.random.default_rng(options["seed"]).permutation(graph.num_nodes)
    capacity = max(1, math.ceil((1 + options["imbalance"]) * graph.num_edges / num_parts))
    degree = degrees(graph.indptr, graph.indices)
    return _compiled_stream()(graph.indptr, graph.indices, degree, order, capacity, num_parts)


@functools.cache
def _compiled_stream() -> Callable[..., np.ndarray]:
    """`_stream` as machine code; numba is loaded only when it is needed."""
    import numba

    find = numba.njit(_first_at_least)
    place = numba.njit(_best_part)

    def _stream(
        indptr: np.ndarray,
        indices: np.ndarray,
        degree: np.ndarray,
        order: np.ndarray,
        capacity: int,
        num_parts: int,
    ) -> np.ndarray:
        assignment = np.full(len(indices), -1, dtype=np.int32)
        held = np.zeros((len(order), num_parts), dtype=np.bool_)
        load = np.zeros(num_parts, dtype=np.int64)
        for target in order:
            for entry in range(indptr[target], indptr[target + 1]):
                if assignment[entry] >= 0:
                    continue
                source = indices[entry]
                best = place(held[target], held[source], degree[target], degree[source], load, capacity)
                held[target, best] = held[source, best] = True
                # This entry is the first of its kind, since repeats follow each other and are taken together.
                back = find(indices, target, indptr[source], indptr[source + 1])
                for position, end, other in (
                    (entry, indptr[target + 1], source),
                    (back, indptr[source + 1], target),
                ):
                    while position < end and indices[position] == other and assignment[position] < 0:
                        assignment[position] = best
                        load[best] += 1
                        position += 1
        return assignment

    return numba.njit(_stream)


def _first_at_least(indices: np.ndarray, value: int, begin: int, end: int) -> int:
    """Where, of the sorted indices[begin:end], the first lies that is not smaller than `value`; `end` without one."""
    while begin < end:
        middle = (begin + end) // 2
        if indices[middle] < value:
            begin = middle + 1
        else:
            end = middle
    return begin


def _best_part(
    one_held: np.ndarray, other_held: np.ndarray, one_degree: int, other_degree: int, load: np.ndarray, capacity: int
) -> int:
    """The least loaded part of the best set, by the module's rule; some part is always below its capacity."""
    best, best_rank = -1, 4
    for part in range(len(load)):
        if load[part] >= capacity:
            continue
        one, other = one_held[part], other_held[part]
        if one and other:
            rank = 0
        elif (one and one_degree <= other_degree) or (other and other_degree <= one_degree):
            rank = 1
        elif one or other:
            rank = 2
        else:
            rank = 3
        if best < 0 or rank < best_rank or (rank == best_rank and load[part] < load[best]):
            best, best_rank = part, rank
    return best

"""The process in which METIS runs: `python -m anatomy.partitions.methods._metis_process JOB`, JOB a JSON object.

METIS is sure-footed only on a symmetric adjacency without loops or repeats, depends on the order of neighbours, and can
leave parts empty where nodes are few; so it gets the canonical adjacency, several seeds, and what it returns is
completed.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anatomy.graphs.store import Graph, open_graph
from anatomy.partitions.adjacency import Adjacency, canonical, entry_blocks, induced
from anatomy.partitions.balance import groups_of, level
from anatomy.partitions.checks import check_assignment
from anatomy.partitions.needs import tables
from anatomy.partitions.repair import fill_empty_parts
from anatomy.partitions.similarity import similar_edges

ENTRIES_IN_ALL = 8_000_000
"""Stored edges that METIS may work through with different seeds unless told how often to try: seconds, not minutes."""
MAX_ATTEMPTS = 16
RECURSIVE_UP_TO = 4
"""Up to so many parts recursive bisection is the faster scheme; beyond, the direct k-way one is faster and better."""


def best_assignment(graph: Graph, job: Mapping[str, Any]) -> np.ndarray:
    """The part of each node, int32 [num_nodes]; with `ranks_per_host` in the job, hosts are cut apart first.

    With `similar`, which goes without hosts, edges weigh as `similar_edges` says, else all alike. A part may be empty
    only where a host got fewer nodes than it has ranks.
    """
    adjacency, edge_weights = canonical(graph.indptr, graph.indices), None
    if job.get("similar"):
        adjacency, edge_weights = similar_edges(graph, adjacency)
    group = groups_of(graph) if job["balance_train"] else None
    num_parts, seeds = job["num_parts"], np.random.SeedSequence(job["seed"])
    ranks_per_host = job.get("ranks_per_host", num_parts)
    if not 1 < ranks_per_host < num_parts:
        wanted = sizes(num_parts, job.get("skew", 0))
        return _best(adjacency, wanted, group, job, seeds, edge_weights=edge_weights)
    first_ranks = np.arange(0, num_parts, ranks_per_host)
    ranks = np.minimum(num_parts - first_ranks, ranks_per_host)
    print("hosts:", end=" ")
    hosts = _best(adjacency, ranks, group, job, seeds)
    assignment = np.empty(len(hosts), dtype=np.int32)
    for host, (first, count, host_seeds) in enumerate(zip(first_ranks, ranks, seeds.spawn(len(ranks)), strict=True)):
        members = np.flatnonzero(hosts == host)
        print(f"host {host}:", end=" ")
        inside = induced(adjacency, members)
        own_group = None if group is None else group[members]
        count = min(int(count), len(members))
        assignment[members] = first + _best(inside, np.ones(count), own_group, job, host_seeds, turns=len(ranks))
    return assignment


def sizes(num_parts: int, skew: float) -> np.ndarray:
    """Sizes of the parts relative to their mean, float64 [num_parts]: evenly from 1 + skew down to 1 - skew."""
    return np.linspace(1 + skew, 1 - skew, num_parts)


def _best(
    adjacency: Adjacency,
    weights: np.ndarray,
    group: np.ndarray | None,
    job: Mapping[str, Any],
    seeds: np.random.SeedSequence,
    turns: int = 1,
    edge_weights: np.ndarray | None = None,
) -> np.ndarray:
    """The assignment with the lowest cut or volume, int32 [num_nodes], among those of several seeds.

    Of equal ones the first; one in which METIS left no part empty goes before one that had to be completed. `weights`
    [num_parts] are the sizes of the parts in relation to each other; `turns` is how many graphs share the time;
    `edge_weights` int64 [entries] of the adjacency, all 1 by default.
    """
    num_parts, volume = len(weights), job["objective"] == "volume"
    shares = weights / weights.sum()
    attempts = _attempts(num_parts, len(adjacency.indices) * turns, job, seeds)
    best, best_rank = None, None
    for recursive, seed in attempts:
        found = _run(adjacency, edge_weights, shares, group, job, recursive, seed)
        assignment = filled = fill_empty_parts(adjacency, found, num_parts)
        if group is not None:
            assignment = level(adjacency, filled, group, shares, job["imbalance"])
        measured = None
        if len(attempts) > 1:
            measured = _volume(adjacency, assignment) if volume else _cut(adjacency, edge_weights, assignment)
        rank = (filled is not found, measured)
        reached = f" {'sends' if volume else 'cuts'} {rank[1]}" if len(attempts) > 1 else ""
        print(f"{'recursive' if recursive else 'k-way'} with seed {seed}{reached}")
        if best_rank is None or rank < best_rank:
            best, best_rank = assignment, rank
    return best


def _attempts(
    num_parts: int, entries: int, job: Mapping[str, Any], seeds: np.random.SeedSequence
) -> list[tuple[bool, int]]:
    """(recursive, seed) of each run of METIS: both schemes once where there are two runs, the rest k-way.

    Bisection knows no other objective than the cut.
    """
    attempts = job.get("attempts") or max(1, min(MAX_ATTEMPTS, ENTRIES_IN_ALL // max(1, entries)))
    recursive = 0 if num_parts <= RECURSIVE_UP_TO else 1
    return [
        (number == recursive and job["objective"] == "cut", int(seed))
        for number, seed in enumerate(seeds.generate_state(attempts) >> 1)
    ]


def _run(
    adjacency: Adjacency,
    edge_weights: np.ndarray | None,
    shares: np.ndarray,
    group: np.ndarray | None,
    job: Mapping[str, Any],
    recursive: bool,
    seed: int,
) -> np.ndarray:
    """One run of METIS, int32 [num_nodes], into parts that have these shares of the nodes; parts may be empty.

    pymetis passes one weight per node. With groups a training node weighs as much more as training nodes are rarer, so
    that METIS counts nodes and training nodes alike; what it leaves uneven in either is for `level`.
    """
    import pymetis

    num_nodes, num_parts = len(adjacency.indptr) - 1, len(shares)
    if len(adjacency.indices) == 0 or num_parts == 1:
        # Nothing can be cut, and METIS is not made for this.
        ends = np.round(np.cumsum(shares) * num_nodes)
        return np.searchsorted(ends, np.arange(num_nodes), side="right").astype(np.int32)
    options = {"seed": seed}
    if not recursive:
        options["ufactor"] = max(1, round(1000 * job["imbalance"]))
        options["objtype"] = int(pymetis.ObjType.VOL if job["objective"] == "volume" else pymetis.ObjType.CUT)
    num_train = 0 if group is None else int(group.sum())
    weights = None if num_train == 0 else 1 + group.astype(np.int64) * round(num_nodes / num_train)
    result = pymetis.part_graph(
        num_parts,
        pymetis.CSRAdjacency(adjacency.indptr, adjacency.indices),
        vweights=weights,
        eweights=edge_weights,
        tpwgts=None if np.ptp(shares) == 0 else shares.tolist(),
        recursive=recursive,
        options=pymetis.Options(**options),
    )
    assignment = np.asarray(result.vertex_part).astype(np.int32)
    check_assignment(assignment, num_nodes, num_parts, "METIS", empty_allowed=True)
    return assignment


def _cut(adjacency: Adjacency, edge_weights: np.ndarray | None, assignment: np.ndarray) -> int:
    """Undirected edges between parts, or what they weigh."""
    cut = start = 0
    for targets, sources in entry_blocks(*adjacency):
        between = assignment[targets] != assignment[sources]
        if edge_weights is not None:
            between = edge_weights[start : start + len(targets)][between]
            start += len(targets)
        cut += int(between.sum())
    return cut // 2


def _volume(adjacency: Adjacency, assignment: np.ndarray) -> int:
    """Nodes that parts need from others, summed over parts."""

    def needed() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for targets, sources in entry_blocks(*adjacency):
            cut = assignment[targets] != assignment[sources]
            yield assignment[targets[cut]], sources[cut]

    num_parts = int(assignment.max()) + 1
    return sum(int(np.count_nonzero(table)) for _, table in tables(needed, len(assignment), num_parts))


def main() -> None:
    job = json.loads(sys.argv[1])
    assignment = best_assignment(open_graph(Path(job["graph"])), job)
    np.save(Path(job["out"]) / "assignment.npy", assignment, allow_pickle=False)


if __name__ == "__main__":
    main()

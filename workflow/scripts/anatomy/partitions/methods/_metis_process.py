"""The process in which METIS runs: `python -m anatomy.partitions.methods._metis_process JOB`, JOB a JSON object.

METIS is sure-footed only on a symmetric adjacency without loops or repeats, depends on the order of neighbours, and can
leave parts empty where nodes are few; so it gets the canonical adjacency, several seeds, and what it returns is
completed.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anatomy.graphs.store import Graph, open_graph
from anatomy.partitions.adjacency import Adjacency, canonical, entry_blocks
from anatomy.partitions.balance import groups_of, level
from anatomy.partitions.checks import check_assignment
from anatomy.partitions.repair import fill_empty_parts

ENTRIES_IN_ALL = 8_000_000
"""Stored edges that METIS may work through with different seeds unless told how often to try: seconds, not minutes."""
MAX_ATTEMPTS = 16
RECURSIVE_UP_TO = 4
"""Up to so many parts recursive bisection is the faster scheme; beyond, the direct k-way one is faster and better."""


def best_assignment(graph: Graph, job: Mapping[str, Any]) -> np.ndarray:
    """The assignment with the lowest cut, int32 [num_nodes], among those of several seeds; of equal ones the first.

    One in which METIS left no part empty goes before one that had to be completed.
    """
    adjacency = canonical(graph.indptr, graph.indices)
    num_parts = job["num_parts"]
    group = groups_of(graph) if job["balance_train"] else None
    attempts = _attempts(num_parts, len(adjacency.indices), job)
    best, best_rank = None, None
    for recursive, seed in attempts:
        found = _run(adjacency, num_parts, group, job["imbalance"], recursive, seed)
        assignment = filled = fill_empty_parts(adjacency, found, num_parts)
        if group is not None:
            assignment = level(adjacency, filled, group, num_parts, job["imbalance"])
        rank = (filled is not found, _cut(adjacency, assignment) if len(attempts) > 1 else None)
        print(f"{'recursive' if recursive else 'k-way'} with seed {seed}" + f" cuts {rank[1]}" * (len(attempts) > 1))
        if best_rank is None or rank < best_rank:
            best, best_rank = assignment, rank
    return best


def _attempts(num_parts: int, entries: int, job: Mapping[str, Any]) -> list[tuple[bool, int]]:
    """(recursive, seed) of each run of METIS: both schemes once where there are two runs, the rest k-way."""
    attempts = job.get("attempts") or max(1, min(MAX_ATTEMPTS, ENTRIES_IN_ALL // max(1, entries)))
    seeds = np.random.SeedSequence(job["seed"]).generate_state(attempts) >> 1
    recursive = 0 if num_parts <= RECURSIVE_UP_TO else 1
    return [(number == recursive, int(seed)) for number, seed in enumerate(seeds)]


def _run(
    adjacency: Adjacency, num_parts: int, group: np.ndarray | None, imbalance: float, recursive: bool, seed: int
) -> np.ndarray:
    """One run of METIS, int32 [num_nodes]; parts may be empty.

    pymetis passes one weight per node. With groups a training node weighs as much more as training nodes are rarer, so
    that METIS counts nodes and training nodes alike; what it leaves uneven in either is for `level`.
    """
    import pymetis

    num_nodes = len(adjacency.indptr) - 1
    if len(adjacency.indices) == 0:
        # Nothing can be cut, and METIS is not made for this.
        return (np.arange(num_nodes) * num_parts // num_nodes).astype(np.int32)
    options = {"seed": seed} if recursive else {"seed": seed, "ufactor": max(1, round(1000 * imbalance))}
    num_train = 0 if group is None else int(group.sum())
    weights = None if num_train == 0 else 1 + group.astype(np.int64) * round(num_nodes / num_train)
    result = pymetis.part_graph(
        num_parts,
        pymetis.CSRAdjacency(adjacency.indptr, adjacency.indices),
        vweights=weights,
        recursive=recursive,
        options=pymetis.Options(**options),
    )
    assignment = np.asarray(result.vertex_part).astype(np.int32)
    check_assignment(assignment, num_nodes, num_parts, "METIS", empty_allowed=True)
    return assignment


def _cut(adjacency: Adjacency, assignment: np.ndarray) -> int:
    """Undirected edges between parts."""
    cut = 0
    for targets, sources in entry_blocks(*adjacency):
        cut += int(np.count_nonzero(assignment[targets] != assignment[sources]))
    return cut // 2


def main() -> None:
    job = json.loads(sys.argv[1])
    assignment = best_assignment(open_graph(Path(job["graph"])), job)
    np.save(Path(job["out"]) / "assignment.npy", assignment, allow_pickle=False)


if __name__ == "__main__":
    main()

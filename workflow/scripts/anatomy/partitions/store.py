"""A partition on disk: the assignment, the halo lists, and `partition.json`, which is written last."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anatomy.errors import StudyError
from anatomy.files import open_array, read_json
from anatomy.graphs.store import Graph
from anatomy.partitions.checks import check_assignment

MANIFEST = "partition.json"
REMEDY = "partition the graph again"


@dataclass(frozen=True)
class Partition:
    """A stored partition, its arrays mapped read-only.

    `assignment` int32 [num_nodes] is the part of each node. `halo_nodes` int64 holds one sorted list for each pair of
    parts, at `halo_offsets` int64 [num_parts² + 1], by owner, then by consumer.
    """

    path: Path
    manifest: dict[str, Any]
    assignment: np.ndarray
    halo_offsets: np.ndarray
    halo_nodes: np.ndarray

    @property
    def num_parts(self) -> int:
        return self.manifest["num_parts"]

    @property
    def num_nodes(self) -> int:
        return self.manifest["num_nodes"]

    def nodes(self, part: int) -> np.ndarray:
        """The sorted ids of a part's own nodes, int64."""
        return np.flatnonzero(self.assignment == part)

    def halo(self, owner: int, consumer: int) -> np.ndarray:
        """The sorted ids of the nodes that `owner` has and `consumer` needs, int64; none where they are the same."""
        pair = owner * self.num_parts + consumer
        return self.halo_nodes[self.halo_offsets[pair] : self.halo_offsets[pair + 1]]


def open_partition(path: Path, graph: Graph | None = None) -> Partition:
    """Map the partition in folder `path` and check it; with `graph`, also that it was made for that very graph.

    Raises StudyError where the folder holds no whole partition, one for another graph, or one that contradicts itself.
    """
    path = Path(path)
    manifest = read_json(path / MANIFEST, kind="partition")
    if graph is not None and manifest["graph_identity"] != graph.identity:
        raise StudyError(
            f"{path / MANIFEST}: a partition for another graph: found graph_identity "
            f"{manifest['graph_identity'][:12]}… (graph {manifest['graph']!r}), expected {graph.identity[:12]}… "
            f"({graph.path}); {REMEDY}"
        )
    arrays = {name: open_array(path, name, manifest) for name in ("assignment", "halo_offsets", "halo_nodes")}
    partition = Partition(path=path, manifest=manifest, **arrays)
    check_assignment(partition.assignment, partition.num_nodes, partition.num_parts, str(path / "assignment.npy"))
    _check_halo(partition)
    return partition


def _check_halo(partition: Partition) -> None:
    """Raise StudyError where the halo lists have holes, or list a node that their owner does not own."""
    num_parts, offsets, nodes = partition.num_parts, partition.halo_offsets, partition.halo_nodes
    lengths = np.diff(offsets)
    if offsets.shape != (num_parts**2 + 1,) or offsets[0] != 0 or offsets[-1] != len(nodes) or lengths.min() < 0:
        raise StudyError(
            f"{partition.path / 'halo_offsets.npy'}: found {len(offsets)} offsets for {len(nodes)} nodes, expected "
            f"{num_parts**2 + 1} that rise from 0 to {len(nodes)}; {REMEDY}"
        )
    wrong = np.flatnonzero((nodes < 0) | (nodes >= partition.num_nodes))
    if not len(wrong):
        owner = np.repeat(np.arange(num_parts**2) // num_parts, lengths)
        wrong = np.flatnonzero(partition.assignment[nodes] != owner)
    if len(wrong):
        raise StudyError(
            f"{partition.path / 'halo_nodes.npy'}: entry {wrong[0]}: found node {nodes[wrong[0]]}, expected one of the "
            f"part that owns the list; {REMEDY}"
        )

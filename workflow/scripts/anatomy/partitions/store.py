"""A partition on disk: the assignment, the halo lists, what a vertex cut adds, and `partition.json`, written last."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anatomy.errors import StudyError
from anatomy.files import open_array, read_json
from anatomy.graphs.store import Graph
from anatomy.partitions.checks import check_assignment, check_edge_assignment

MANIFEST = "partition.json"
REMEDY = "partition the graph again"
ARRAYS = ("assignment", "halo_offsets", "halo_nodes")
VERTEX_CUT_ARRAYS = ("edge_assignment", "mirror_offsets", "mirror_nodes")


@dataclass(frozen=True)
class Partition:
    """A stored partition, its arrays mapped read-only.

    `assignment` int32 [num_nodes] is the part of each node. `halo_nodes` int64 holds one sorted list for each pair of
    parts, at `halo_offsets` int64 [num_parts² + 1], by owner, then by consumer.

    A vertex cut stores both assignments: `edge_assignment` int32 [num_edges] is the part of each stored edge, in the
    order of the graph's `indices`, and `assignment` the part of each node's root. `mirror_nodes`, at `mirror_offsets`,
    are lists like those of the halo: by the root's part, then by the part that mirrors the node since it holds an edge
    of it. `edge_assignment` and the mirrors are None where the edges have no parts of their own.
    """

    path: Path
    manifest: dict[str, Any]
    assignment: np.ndarray
    halo_offsets: np.ndarray
    halo_nodes: np.ndarray
    edge_assignment: np.ndarray | None = None
    mirror_offsets: np.ndarray | None = None
    mirror_nodes: np.ndarray | None = None

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

    @property
    def is_vertex_cut(self) -> bool:
        return self.edge_assignment is not None

    def edges(self, part: int) -> np.ndarray:
        """Of a vertex cut: the sorted positions, in the graph's `indices`, of the edges that a part holds, int64."""
        return np.flatnonzero(self._of_vertex_cut("edge_assignment") == part)

    def mirrors(self, owner: int, holder: int) -> np.ndarray:
        """Of a vertex cut: the sorted ids of the nodes with the root in `owner` and a mirror in `holder`, int64.

        None where they are the same. What `holder` has gathered for them goes to `owner`, and what `owner` makes of it
        comes back, in this order.
        """
        offsets, nodes = self._of_vertex_cut("mirror_offsets"), self._of_vertex_cut("mirror_nodes")
        pair = owner * self.num_parts + holder
        return nodes[offsets[pair] : offsets[pair + 1]]

    def replicas(self) -> tuple[np.ndarray, np.ndarray]:
        """Of a vertex cut: the parts that have each node, the root's first, then rising.

        Returns `offsets` int64 [num_nodes + 1] and `parts` int32: those of a node are parts[offsets[node] :
        offsets[node + 1]].
        """
        lengths, mirrors = np.diff(self._of_vertex_cut("mirror_offsets")), self._of_vertex_cut("mirror_nodes")
        nodes = np.concatenate([np.arange(self.num_nodes), mirrors])
        holders = np.repeat(np.tile(np.arange(self.num_parts, dtype=np.int32), self.num_parts), lengths)
        parts = np.concatenate([self.assignment, holders])
        # All mirrors of a node are in lists of the same owner, which come in the order of the holders.
        order = np.argsort(nodes, kind="stable")
        offsets = np.zeros(self.num_nodes + 1, dtype=np.int64)
        np.cumsum(np.bincount(nodes, minlength=self.num_nodes), out=offsets[1:])
        return offsets, parts[order]

    def _of_vertex_cut(self, name: str) -> np.ndarray:
        array = getattr(self, name)
        if array is None:
            raise StudyError(
                f"{self.path / MANIFEST}: found no {name}, since {self.manifest['partitioner']} gives parts to nodes, "
                "expected a vertex cut; choose a partitioner that gives parts to edges, such as libra"
            )
        return array


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
    is_vertex_cut = "edge_assignment" in manifest["arrays"]
    names = (*ARRAYS, *VERTEX_CUT_ARRAYS) if is_vertex_cut else ARRAYS
    arrays = {name: open_array(path, name, manifest) for name in names}
    partition = Partition(path=path, manifest=manifest, **arrays)
    num_parts = partition.num_parts
    check_assignment(partition.assignment, partition.num_nodes, num_parts, str(path / "assignment.npy"))
    _check_lists(partition, "halo", partition.halo_offsets, partition.halo_nodes)
    if is_vertex_cut:
        edges = partition.edge_assignment
        num_edges = len(edges) if graph is None else graph.num_edges
        check_edge_assignment(edges, num_edges, num_parts, str(path / "edge_assignment.npy"))
        _check_lists(partition, "mirror", partition.mirror_offsets, partition.mirror_nodes)
    return partition


def _check_lists(partition: Partition, name: str, offsets: np.ndarray, nodes: np.ndarray) -> None:
    """Raise StudyError where the halo or mirror lists have holes, or list a node that their owner does not own."""
    num_parts = partition.num_parts
    lengths = np.diff(offsets)
    if offsets.shape != (num_parts**2 + 1,) or offsets[0] != 0 or offsets[-1] != len(nodes) or lengths.min() < 0:
        raise StudyError(
            f"{partition.path / f'{name}_offsets.npy'}: found {len(offsets)} offsets for {len(nodes)} nodes, expected "
            f"{num_parts**2 + 1} that rise from 0 to {len(nodes)}; {REMEDY}"
        )
    wrong = np.flatnonzero((nodes < 0) | (nodes >= partition.num_nodes))
    if not len(wrong):
        owner = np.repeat(np.arange(num_parts**2) // num_parts, lengths)
        wrong = np.flatnonzero(partition.assignment[nodes] != owner)
    if len(wrong):
        raise StudyError(
            f"{partition.path / f'{name}_nodes.npy'}: entry {wrong[0]}: found node {nodes[wrong[0]]}, expected one of "
            f"the part that owns the list; {REMEDY}"
        )

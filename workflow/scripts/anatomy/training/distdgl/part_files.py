"""A part as DGL's graph server loads it, made from the study's own assignment: nothing is partitioned again.

DGL wants the nodes of a part to have consecutive ids, so nodes are renumbered part by part, in each part in order of
their ids; edges likewise, in order of the node that they lead to. `Numbering` translates.
"""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from anatomy.graphs.store import Graph
from anatomy.training.distdgl.package import load_dgl

BOOK_FILE = "parts.json"
"""The book of all parts."""
NODE_TYPE = "_N"
EDGE_TYPE = "_N:_E:_N"


@dataclass(frozen=True)
class Numbering:
    """`original` int64 [nodes]: the id of each of DGL's nodes; `node_starts`, `edge_starts` int64 [parts + 1]: part p's
    nodes and edges are those from entry p up to entry p + 1.
    """

    original: np.ndarray
    node_starts: np.ndarray
    edge_starts: np.ndarray

    @classmethod
    def of(cls, graph: Graph, assignment: np.ndarray, num_parts: int) -> "Numbering":
        """The numbering that an assignment, int32 [nodes], makes; an edge belongs to the part that it leads to."""
        degrees = np.diff(graph.indptr)
        nodes = np.bincount(assignment, minlength=num_parts)
        edges = [int(degrees[assignment == part].sum()) for part in range(num_parts)]
        return cls(np.argsort(assignment, kind="stable"), _starts(nodes), _starts(np.array(edges, np.int64)))

    @property
    def num_parts(self) -> int:
        return len(self.node_starts) - 1

    def nodes_of(self, part: int) -> np.ndarray:
        """The ids of a part's nodes, rising, int64."""
        return self.original[self.node_starts[part] : self.node_starts[part + 1]]


def write_part(folder: Path, graph: Graph, numbering: Numbering, part: int, name: str) -> None:
    """Write one part's graph and features, and the book of all parts, into `folder`.

    `name` is that of the graph and begins that of its features: DGL names shared memory after both.
    """
    dgl = load_dgl()
    own = numbering.nodes_of(part)
    sources, destinations, halo = _edges_into(graph, own)
    local = dgl.graph((sources, destinations), num_nodes=len(own) + len(halo))
    renumbered = np.empty(graph.num_nodes, np.int64)
    renumbered[numbering.original] = np.arange(graph.num_nodes)
    local.ndata[dgl.NID] = torch.from_numpy(renumbered[np.concatenate([own, halo])])
    local.ndata["inner_node"] = torch.from_numpy((np.arange(len(own) + len(halo)) < len(own)).astype(np.uint8))
    local.edata[dgl.EID] = torch.arange(*numbering.edge_starts[part : part + 2].tolist())
    local.edata["inner_edge"] = torch.ones(local.num_edges(), dtype=torch.uint8)
    dgl.save_graphs(str(folder / "graph.dgl"), [local], formats="csc")
    features = {f"{NODE_TYPE}/{feature_name(name)}": torch.from_numpy(graph.features[own])}
    dgl.data.utils.save_tensors(str(folder / "node_features.dgl"), features)
    dgl.data.utils.save_tensors(str(folder / "edge_features.dgl"), {})
    (folder / BOOK_FILE).write_text(json.dumps(_book(numbering, name)), encoding="utf-8")


def feature_name(name: str) -> str:
    """What the features of graph `name` are called."""
    return f"{name}-features"


def _edges_into(graph: Graph, own: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """The edges that lead to some nodes, by destination, as rows of (own, halo); and the halo's sorted ids, int64."""
    starts, counts = graph.indptr[own], graph.indptr[own + 1] - graph.indptr[own]
    ends = np.cumsum(counts)
    positions = np.repeat(starts - (ends - counts), counts) + np.arange(counts.sum())
    neighbours = np.asarray(graph.indices[positions])
    row_of = np.full(graph.num_nodes, -1, np.int64)
    row_of[own] = np.arange(len(own))
    halo = np.unique(neighbours[row_of[neighbours] < 0])
    row_of[halo] = len(own) + np.arange(len(halo))
    destinations = np.repeat(np.arange(len(own)), counts)
    return torch.from_numpy(row_of[neighbours]), torch.from_numpy(destinations), halo


def _book(numbering: Numbering, name: str) -> dict[str, object]:
    """DGL's description of all parts; it opens the files of the own part only, so all parts name the same ones."""
    files = {"part_graph": "graph.dgl", "node_feats": "node_features.dgl", "edge_feats": "edge_features.dgl"}
    return {
        "graph_name": name,
        "num_parts": numbering.num_parts,
        "num_nodes": int(numbering.node_starts[-1]),
        "num_edges": int(numbering.edge_starts[-1]),
        "node_map": {NODE_TYPE: _ranges(numbering.node_starts)},
        "edge_map": {EDGE_TYPE: _ranges(numbering.edge_starts)},
        "ntypes": {NODE_TYPE: 0},
        "etypes": {EDGE_TYPE: 0},
        **{f"part-{part}": files for part in range(numbering.num_parts)},
    }


def _starts(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _ranges(starts: np.ndarray) -> list[list[int]]:
    return [[int(first), int(end)] for first, end in pairwise(starts)]

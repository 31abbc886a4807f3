"""The canonical graph on disk: five arrays and `graph.json`, which is written last.

`indptr` and `indices` hold for each node its sorted in-neighbours, that is, whom it aggregates. Node ids are the
source's.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anatomy.errors import StudyError
from anatomy.files import describe_array, open_array, read_json, save_array, sha256_of, staged, write_json
from anatomy.graphs.blocks import FeatureBlocks, rows_per_block, slices
from anatomy.graphs.checks import check_finite
from anatomy.graphs.raw import GraphData
from anatomy.graphs.splits import NONE, SPLIT_NAMES, TRAIN
from anatomy.program import measured, versions

MANIFEST = "graph.json"
DTYPES = {"indptr": "int64", "indices": "int64", "features": "float32", "labels": "int64", "split": "int8"}
REMEDY = "build the graph again"


@dataclass(frozen=True)
class Graph:
    """A stored graph, its arrays mapped read-only.

    `indptr` int64 [num_nodes + 1], `indices` int64 [num_edges], `features` float32 [num_nodes, num_features],
    `labels` int64 [num_nodes] (-1 unlabelled), `split` int8 [num_nodes] (0 train, 1 validation, 2 test, -1 none).
    """

    path: Path
    manifest: dict[str, Any]
    indptr: np.ndarray
    indices: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    split: np.ndarray

    @property
    def name(self) -> str:
        return self.manifest["name"]

    @property
    def num_nodes(self) -> int:
        return self.manifest["num_nodes"]

    @property
    def num_edges(self) -> int:
        """Stored entries: an undirected edge counts twice."""
        return self.manifest["num_edges"]

    @property
    def num_features(self) -> int:
        return self.manifest["num_features"]

    @property
    def num_classes(self) -> int:
        return self.manifest["num_classes"]

    @property
    def identity(self) -> str:
        """SHA-256 over the arrays, by which other stages recognise the graph."""
        return self.manifest["identity"]


def write_graph(
    out: Path, name: str, source_options: Mapping[str, Any], data: GraphData | Callable[[], GraphData]
) -> dict[str, Any]:
    """Write a graph to the folder `out` as graph `name`, and return its manifest.

    `data` may be a function that makes the graph, whose time and memory then count as the graph's.

    Raises StudyError where a feature is not finite.
    """
    with staged(out, MANIFEST) as stage:
        manifest: dict[str, Any] = {"kind": "graph", "name": name, "source": dict(source_options)}
        with measured(manifest):
            manifest |= _save(stage, data() if callable(data) else data)
        write_json(stage / MANIFEST, manifest)
    return manifest


def _save(folder: Path, data: GraphData) -> dict[str, Any]:
    """Save the arrays and return what the manifest says about them."""
    arrays = {
        "indptr": save_array(folder, "indptr", data.indptr),
        "indices": save_array(folder, "indices", data.indices),
        "features": _save_features(folder, data.features),
        "labels": save_array(folder, "labels", data.labels),
        "split": save_array(folder, "split", data.split),
    }
    return {
        "num_nodes": len(data.labels),
        "num_edges": len(data.indices),
        "num_features": data.features.num_features,
        "num_classes": data.num_classes,
        "steps": data.steps,
        "made": data.made,
        "notes": data.notes,
        "split": {key: int(np.count_nonzero(data.split == value)) for key, value in SPLIT_NAMES.items()},
        "evaluator": data.evaluator,
        "identity": identity_of(arrays),
        "arrays": arrays,
        "versions": versions("numpy", *data.packages),
    }


def identity_of(arrays: Mapping[str, Mapping[str, Any]]) -> str:
    """SHA-256 over the names and SHA-256s of a manifest's arrays, in the order of their names."""
    return hashlib.sha256("".join(f"{name} {arrays[name]['sha256']}\n" for name in sorted(arrays)).encode()).hexdigest()


def _save_features(folder: Path, features: FeatureBlocks) -> dict[str, Any]:
    """Write the features block by block, checking each, and return what the manifest says about them."""
    path = folder / "features.npy"
    shape = (features.num_nodes, features.num_features)
    if 0 in shape:
        return save_array(folder, "features", np.zeros(shape, dtype=np.float32))
    row = 0
    # Written as a file and not through a mapping, whose pages would count as this process's memory.
    with open(path, "wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in features.blocks():
            block = np.ascontiguousarray(block, dtype=np.float32)
            check_finite(block, row, features.place)
            block.tofile(file)
            row += len(block)
    if row != features.num_nodes:
        raise StudyError(
            f"{features.place}: found {row} rows, expected {features.num_nodes}, one per node; correct the source"
        )
    return describe_array(path, np.load(path, mmap_mode="r", allow_pickle=False))


def open_graph(path: Path) -> Graph:
    """Map the arrays of the graph in folder `path`.

    Only dtypes and shapes are checked here; `check_graph` reads everything.

    Raises StudyError where the folder holds no whole graph.
    """
    path = Path(path)
    manifest = read_json(path / MANIFEST, kind="graph")
    arrays = {name: open_array(path, name, manifest) for name in DTYPES}
    num_nodes, num_edges = manifest["num_nodes"], manifest["num_edges"]
    shapes = {
        "indptr": (num_nodes + 1,),
        "indices": (num_edges,),
        "features": (num_nodes, manifest["num_features"]),
        "labels": (num_nodes,),
        "split": (num_nodes,),
    }
    for name, array in arrays.items():
        if array.shape != shapes[name] or str(array.dtype) != DTYPES[name]:
            raise StudyError(
                f"{path / name}.npy: found {array.dtype} {list(array.shape)}, expected {DTYPES[name]} "
                f"{list(shapes[name])} for {num_nodes} nodes and {num_edges} edges; {REMEDY}"
            )
    return Graph(path=path, manifest=manifest, **arrays)


def check_graph(graph: Graph, checksums: bool = False) -> None:
    """Read the whole graph and raise StudyError, naming file and place, where it breaks its contract.

    With `checksums` the arrays are compared with the manifest's SHA-256s as well.
    """
    if checksums:
        for name, expected in graph.manifest["arrays"].items():
            found = sha256_of(graph.path / f"{name}.npy")
            if found != expected["sha256"]:
                raise StudyError(
                    f"{graph.path / name}.npy: found SHA-256 {found}, expected {expected['sha256']}; {REMEDY}"
                )
    _check_structure(graph)
    for piece in slices(graph.num_nodes, rows_per_block(graph.num_features)):
        check_finite(graph.features[piece], piece.start, str(graph.path / "features.npy"))
    _check_range(graph, "labels", graph.labels, -1, graph.num_classes - 1)
    _check_range(graph, "split", graph.split, NONE, max(SPLIT_NAMES.values()))
    unlabelled = np.flatnonzero((graph.split == TRAIN) & (graph.labels < 0))
    if len(unlabelled):
        raise StudyError(
            f"{graph.path / 'split.npy'}: node {unlabelled[0]}: found a training node without a label, expected a "
            f"label; {REMEDY}"
        )


def _check_structure(graph: Graph) -> None:
    """Raise StudyError where `indptr` and `indices` are not sorted in-neighbours in range."""
    lengths = np.diff(graph.indptr)
    if graph.indptr[0] != 0 or graph.indptr[-1] != graph.num_edges or (len(lengths) and lengths.min() < 0):
        raise StudyError(
            f"{graph.path / 'indptr.npy'}: found {graph.indptr[0]} to {graph.indptr[-1]}, expected offsets that rise "
            f"from 0 to {graph.num_edges}; {REMEDY}"
        )
    place = graph.path / "indices.npy"
    _check_range(graph, "indices", graph.indices, 0, graph.num_nodes - 1)
    for piece in slices(graph.num_edges):
        block = graph.indices[piece.start : piece.stop + 1]
        falls = np.flatnonzero(block[1:] < block[:-1]) + piece.start + 1
        # Only where a node's list begins may a smaller id follow a larger one.
        inside = falls[graph.indptr[np.searchsorted(graph.indptr, falls)] != falls]
        if len(inside):
            node = int(np.searchsorted(graph.indptr, inside[0], side="right")) - 1
            raise StudyError(f"{place}: node {node}: found in-neighbours out of order, expected sorted ids; {REMEDY}")


def _check_range(graph: Graph, name: str, array: np.ndarray, low: int, high: int) -> None:
    """Raise StudyError where integers of `array` are not in low … high."""
    for piece in slices(len(array)):
        block = array[piece]
        if block.min() < low or block.max() > high:
            first = int(np.flatnonzero((block < low) | (block > high))[0])
            raise StudyError(
                f"{graph.path / name}.npy: entry {piece.start + first}: found {block[first]}, expected {low} to "
                f"{high}; {REMEDY}"
            )

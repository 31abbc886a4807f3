"""`npz`: the two layouts in which graph benchmarks are commonly kept.

`gnn-benchmark` (Shchur et al., "Pitfalls of graph neural network evaluation", 2018): the adjacency as the pieces of a
CSR matrix (`adj_data`, `adj_indices`, `adj_indptr`, `adj_shape`), attributes likewise (`attr_*`) or dense
(`attr_matrix`), `labels`; no split. `heterophilous` (Platonov et al., "A critical look at the evaluation of GNNs under
heterophily", 2023): `node_features`, `node_labels`, `edges` [edges, 2] with each edge listed once, and `train_masks`,
`val_masks`, `test_masks` [splits, num_nodes].
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from anatomy.errors import StudyError
from anatomy.graphs import edges
from anatomy.graphs.blocks import FeatureBlocks
from anatomy.graphs.checks import count_classes, labels_from
from anatomy.graphs.files_given import check_file_options, checked_path, file_download, file_options, given_path
from anatomy.graphs.npz_file import NpzFile
from anatomy.graphs.options import Options, SourceInfo, estimate, source_schema
from anatomy.graphs.raw import RawGraph
from anatomy.graphs.splits import SPLIT_OPTIONS, TEST, TRAIN, VAL, check_fractions, split_from

MASKS = {TRAIN: "train_masks", VAL: "val_masks", TEST: "test_masks"}

_PROPERTIES = {
    **file_options("", "the graph"),
    "split_index": {
        "type": "integer",
        "minimum": 0,
        "default": 0,
        "description": "which of the file's splits to use, where it has several",
    },
    "weights": {
        "type": "string",
        "enum": ["refuse", "drop"],
        "default": "refuse",
        "description": "what to do with weights, which the store does not hold",
    },
    **SPLIT_OPTIONS,
}


def read(options: Options, scratch: Path) -> RawGraph:
    """Read a file of either layout. Raises StudyError for any other, and for arrays that do not fit each other."""
    with NpzFile(checked_path(options)) as file:
        return (
            _read_heterophilous(file, options) if _layout(file) == "heterophilous" else _read_benchmark(file, options)
        )


def _layout(file: NpzFile) -> str:
    if {"adj_indptr", "adj_indices", "labels"} <= set(file.names):
        return "gnn-benchmark"
    if {"edges", "node_features", "node_labels"} <= set(file.names):
        return "heterophilous"
    typed = [name for name in file.names if name.startswith("edges_")]
    if typed:
        raise StudyError(
            f"{file.path}: found a heterogeneous graph (edges between several types of nodes: {', '.join(typed)}), "
            "expected one type of nodes and edges; choose another graph, or write one relation of it as an edge list"
        )
    raise StudyError(
        f"{file.path}: found arrays {', '.join(file.names) or 'none'}, expected adj_indptr, adj_indices, labels "
        "(gnn-benchmark) or edges, node_features, node_labels (heterophilous)"
    )


def _read_benchmark(file: NpzFile, options: Options) -> RawGraph:
    num_nodes = _num_nodes(file)
    indptr, indices = _csr_pieces(file, "adj", num_nodes)
    notes = _weights(file, options)
    sources = np.repeat(np.arange(num_nodes), np.diff(indptr))
    packed = edges.pack(sources, indices, num_nodes, lambda i: f"{file.path}: adj_indices: entry {i}")
    if "attr_indptr" in file:
        features, packages = _sparse_features(file, num_nodes), ["scipy"]
    else:
        features, packages = _dense_features(file, "attr_matrix", num_nodes), []
    labels = labels_from(file.array("labels"), num_nodes, f"{file.path}: labels")
    return RawGraph(
        file=str(file.path),
        num_nodes=num_nodes,
        edges=packed,
        features=features,
        labels=labels,
        num_classes=count_classes(labels, f"{file.path}: labels"),
        packages=packages,
        notes=notes,
    )


def _read_heterophilous(file: NpzFile, options: Options) -> RawGraph:
    num_nodes = _num_nodes(file)
    ends = file.array("edges")
    if ends.ndim != 2 or ends.shape[1] != 2 or ends.dtype.kind not in "iu":
        raise StudyError(
            f"{file.path}: edges: found {ends.dtype} {list(ends.shape)}, expected whole numbers [edges, 2]"
        )
    labels = labels_from(file.array("node_labels"), num_nodes, f"{file.path}: node_labels")
    return RawGraph(
        file=str(file.path),
        num_nodes=num_nodes,
        edges=edges.pack(ends[:, 0], ends[:, 1], num_nodes, lambda i: f"{file.path}: edges: row {i}"),
        features=_dense_features(file, "node_features", num_nodes),
        labels=labels,
        num_classes=count_classes(labels, f"{file.path}: node_labels"),
        split=_split(file, num_nodes, options["split_index"]),
        listed_once=True,
    )


def _csr_pieces(file: NpzFile, prefix: str, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """`indptr` and `indices` of a CSR matrix of that many rows. Raises StudyError where they do not fit each other."""
    indptr, indices = file.array(f"{prefix}_indptr"), file.array(f"{prefix}_indices")
    if f"{prefix}_shape" in file:
        num_rows_stated = int(np.ravel(file.array(f"{prefix}_shape"))[0])
        if num_rows_stated != num_rows:
            raise StudyError(
                f"{file.path}: {prefix}_shape: found {num_rows_stated} rows, expected {num_rows}, one per node"
            )
    if (
        indptr.shape != (num_rows + 1,)
        or indices.ndim != 1
        or indptr.dtype.kind not in "iu"
        or indices.dtype.kind not in "iu"
    ):
        raise StudyError(
            f"{file.path}: {prefix}_indptr: found {indptr.dtype} {list(indptr.shape)}, expected whole numbers "
            f"[{num_rows + 1}]"
        )
    if indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr.astype(np.int64)) < 0).any():
        raise StudyError(
            f"{file.path}: {prefix}_indptr: found offsets from {indptr[0]} to {indptr[-1]}, expected rising ones from "
            f"0 to {len(indices)}, the length of {prefix}_indices; the file is damaged"
        )
    return indptr.astype(np.int64), indices


def _weights(file: NpzFile, options: Options) -> list[str]:
    """What the manifest should say about weights. Raises StudyError where there are some that must not be dropped."""
    if "adj_data" not in file:
        return []
    weights = file.array("adj_data")
    other = np.flatnonzero(weights != 1)
    if len(other) == 0:
        return []
    if options["weights"] == "refuse":
        raise StudyError(
            f"{file.path}: adj_data: entry {other[0]}: found weight {weights[other[0]]}, expected 1; set weights to "
            "drop to read the structure only"
        )
    return [f"weights of the source dropped ({len(other)} other than 1)"]


def _sparse_features(file: NpzFile, num_nodes: int) -> FeatureBlocks:
    from scipy.sparse import csr_matrix

    indptr, indices = _csr_pieces(file, "attr", num_nodes)
    values = file.array("attr_data")
    shape = np.ravel(file.array("attr_shape"))
    num_features = int(shape[1])
    if values.shape != indices.shape or values.dtype.kind not in "fiub":
        raise StudyError(
            f"{file.path}: attr_data: found {values.dtype} {list(values.shape)}, expected numbers [{len(indices)}]"
        )
    if len(indices) and (indices.min() < 0 or indices.max() >= num_features):
        entry = int(np.flatnonzero((indices < 0) | (indices >= num_features))[0])
        raise StudyError(
            f"{file.path}: attr_indices: entry {entry}: found column {indices[entry]}, expected 0 to "
            f"{num_features - 1}; the file is damaged"
        )
    matrix = csr_matrix((values.astype(np.float32), indices, indptr), shape=(num_nodes, num_features))
    return FeatureBlocks.from_rows(matrix, f"{file.path}: attr_data")


def _dense_features(file: NpzFile, name: str, num_nodes: int) -> FeatureBlocks:
    rows = file.array(name)
    if rows.ndim != 2 or rows.shape[0] != num_nodes or rows.dtype.kind not in "fiub":
        raise StudyError(
            f"{file.path}: {name}: found {rows.dtype} {list(rows.shape)}, expected numbers [{num_nodes}, "
            "num_features], one row per node; the file is damaged"
        )
    return FeatureBlocks.from_rows(rows, f"{file.path}: {name}")


def _split(file: NpzFile, num_nodes: int, index: int) -> np.ndarray | None:
    """The chosen split, or None where the file has none."""
    if not any(name in file for name in MASKS.values()):
        return None
    members = {}
    for value, name in MASKS.items():
        masks = file.array(name)
        masks = masks[None] if masks.ndim == 1 else masks
        if masks.ndim != 2 or masks.shape[1] != num_nodes or not np.isin(masks, (0, 1)).all():
            raise StudyError(
                f"{file.path}: {name}: found {masks.dtype} {list(masks.shape)}, expected true or false [splits, "
                f"{num_nodes}], one per node; the file is damaged"
            )
        if index >= len(masks):
            raise StudyError(
                f"split_index: found {index}, expected 0 to {len(masks) - 1}, the splits in {file.path}; correct it"
            )
        members[value] = masks[index].astype(bool)
    return split_from(members, num_nodes, str(file.path))


def _num_nodes(file: NpzFile) -> int:
    name = "labels" if _layout(file) == "gnn-benchmark" else "node_labels"
    shape = file.header(name)[0]
    if len(shape) not in (1, 2):
        raise StudyError(f"{file.path}: {name}: found shape {list(shape)}, expected one label per node")
    return shape[0]


def num_nodes_of(options: Options) -> int | None:
    """Nodes by the header of the labels, of a local file."""
    if "path" not in options:
        return None
    with NpzFile(given_path(options)) as file:
        return _num_nodes(file)


def check(options: Options) -> None:
    check_file_options(options)
    check_fractions(options["train_fraction"], options["val_fraction"])


def _resources(options: Options) -> dict[str, int]:
    if "path" not in options:
        return {"mem_mb": 8000, "disk_mb": 8000}
    with NpzFile(given_path(options)) as file:
        num_nodes = _num_nodes(file)
        sizes = {name: math.prod(file.header(name)[0]) for name in file.names}
        if _layout(file) == "heterophilous":
            entries, num_features = sizes["edges"] // 2, _columns(file.header("node_features"))
        else:
            entries = sizes["adj_indices"]
            num_features = (
                int(file.array("attr_shape")[1]) if "attr_shape" in file else _columns(file.header("attr_matrix"))
            )
    return estimate(num_nodes, entries, num_features, options, extra_memory_bytes=16 * sum(sizes.values()))


def _columns(header: Any) -> int:
    return header[0][-1] if header[0] else 0


SOURCE = SourceInfo(
    name="npz",
    summary="a .npz file in the gnn-benchmark or the heterophilous-graphs layout",
    schema=source_schema(_PROPERTIES),
    read=read,
    num_nodes=num_nodes_of,
    resources=_resources,
    check=check,
    downloads=lambda options: file_download(options, zipped=True),
)

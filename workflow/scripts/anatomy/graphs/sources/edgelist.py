"""`edgelist`: the text format of SNAP, one edge `source target` per line, with optional labels and features.

Lines that begin with # or % are comments. Ids are kept, so one that does not occur is a node without edges.
"""

from pathlib import Path

import numpy as np

from anatomy.errors import StudyError
from anatomy.graphs import edges
from anatomy.graphs.blocks import FeatureBlocks
from anatomy.graphs.checks import count_classes, labels_from
from anatomy.graphs.files_given import check_file_options, checked_path, file_download, file_options, given_path
from anatomy.graphs.made import MADE_OPTIONS
from anatomy.graphs.options import Download, Options, SourceInfo, estimate, source_schema
from anatomy.graphs.raw import RawGraph
from anatomy.graphs.splits import SPLIT_OPTIONS, check_fractions
from anatomy.graphs.text import IntegerLines, read_integer_lines, text_size

PREFIXES = ("", "labels_", "features_")
MAX_NODES_PER_ENTRY = 1000
"""Above this many nodes for each edge, a large id is taken for damage rather than for a sparse numbering."""

_PROPERTIES = {
    **file_options("", "the graph"),
    **file_options("labels_", "the labels (lines of: node label)"),
    **file_options("features_", "the features (.npy, [num_nodes, num_features])"),
    "num_nodes": {
        "type": "integer",
        "minimum": 1,
        "description": "nodes; edgelist: one more than the largest id by default",
    },
    **MADE_OPTIONS,
    **SPLIT_OPTIONS,
}


def read(options: Options, scratch: Path) -> RawGraph:
    """Read edges, labels, features. Raises StudyError for what is no pair, or an id or length that does not fit."""
    path = checked_path(options)
    lines = _pairs(path)
    label_lines = _pairs(checked_path(options, "labels_")) if _given(options, "labels_") else None
    num_nodes = options.get("num_nodes") or _count_nodes(lines, label_lines)
    packed = edges.pack(lines.values[0::2], lines.values[1::2], num_nodes, lambda i: lines.line_of(2 * i))
    labels = _labels(label_lines, num_nodes) if label_lines is not None else None
    return RawGraph(
        file=str(path),
        num_nodes=num_nodes,
        edges=packed,
        features=_features(checked_path(options, "features_"), num_nodes) if _given(options, "features_") else None,
        labels=labels,
        num_classes=count_classes(labels, str(label_lines.path)) if labels is not None else None,
    )


def _given(options: Options, prefix: str) -> bool:
    return f"{prefix}path" in options or f"{prefix}url" in options


def _pairs(path: Path) -> IntegerLines:
    """The pairs of a file, blank lines left out."""
    lines = read_integer_lines(path, comments="#%")
    wrong = np.flatnonzero((lines.counts != 2) & (lines.counts != 0))
    if len(wrong):
        raise StudyError(
            f"{path}: line {lines.line_numbers[wrong[0]]}: found {lines.counts[wrong[0]]} numbers, expected 2; remove "
            "further columns, such as weights or times, first"
        )
    if len(lines.values) == 0:
        raise StudyError(f"{path}: found no line of two numbers, expected at least one; is this the right file?")
    return lines


def _count_nodes(lines: IntegerLines, label_lines: IntegerLines | None) -> int:
    largest = int(lines.values.max())
    listed = len(lines.values)
    if label_lines is not None:
        largest = max(largest, int(label_lines.values[0::2].max()))
        listed += len(label_lines.values)
    if largest >= MAX_NODES_PER_ENTRY * listed:
        place = lines.line_of(int(lines.values.argmax()))
        raise StudyError(
            f"{place}: found node id {largest} among {listed} ids, expected ids numbered from 0; renumber them, or "
            "state num_nodes if nearly all nodes are isolated"
        )
    return largest + 1


def _labels(lines: IntegerLines, num_nodes: int) -> np.ndarray:
    nodes, values = lines.values[0::2], lines.values[1::2]
    edges.check_ids(nodes, num_nodes, lambda i: lines.line_of(2 * i))
    order = np.argsort(nodes, kind="stable")
    repeated = np.flatnonzero(nodes[order][1:] == nodes[order][:-1])
    if len(repeated):
        second = int(order[repeated[0] + 1])
        raise StudyError(
            f"{lines.line_of(2 * second)}: found a second label of node {nodes[second]}, expected one; remove a line"
        )
    labels = np.full(num_nodes, -1, dtype=np.int64)
    labels[nodes] = values
    return labels_from(labels, num_nodes, str(lines.path))


def _features(path: Path, num_nodes: int) -> FeatureBlocks:
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise StudyError(
            f"{path}: found no readable .npy array ({error}), expected one of numbers; write it again"
        ) from error
    real = isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.dtype.kind in "fiub"
    if not real or rows.shape[0] != num_nodes or rows.shape[1] == 0:
        found = f"{rows.dtype} {list(rows.shape)}" if isinstance(rows, np.ndarray) else "an archive"
        raise StudyError(
            f"{path}: found {found}, expected numbers [{num_nodes}, num_features], one row per node; correct the file"
        )
    return FeatureBlocks.from_rows(rows, str(path))


def check(options: Options) -> None:
    for prefix in PREFIXES:
        check_file_options(options, prefix, required=not prefix)
    check_fractions(options["train_fraction"], options["val_fraction"])


def _downloads(options: Options) -> list[Download]:
    return [download for prefix in PREFIXES for download in file_download(options, prefix)]


def _resources(options: Options) -> dict[str, int]:
    if "path" not in options:
        return {"mem_mb": 8000, "disk_mb": 4000}
    size = text_size(given_path(options))
    # Four bytes are the least that an edge takes, and as a rule each node has one.
    num_nodes = options.get("num_nodes") or size // 4
    features = 2 * given_path(options, "features_").stat().st_size if "features_path" in options else 0
    return estimate(num_nodes, size // 4, options["make_num_features"], options, 16 * size, extra_disk_bytes=features)


SOURCE = SourceInfo(
    name="edgelist",
    summary="an edge list in the text format of SNAP, with optional labels and features",
    schema=source_schema(_PROPERTIES),
    read=read,
    num_nodes=lambda options: options.get("num_nodes"),
    resources=_resources,
    check=check,
    downloads=_downloads,
)

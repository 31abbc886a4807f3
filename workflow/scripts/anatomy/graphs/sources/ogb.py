"""`ogb`: node property prediction datasets of the Open Graph Benchmark, read from the archives that ogb downloads.

Hu et al., "Open Graph Benchmark: datasets for machine learning on graphs", NeurIPS 2020. The archive is read as it is,
member by member and piece by piece; ogb is asked for its catalogue only, so nothing prompts, and nothing but
`fetch_source.py` uses a network.
"""

import gzip
import logging
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from anatomy.errors import StudyError
from anatomy.graphs import edges, ogb_catalogue
from anatomy.graphs.archives import Archive
from anatomy.graphs.blocks import FeatureBlocks, rows_per_block, slices
from anatomy.graphs.checks import labels_from
from anatomy.graphs.files_given import checked_path, given_path
from anatomy.graphs.npz_file import NpzFile
from anatomy.graphs.ogb_catalogue import SIZES, Dataset
from anatomy.graphs.options import Download, Options, SourceInfo, estimate, source_schema
from anatomy.graphs.raw import RawGraph
from anatomy.graphs.splits import TEST, TRAIN, VAL, split_from

log = logging.getLogger(__name__)

SPLIT_FILES = {TRAIN: "train", VAL: "valid", TEST: "test"}
EDGES_PER_PIECE = 1 << 21

_PROPERTIES = {
    "dataset": {"type": "string", "enum": list(SIZES), "description": "name of the dataset"},
    "mirror": {
        "type": "string",
        "pattern": "^(https?://|file:).+",
        "description": "address of a folder that holds the archive, instead of ogb's own server",
    },
    "archive": {
        "type": "string",
        "minLength": 1,
        "description": "the archive as a local .zip file; nothing is fetched",
    },
    "sha256": {
        "type": "string",
        "pattern": "^[0-9a-fA-F]{64}$",
        "description": "SHA-256 of the graph; optional for a path, where it is checked as well",
    },
}


def read(options: Options, scratch: Path) -> RawGraph:
    """Read the archive. Raises StudyError where a member is absent, damaged or does not fit the others."""
    dataset = ogb_catalogue.dataset(options["dataset"])
    path = checked_path(options, option="archive")
    with Archive(path, dataset.folder) as archive:
        parts = _read_binary(archive, scratch) if dataset.binary else _read_csv(archive)
        num_nodes, packed, features, label_values, label_place = parts
        split = _read_split(archive, dataset, num_nodes)
    return RawGraph(
        file=str(path),
        num_nodes=num_nodes,
        edges=packed,
        features=features,
        labels=labels_from(label_values, num_nodes, label_place, dataset.num_classes),
        num_classes=dataset.num_classes,
        split=split,
        listed_once=dataset.listed_once,
        evaluator=dataset.name,
        packages=["ogb", "pandas"],
        notes=_size_notes(dataset.name, num_nodes, len(packed)),
    )


def address(options: Options) -> str:
    """Where the archive is fetched from."""
    url = ogb_catalogue.dataset(options["dataset"]).url
    return f"{options['mirror'].rstrip('/')}/{url.rpartition('/')[2]}" if "mirror" in options else url


def _read_csv(archive: Archive) -> tuple[int, np.ndarray, FeatureBlocks, np.ndarray, str]:
    num_nodes = _single(archive, "raw/num-node-list.csv.gz")
    num_edges = _single(archive, "raw/num-edge-list.csv.gz")
    member = "raw/edge.csv.gz"
    packed = np.empty(num_edges, dtype=np.int64)
    pieces = ((piece[:, 0], piece[:, 1]) for piece in _csv(archive, member, np.int64, EDGES_PER_PIECE, columns=2))
    filled = edges.fill(packed, pieces, num_nodes, lambda i: f"{archive.place(member)}: line {i + 1}")
    if filled != num_edges:
        raise StudyError(
            f"{archive.place(member)}: found {filled} edges, expected {num_edges}; run fetch_source.py again"
        )
    labels = "raw/node-label.csv.gz"
    label_values = np.concatenate([np.empty((0, 1)), *_csv(archive, labels, np.float64, EDGES_PER_PIECE, columns=1)])
    return num_nodes, packed, _csv_features(archive, num_nodes), label_values, archive.place(labels)


def _csv_features(archive: Archive, num_nodes: int) -> FeatureBlocks:
    """The features, to be read while they are written; one row is read now to learn how many they are."""
    member = "raw/node-feat.csv.gz"
    num_features = next(_csv(archive, member, np.float32, 1), np.empty((0, 0))).shape[1]
    path, folder = archive.path, archive.folder

    def blocks() -> Iterator[np.ndarray]:
        with Archive(path, folder) as again:
            yield from _csv(again, member, np.float32, rows_per_block(num_features), columns=num_features)

    return FeatureBlocks(num_nodes, num_features, blocks, archive.place(member))


def _read_binary(archive: Archive, scratch: Path) -> tuple[int, np.ndarray, FeatureBlocks, np.ndarray, str]:
    """The layout of papers100M. Arrays are unpacked to `scratch` and mapped, since they may exceed memory."""
    data_file = archive.copy("raw/data.npz", scratch / "data.npz")
    place = archive.place("raw/data.npz")
    with NpzFile(data_file) as data:
        num_nodes = _only(data.array("num_nodes_list"), f"{place}: num_nodes_list")
        num_edges = _only(data.array("num_edges_list"), f"{place}: num_edges_list")
        ends = data.extract("edge_index", scratch)
        rows = data.extract("node_feat", scratch)
    data_file.unlink()
    if ends.shape != (2, num_edges) or ends.dtype.kind not in "iu":
        raise StudyError(
            f"{place}: edge_index: found {ends.dtype} {list(ends.shape)}, expected whole numbers [2, {num_edges}]"
        )
    if rows.ndim != 2 or len(rows) != num_nodes or rows.dtype.kind not in "fiu":
        raise StudyError(
            f"{place}: node_feat: found {rows.dtype} {list(rows.shape)}, expected numbers [{num_nodes}, num_features]"
        )
    packed = np.empty(num_edges, dtype=np.int64)
    pieces = ((ends[0, piece], ends[1, piece]) for piece in slices(num_edges))
    edges.fill(packed, pieces, num_nodes, lambda i: f"{place}: edge_index: column {i}")
    with NpzFile(archive.copy("raw/node-label.npz", scratch / "node-label.npz")) as labels:
        label_values = labels.array("node_label")
    features = FeatureBlocks.from_rows(rows, f"{place}: node_feat")
    return num_nodes, packed, features, label_values, archive.place("raw/node-label.npz") + ": node_label"


def _read_split(archive: Archive, dataset: Dataset, num_nodes: int) -> np.ndarray:
    folder = f"split/{dataset.split}"
    members = {}
    for value, name in SPLIT_FILES.items():
        pieces = list(_csv(archive, f"{folder}/{name}.csv.gz", np.int64, EDGES_PER_PIECE, columns=1))
        members[value] = np.concatenate([np.empty((0, 1), dtype=np.int64), *pieces])[:, 0]
    return split_from(members, num_nodes, archive.place(folder))


def _csv(archive: Archive, member: str, dtype: Any, rows: int, columns: int | None = None) -> Iterator[np.ndarray]:
    """A gzipped table of numbers without a header, in pieces [up to `rows`, columns]."""
    import pandas as pd

    place = archive.place(member)
    line = 1
    with archive.open(member) as packed, gzip.open(packed) as text:
        try:
            for frame in pd.read_csv(text, header=None, dtype=dtype, chunksize=rows):
                piece = frame.to_numpy()
                if columns is not None and piece.shape[1] != columns:
                    raise StudyError(f"{place}: line {line}: found {piece.shape[1]} columns, expected {columns}")
                yield piece
                line += len(piece)
        except pd.errors.EmptyDataError:
            return
        except StudyError:
            raise
        except ValueError as error:
            reason = re.sub(r"\s+", " ", str(error)).strip()
            raise StudyError(
                f"{place}: after line {line - 1}: found no numbers ({reason}); run fetch_source.py again"
            ) from error


def _single(archive: Archive, member: str) -> int:
    """The one number in a small member."""
    with archive.open(member) as packed, gzip.open(packed) as text:
        words = text.read(1000).split()
    if not all(word.isdigit() for word in words):
        raise StudyError(
            f"{archive.place(member)}: found {words[0][:60].decode(errors='replace')!r}, expected one count; run "
            "fetch_source.py again"
        )
    return _only(np.array(words, dtype=np.int64), archive.place(member))


def _only(values: np.ndarray, place: str) -> int:
    """The one number that an array holds, since a dataset is one graph."""
    if values.size != 1 or values.dtype.kind not in "iu" or values.ravel()[0] < 0:
        raise StudyError(
            f"{place}: found {values.ravel()[:5].tolist()}, expected one count; the archive should hold one graph"
        )
    return int(values.ravel()[0])


def _size_notes(name: str, num_nodes: int, num_edges: int) -> list[str]:
    """A note where the archive is not the published dataset."""
    published = SIZES[name]
    if (num_nodes, num_edges) == (published.num_nodes, published.num_edges):
        return []
    found, expected = f"{num_nodes} nodes and {num_edges} edges", f"{published.num_nodes} and {published.num_edges}"
    note = f"this archive has {found}, the published {name} {expected}"
    log.warning(note)
    return [note]


def check(options: Options) -> None:
    """Raise StudyError for a direction that the dataset cannot have, or both a mirror and a local archive."""
    if "mirror" in options and "archive" in options:
        raise StudyError("mirror, archive: found both, expected one of them; remove the other")
    if ogb_catalogue.dataset(options["dataset"]).listed_once and options["direction"] != "symmetrise":
        raise StudyError(
            f"direction: found {options['direction']!r}, expected 'symmetrise'; {options['dataset']} lists each "
            "undirected edge once"
        )


def num_nodes_of(options: Options) -> int:
    """Nodes of a local archive where its layout tells cheaply, else of the published dataset."""
    dataset = ogb_catalogue.dataset(options["dataset"])
    if "archive" in options and not dataset.binary:
        with Archive(given_path(options, option="archive"), dataset.folder) as archive:
            return _single(archive, "raw/num-node-list.csv.gz")
    return SIZES[dataset.name].num_nodes


def _resources(options: Options) -> dict[str, int]:
    size = SIZES[options["dataset"]]
    share = 1.0
    if "archive" in options:
        # A much smaller file is a sample in the same layout; doubled, since the published sizes are rounded up.
        share = min(1.0, 2 * given_path(options, option="archive").stat().st_size / (size.archive_mb * 1e6))
    num_nodes, num_edges = math.ceil(share * size.num_nodes), math.ceil(share * size.num_edges)
    unpacked = 0
    if ogb_catalogue.dataset(options["dataset"]).binary:
        unpacked = 2 * (16 * num_edges + 4 * size.num_features * num_nodes)
    return estimate(num_nodes, num_edges, size.num_features, options, 300 << 20, extra_disk_bytes=unpacked)


SOURCE = SourceInfo(
    name="ogb",
    summary="ogbn-arxiv, ogbn-products or ogbn-papers100M of the Open Graph Benchmark",
    schema=source_schema(_PROPERTIES, ["dataset"]),
    read=read,
    num_nodes=num_nodes_of,
    resources=_resources,
    check=check,
    downloads=lambda options: (
        []
        if "archive" in options
        else [Download("archive", "mirror", address(options), options.get("sha256"), zipped=True)]
    ),
)

"""From a source's options to a stored graph."""

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from anatomy.errors import StudyError
from anatomy.graphs import edges, made
from anatomy.graphs.checks import count_classes
from anatomy.graphs.fetch import with_fetched
from anatomy.graphs.policies import apply_policies
from anatomy.graphs.raw import GraphData, RawGraph
from anatomy.graphs.sources import SOURCES, complete_options, resources
from anatomy.graphs.splits import TRAIN, make_split
from anatomy.graphs.store import write_graph

log = logging.getLogger(__name__)


def build_graph(
    options: Mapping[str, Any],
    out: Path,
    name: str | None = None,
    fetched: Path | None = None,
    where: str = "graph options",
) -> dict[str, Any]:
    """Build the graph that `options` describe in the folder `out` and return its manifest. Never touches the network.

    `name` is the folder's by default. `fetched` is the folder that `fetch_source` wrote, for sources with an address.

    Raises StudyError for options or files that are refused, or too little disk space.
    """
    options = complete_options(options, where)
    local = complete_options(with_fetched(options, fetched), where) if fetched is not None else options
    needed = resources(local)
    _require_space(out, needed["disk_mb"])
    log.info("build %s: needs about %d MB of memory and %d MB of disk", out, needed["mem_mb"], needed["disk_mb"])
    with _scratch(out) as scratch:
        manifest = write_graph(out, name or out.resolve().name, options, lambda: _make(local, scratch))
    log.info(
        "built %s: %d nodes, %d stored edges, %d features, %d classes in %.1f s",
        manifest["name"],
        *(manifest[key] for key in ("num_nodes", "num_edges", "num_features", "num_classes", "seconds")),
    )
    return manifest


def _make(options: Mapping[str, Any], scratch: Path) -> GraphData:
    """Read the source, apply the policies and make what is missing."""
    raw = SOURCES[options["source"]].read(options, scratch)
    if raw.num_nodes == 0:
        raise StudyError(f"{raw.file}: found no node, expected at least one; is this the right file?")
    log.info("read %s: %d nodes, %d entries", raw.file, raw.num_nodes, len(raw.edges))
    packed, steps = apply_policies(raw, options["direction"], options["self_loops"], options["duplicates"])
    raw.edges = packed
    for step in steps[1:]:
        log.info("%s (%s): %d added, %d removed", step["step"], step["policy"], step["added"], step["removed"])
    indptr, indices = edges.to_csr(packed, raw.num_nodes)
    return _completed(raw, indptr, indices, options, steps)


def _completed(raw: RawGraph, indptr: Any, indices: Any, options: Mapping[str, Any], steps: list[Any]) -> GraphData:
    """The graph with features, labels and split made where the source lacks them, and told so in `made`."""
    notes: dict[str, str] = {}
    features, labels, split = raw.features, raw.labels, raw.split
    if features is None:
        kind = options["make_features"]
        features = made.make_features(indptr, kind, options["make_num_features"], options["seed"])
        notes["features"] = kind if kind == "degree" else f"{kind}, seed {options['seed']}"
    if labels is None:
        labels, notes["labels"] = made.make_labels(raw.num_nodes), "all 0"
    if split is None:
        keys = ("train_fraction", "val_fraction", "seed", "stratify")
        split = make_split(labels, **{key: options[key] for key in keys})
        notes["split"] = ", ".join(f"{key} {options[key]}" for key in keys)
    unlabelled = np.flatnonzero((split == TRAIN) & (labels < 0))
    if len(unlabelled):
        raise StudyError(
            f"{raw.file}: found training node {unlabelled[0]} without a label, expected one; correct the split"
        )
    return GraphData(
        indptr=indptr,
        indices=indices,
        features=features,
        labels=labels,
        split=split,
        num_classes=raw.num_classes or count_classes(labels, raw.file),
        steps=steps,
        made=notes,
        evaluator=raw.evaluator,
        packages=raw.packages,
        notes=raw.notes,
    )


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """An empty folder below `out`, gone afterwards; one that a killed build left is emptied first."""
    folder = out / ".scratch"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _require_space(out: Path, disk_mb: int) -> None:
    """Raise StudyError where the disk under `out` has less than `disk_mb` free."""
    folder = next(parent for parent in [out.resolve(), *out.resolve().parents] if parent.exists())
    free_mb = shutil.disk_usage(folder).free // 1_000_000
    if free_mb < disk_mb:
        raise StudyError(f"{out}: found {free_mb} MB of free disk space, expected about {disk_mb} MB; make room")

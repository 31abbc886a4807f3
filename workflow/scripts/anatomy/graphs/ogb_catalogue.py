"""What the installed ogb package knows about its datasets, without importing it.

`import ogb` starts a thread that asks the package index for a newer version, and its loaders import torch and DGL. So
its catalogue is read as a file, and its Evaluator is loaded from its file alone.
"""

import csv
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anatomy.errors import StudyError


@dataclass(frozen=True)
class DatasetSize:
    """Published size of a dataset, known before it is fetched: `num_edges` as listed, `archive_mb` rounded up."""

    num_nodes: int
    num_edges: int
    num_features: int
    archive_mb: int


SIZES = {
    "ogbn-arxiv": DatasetSize(169_343, 1_166_243, 128, 90),
    "ogbn-products": DatasetSize(2_449_029, 61_859_140, 100, 1_500),
    "ogbn-papers100M": DatasetSize(111_059_956, 1_615_685_872, 128, 60_000),
}
"""The datasets of the study. Hu et al., "Open Graph Benchmark", 2020, table 2."""


@dataclass(frozen=True)
class Dataset:
    """A line of ogb's catalogue.

    `folder` is the archive's top folder; `binary` says that it holds .npz files instead of CSV; `listed_once` that each
    undirected edge has one entry.
    """

    name: str
    url: str
    folder: str
    num_classes: int
    split: str
    binary: bool
    listed_once: bool


def dataset(name: str) -> Dataset:
    """Look a dataset up in the catalogue of the installed ogb package.

    Raises StudyError where ogb is not installed or does not list the dataset.
    """
    path = _package() / "nodeproppred" / "master.csv"
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    if name not in rows[0]:
        raise StudyError(f"{path}: found no dataset {name!r}, expected one of {', '.join(rows[0][1:])}")
    column = rows[0].index(name)
    facts = {row[0]: row[column] for row in rows}
    return Dataset(
        name=name,
        url=facts["url"],
        folder=facts["download_name"],
        num_classes=int(facts["num classes"]),
        split=facts["split"],
        binary=facts["binary"] == "True",
        listed_once=facts["add_inverse_edge"] == "True",
    )


def evaluator(name: str) -> Any:
    """ogb's own Evaluator for a dataset, made without a network call.

    Its `eval({"y_true": …, "y_pred": …})` takes whole numbers [nodes, 1], arrays or tensors, and returns `{"acc":
    float}`.

    Raises StudyError where ogb is not installed or does not list the dataset.
    """
    dataset(name)
    path = _package() / "nodeproppred" / "evaluate.py"
    spec = importlib.util.spec_from_file_location("ogb_nodeproppred_evaluate", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Evaluator(name=name)


def _package() -> Path:
    """The folder of the installed ogb package, which is found but not imported."""
    spec = importlib.util.find_spec("ogb")
    if spec is None or not spec.submodule_search_locations:
        raise StudyError(
            "ogb: not installed, expected the package ogb of envs/requirements.lock; create the environment again"
        )
    return Path(spec.submodule_search_locations[0])

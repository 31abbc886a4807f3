"""SNAP edge lists, with labels and features."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anatomy.errors import StudyError
from anatomy.graphs.sources import known_num_nodes
from anatomy.graphs.store import Graph

Build = Callable[..., Graph]
EdgesOf = Callable[[Graph], list[tuple[int, int]]]


def write(tmp_path: Path, name: str, text: str) -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


@pytest.mark.shared_data
def test_email_eu_core(build: Build, shared_data: Path) -> None:
    """25,571 directed edges of which 642 self-loops; 1,005 nodes; 42 departments; no features."""
    files = {
        "path": str(shared_data / "graphs/email-Eu-core.txt"),
        "labels_path": str(shared_data / "graphs/email-Eu-core-department-labels.txt"),
    }
    graph = build(source="edgelist", **files, direction="keep")
    assert (graph.num_nodes, graph.num_edges, graph.num_classes) == (1_005, 25_571 - 642, 42)
    assert graph.manifest["steps"][:3] == [
        {"step": "read", "policy": "as listed", "added": 25_571, "removed": 0},
        {"step": "self_loops", "policy": "remove", "added": 0, "removed": 642},
        {"step": "duplicates", "policy": "merge", "added": 0, "removed": 0},
    ]
    assert graph.manifest["made"].keys() == {"features", "split"}
    assert build(source="edgelist", **files, direction="keep", self_loops="keep").num_edges == 25_571


def test_comments_blank_lines_and_gaps(build: Build, edges_of: EdgesOf, tmp_path: Path) -> None:
    """Ids are kept: 0 and 2 do not occur, and are nodes all the same."""
    path = write(tmp_path, "e.txt", "# FromNodeId\tToNodeId\n\n1\t3\n  % more\n3 1\n1 3\n")
    graph = build(source="edgelist", path=path, direction="keep")
    assert edges_of(graph) == [(1, 3), (3, 1)]
    assert graph.num_nodes == 4
    assert graph.manifest["steps"][2]["removed"] == 1


def test_labels_and_features(build: Build, tmp_path: Path) -> None:
    rows = np.arange(8, dtype=np.float64).reshape(4, 2)
    np.save(tmp_path / "f.npy", rows)
    graph = build(
        source="edgelist",
        path=write(tmp_path, "e.txt", "0 1\n"),
        labels_path=write(tmp_path, "l.txt", "# node label\n3 2\n0 0\n1 1\n"),
        features_path=str(tmp_path / "f.npy"),
        stratify=False,
    )
    assert graph.labels.tolist() == [0, 1, -1, 2]
    assert graph.features.tolist() == rows.tolist()
    assert (graph.num_classes, graph.split[2]) == (3, -1)
    assert graph.manifest["made"].keys() == {"split"}


def test_made_features(build: Build, tmp_path: Path) -> None:
    """A star of 7 leaves: the hub has degree 7, column log2(8) = 3; a leaf log2(2) = 1; an isolated node 0."""
    path = write(tmp_path, "e.txt", "".join(f"0 {leaf}\n" for leaf in range(1, 8)))
    graph = build(source="edgelist", path=path, num_nodes=9, make_num_features=3)
    assert graph.features.argmax(1).tolist() == [2] + [1] * 7 + [0], "the hub's column 3 does not exist: the last"
    assert graph.features.sum(1).tolist() == [1] * 9
    random = build(source="edgelist", path=path, make_features="random", seed=4)
    again = build(source="edgelist", path=path, make_features="random", seed=4)
    assert random.features.shape == (8, 16)
    assert random.identity == again.identity
    assert random.manifest["made"]["features"] == "random, seed 4"
    assert random.manifest["made"]["labels"] == "all 0"


@pytest.mark.parametrize(
    ("edges", "labels", "options", "message"),
    [
        ("0 1\n1 2 5\n", None, {}, r"e\.txt: line 2: found 3 numbers, expected 2"),
        ("0 1\n1\n", None, {}, r"e\.txt: line 2: found 1 numbers, expected 2"),
        ("0 1\n1 -2\n", None, {}, r"e\.txt: line 2: found '1 -2', expected whole numbers that are not negative"),
        ("0 1\n1 2.5\n", None, {}, r"e\.txt: line 2: found '1 2.5'"),
        ("# c\n0 1\n1 5\n", None, {"num_nodes": 5}, r"e\.txt: line 3: found node id 5, expected 0 to 4"),
        ("0 1\n9999999999 1\n", None, {}, r"e\.txt: line 2: found node id 9999999999 among 4 ids"),
        ("# nothing\n", None, {}, r"e\.txt: found no line of two numbers"),
        ("0 1\n", "0 0\n1 0\n0 1\n", {}, r"l\.txt: line 3: found a second label of node 0"),
        ("0 1\n", "0 0\n7 0\n", {"num_nodes": 3}, r"l\.txt: line 2: found node id 7, expected 0 to 2"),
        ("0 1\n", "0 0\n1 88\n", {}, r"l\.txt: node 1: found label 88, expected a whole number from 0 to 1"),
        ("0 1\n", "0 -4\n", {}, r"l\.txt: line 1: found '0 -4'"),
    ],
)
def test_damaged_files(
    build: Build, tmp_path: Path, edges: str, labels: str | None, options: dict[str, Any], message: str
) -> None:
    if labels is not None:
        options = options | {"labels_path": write(tmp_path, "l.txt", labels)}
    with pytest.raises(StudyError, match=message):
        build(source="edgelist", path=write(tmp_path, "e.txt", edges), **options)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([[1, 2], [np.nan, 4]]), r"f\.npy: node 1, feature 0: found nan"),
        (np.zeros((3, 2)), r"f\.npy: found float64 \[3, 2\], expected numbers \[2, num_features\]"),
        (np.zeros(2), r"f\.npy: found float64 \[2\], expected numbers \[2, num_features\]"),
        (np.array([["a"], ["b"]]), r"f\.npy: found <U1 \[2, 1\], expected numbers"),
        (np.array([[None], [None]]), r"f\.npy: found no readable \.npy array"),
    ],
)
def test_damaged_features(build: Build, tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "f.npy", array)
    with pytest.raises(StudyError, match=message):
        build(source="edgelist", path=write(tmp_path, "e.txt", "0 1\n"), features_path=str(tmp_path / "f.npy"))


def test_node_count_is_known_where_it_is_stated(tmp_path: Path) -> None:
    options = {"source": "edgelist", "path": write(tmp_path, "e.txt", "0 1\n")}
    assert known_num_nodes(options) is None
    assert known_num_nodes(options | {"num_nodes": 12}) == 12

"""METIS graphs: real ones against their headers, weights, and files that lie."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from anatomy.errors import StudyError
from anatomy.graphs.sources import known_num_nodes, resources
from anatomy.graphs.store import Graph

Build = Callable[..., Graph]
EdgesOf = Callable[[Graph], list[tuple[int, int]]]

PATH_OF_THREE = [(0, 1), (1, 0), (1, 2), (2, 1)]


def write(tmp_path: Path, text: str) -> str:
    (tmp_path / "small.graph").write_text(text)
    return str(tmp_path / "small.graph")


@pytest.mark.shared_data
@pytest.mark.parametrize(("name", "num_nodes", "num_edges"), [("4elt", 15_606, 45_878), ("mdual", 258_569, 513_132)])
def test_real_graphs(build: Build, shared_data: Path, name: str, num_nodes: int, num_edges: int) -> None:
    options = {"source": "metis", "path": str(shared_data / f"metis/{name}.graph")}
    graph = build(**options)
    assert (graph.num_nodes, graph.num_edges, graph.num_classes) == (num_nodes, 2 * num_edges, 1)
    assert all(step["added"] == step["removed"] == 0 for step in graph.manifest["steps"][1:])
    assert graph.manifest["made"].keys() == {"features", "labels", "split"}
    assert known_num_nodes(options) == num_nodes
    assert resources(options)["mem_mb"] < 2000


def test_comments_and_isolated_vertices(build: Build, edges_of: EdgesOf, tmp_path: Path) -> None:
    """Vertex 3 of 4 has no neighbours, which is a blank line; comments may stand anywhere."""
    graph = build(source="metis", path=write(tmp_path, "% made by hand\n4 2\n2\n % inner\n1 4\n\n2"))
    assert edges_of(graph) == [(0, 1), (1, 0), (1, 3), (3, 1)]
    assert np.diff(graph.indptr).tolist() == [1, 2, 0, 1]
    assert known_num_nodes({"source": "metis", "path": str(tmp_path / "small.graph")}) == 4


def test_windows_line_ends_and_gzip(build: Build, edges_of: EdgesOf, tmp_path: Path) -> None:
    path = tmp_path / "small.graph.gz"
    path.write_bytes(gzip.compress(b"3 2\r\n2\r\n1 3\r\n2\r\n\r\n"))
    assert edges_of(build(source="metis", path=str(path))) == PATH_OF_THREE
    assert known_num_nodes({"source": "metis", "path": str(path)}) == 3
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(StudyError, match="found a damaged gzip file"):
        build(source="metis", path=str(path))


@pytest.mark.parametrize(
    ("layout", "lines"),
    [
        ("1", ["2 7", "1 7 3 9", "2 9"]),
        ("001", ["2 7", "1 7 3 9", "2 9"]),
        ("10", ["5 2", "6 1 3", "7 2"]),
        ("010 2", ["5 5 2", "6 6 1 3", "7 7 2"]),
        ("11", ["5 2 7", "6 1 7 3 9", "7 2 9"]),
        ("100", ["4 2", "4 1 3", "4 2"]),
        ("111 2", ["4 5 5 2 7", "4 6 6 1 7 3 9", "4 7 7 2 9"]),
    ],
)
def test_weights_are_refused_or_dropped(
    build: Build, edges_of: EdgesOf, tmp_path: Path, layout: str, lines: list[str]
) -> None:
    """fmt has three digits: vertex sizes, vertex weights (ncon of them), edge weights."""
    path = write(tmp_path, "\n".join([f"3 2 {layout}", *lines]) + "\n")
    with pytest.raises(StudyError, match=r"small\.graph: header: found fmt [01]{3}, that is weights"):
        build(source="metis", path=path)
    graph = build(source="metis", path=path, weights="drop")
    assert edges_of(graph) == PATH_OF_THREE
    assert graph.manifest["notes"][0].startswith("weights of the source dropped (fmt ")


def test_self_loops_are_left_to_the_policy(build: Build, tmp_path: Path) -> None:
    """Vertex 1 lists itself twice, as an edge to itself: 2 * 2 entries, of which the policy removes 2."""
    graph = build(source="metis", path=write(tmp_path, "2 2\n1 1 2\n1\n"))
    assert graph.manifest["steps"][1] == {"step": "self_loops", "policy": "remove", "added": 0, "removed": 2}
    assert graph.num_edges == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3 3\n2\n1 3\n2\n", "found 4 entries, expected 6, two for each of the 3 edges"),
        ("4 2\n2\n1 3\n2\n", "found 3 vertex lines, expected 4"),
        ("2 2\n2\n1 3\n2\n", "found 3 vertex lines, expected 2"),
        ("3 2\n2\n1 4\n2\n", "line 3: found neighbour 4, expected 1 to 3"),
        ("3 2\n2\n1 0\n2\n", "line 3: found neighbour 0, expected 1 to 3"),
        ("% c\n3 2\n2\n1 -3\n2\n", "line 4: found '1 -3', expected whole numbers that are not negative"),
        ("3 2\n2\n1 x\n2\n", "line 3: found '1 x'"),
        ("3 2\n2\n1 3.0\n2\n", "line 3: found '1 3.0'"),
        ("3 2\n2 3\n1\n2\n", "found an edge between vertices 1 and 3 in one of their lines only"),
        ("3\n2\n1 3\n2\n", "header: found 3, expected: vertices edges"),
        ("3 2 7\n2\n1 3\n2\n", "header: found 3 2 7, expected: vertices edges"),
        ("3 2 1 1 1\n2\n1 3\n2\n", "header: found 3 2 1 1 1"),
        ("3 2 1\n2 7\n1 7 3\n2 9\n", "line 3: found 3 numbers, which does not fit the weights"),
        ("999999999999 1\n2\n1\n", "found 2 vertex lines, expected 999999999999"),
        ("0 0\n", "found no node, expected at least one"),
        ("\n", "header: found nothing"),
        ("% only\n", "header: found nothing"),
        ("<html>\n", "header: found '<html>', expected whole numbers"),
    ],
)
def test_damaged_files(build: Build, tmp_path: Path, text: str, message: str) -> None:
    weights = "drop" if text.startswith("3 2 1\n") else "refuse"
    with pytest.raises(StudyError, match=rf"small\.graph: ({message})"):
        build(source="metis", path=write(tmp_path, text), weights=weights)


def test_node_count_of_a_file_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="header: found '<html>', expected whole numbers"):
        known_num_nodes({"source": "metis", "path": write(tmp_path, "<html>")})

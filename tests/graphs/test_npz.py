"""The two .npz layouts: real files against their published facts, and damaged ones against their messages."""

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anatomy.errors import StudyError
from anatomy.graphs.sources import complete_options, known_num_nodes, resources
from anatomy.graphs.store import Graph

Build = Callable[..., Graph]
EdgesOf = Callable[[Graph], list[tuple[int, int]]]


def benchmark_arrays() -> dict[str, Any]:
    """0→1, 1→2, 2→0, 2→2 with 3 features and classes 0, 1, 1."""
    return {
        "adj_data": np.ones(4, np.float32),
        "adj_indices": np.array([1, 2, 0, 2], np.int32),
        "adj_indptr": np.array([0, 1, 2, 4], np.int32),
        "adj_shape": np.array([3, 3]),
        "attr_data": np.array([1, 2, 3], np.float32),
        "attr_indices": np.array([0, 2, 1], np.int32),
        "attr_indptr": np.array([0, 1, 2, 3], np.int32),
        "attr_shape": np.array([3, 3]),
        "labels": np.array([0, 1, 1]),
    }


def heterophilous_arrays() -> dict[str, Any]:
    """0 - 1 - 2 with 2 features and two splits."""
    return {
        "edges": np.array([[0, 1], [2, 1]]),
        "node_features": np.arange(6, dtype=np.float32).reshape(3, 2),
        "node_labels": np.array([0, 1, 0]),
        "train_masks": np.array([[1, 0, 0], [0, 0, 1]], bool),
        "val_masks": np.array([[0, 1, 0], [0, 1, 0]], bool),
        "test_masks": np.array([[0, 0, 1], [1, 0, 0]], bool),
    }


def save(tmp_path: Path, arrays: dict[str, Any]) -> str:
    path = tmp_path / "small.npz"
    np.savez_compressed(path, **arrays)
    return str(path)


def edge_steps(graph: Graph) -> dict[str, tuple[int, int]]:
    return {step["step"]: (step["added"], step["removed"]) for step in graph.manifest["steps"]}


@pytest.mark.shared_data
def test_coauthor_cs(build: Build, shared_data: Path) -> None:
    """163,788 stored entries = 81,894 undirected edges; no self-loop; symmetric; no split."""
    graph = build(source="npz", path=str(shared_data / "graphs/coauthor_cs.npz"))
    assert (graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes) == (18_333, 163_788, 6_805, 15)
    nothing = (0, 0)
    assert edge_steps(graph) == {
        "read": (163_788, 0),
        "self_loops": nothing,
        "duplicates": nothing,
        "symmetrise": nothing,
    }
    assert graph.num_edges == 2 * 81_894
    assert np.count_nonzero(graph.features) == 1_092_079
    assert "split" in graph.manifest["made"]
    assert graph.manifest["split"]["none"] == 0


@pytest.mark.shared_data
def test_amazon_photo(build: Build, shared_data: Path) -> None:
    """143,663 entries, not symmetric, 1 self-loop; 119,081 undirected edges, so 2 * 119,081 - 143,662 are added."""
    path = str(shared_data / "graphs/amazon_photo.npz")
    graph = build(source="npz", path=path)
    assert (graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes) == (7_650, 2 * 119_081, 745, 8)
    assert edge_steps(graph) == {
        "read": (143_663, 0),
        "self_loops": (0, 1),
        "duplicates": (0, 0),
        "symmetrise": (2 * 119_081 - 143_662, 0),
    }
    assert "split" in graph.manifest["made"]
    assert build(source="npz", path=path, direction="keep", self_loops="keep").num_edges == 143_663


@pytest.mark.shared_data
def test_tolokers(build: Build, shared_data: Path) -> None:
    """519,000 edges, each listed once; 10 splits."""
    path = str(shared_data / "graphs/tolokers.npz")
    graphs = [build(source="npz", path=path, split_index=index) for index in (0, 9)]
    for graph in graphs:
        assert (graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes) == (11_758, 1_038_000, 10, 2)
        assert edge_steps(graph)["symmetrise"] == (519_000, 0)
        assert graph.manifest["split"] == {"train": 5_879, "val": 2_939, "test": 2_940, "none": 0}
        assert graph.manifest["made"] == {}
    assert (graphs[0].split != graphs[1].split).any()
    with pytest.raises(StudyError, match="split_index: found 10, expected 0 to 9"):
        build(source="npz", path=path, split_index=10)


@pytest.mark.shared_data
def test_a_heterogeneous_graph_is_refused(build: Build, shared_data: Path) -> None:
    with pytest.raises(StudyError, match=r"acm_hetero\.npz: found a heterogeneous graph .*edges_paper__author"):
        build(source="npz", path=str(shared_data / "graphs/acm_hetero.npz"))


@pytest.mark.shared_data
def test_size_is_known_before_the_start(shared_data: Path) -> None:
    options = {"source": "npz", "path": str(shared_data / "graphs/coauthor_cs.npz")}
    assert known_num_nodes(options) == 18_333
    assert resources(options)["disk_mb"] > 18_333 * 6_805 * 4 / 1e6


def test_benchmark_layout(build: Build, edges_of: EdgesOf, tmp_path: Path) -> None:
    """An entry at row u, column v is the edge u → v, so v aggregates u."""
    path = save(tmp_path, benchmark_arrays())
    kept = build(source="npz", path=path, direction="keep", self_loops="keep")
    assert edges_of(kept) == [(0, 1), (1, 2), (2, 0), (2, 2)]
    assert kept.features.tolist() == [[1, 0, 0], [0, 0, 2], [0, 3, 0]]
    assert kept.labels.tolist() == [0, 1, 1]
    turned = build(source="npz", path=path, direction="reverse")
    assert edges_of(turned) == [(0, 2), (1, 0), (2, 1)]


def test_benchmark_layout_with_dense_features(build: Build, tmp_path: Path) -> None:
    arrays = {key: value for key, value in benchmark_arrays().items() if not key.startswith("attr")}
    graph = build(source="npz", path=save(tmp_path, arrays | {"attr_matrix": np.full((3, 2), 0.5)}))
    assert graph.features.tolist() == [[0.5, 0.5]] * 3
    assert known_num_nodes({"source": "npz", "path": str(tmp_path / "small.npz")}) == 3


def test_heterophilous_layout(build: Build, edges_of: EdgesOf, tmp_path: Path) -> None:
    path = save(tmp_path, heterophilous_arrays())
    graph = build(source="npz", path=path, split_index=1)
    assert edges_of(graph) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    assert graph.split.tolist() == [2, 1, 0]
    with pytest.raises(StudyError, match="direction: found 'keep', expected 'symmetrise'"):
        build(source="npz", path=path, direction="keep")


def test_unlabelled_nodes_are_in_no_split(build: Build, tmp_path: Path) -> None:
    graph = build(
        source="npz", path=save(tmp_path, benchmark_arrays() | {"labels": np.array([0, -1, 1])}), stratify=False
    )
    assert graph.labels.tolist() == [0, -1, 1]
    assert graph.split[1] == -1


class Bomb:
    """Fails the test if it is ever unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle was loaded",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adj_indices": [1, 3, 0, 2]}, "adj_indices: entry 1: found node id 3, expected 0 to 2"),
        ({"adj_indices": [1, -2, 0, 2]}, "adj_indices: entry 1: found node id -2, expected 0 to 2"),
        ({"adj_indptr": [0, 1, 2, 5]}, "adj_indptr: found offsets from 0 to 5, expected rising ones from 0 to 4"),
        ({"adj_indptr": [0, 2, 1, 4]}, "adj_indptr: found offsets from 0 to 4, expected rising"),
        ({"adj_indptr": [0, 1, 4]}, r"adj_indptr: found int64 \[3\], expected whole numbers \[4\]"),
        ({"adj_shape": [4, 4]}, "adj_shape: found 4 rows, expected 3"),
        ({"adj_data": [1, 1, 0.5, 1]}, "adj_data: entry 2: found weight 0.5, expected 1; set weights to drop"),
        ({"attr_indices": [0, 7, 1]}, "attr_indices: entry 1: found column 7, expected 0 to 2"),
        ({"attr_data": [1, np.nan, 3]}, "attr_data: node 1, feature 2: found nan, expected a finite number"),
        ({"attr_data": [1, 2]}, r"attr_data: found int64 \[2\], expected numbers \[3\]"),
        ({"labels": [0, 1, 900]}, "labels: node 2: found label 900, expected a whole number from 0 to 2"),
        ({"labels": [0, -2, 1]}, "labels: node 1: found label -2, expected a whole number from 0 to 2"),
        ({"labels": [0, 0.5, 1]}, "labels: node 1: found label 0.5"),
        ({"labels": [0, 1]}, r"adj_shape: found 3 rows, expected 2, one per node"),
        ({"labels": [-1, -1, -1]}, "labels: found no labelled node"),
        (
            {"labels": np.array([0, 1, Bomb()], dtype=object)},
            "labels: found pickled objects, expected an array of numbers",
        ),
        ({"adj_indices": np.array([Bomb()] * 4, dtype=object)}, "adj_indices: found pickled objects"),
    ],
)
def test_damaged_benchmark_files(build: Build, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    arrays = benchmark_arrays() | {key: np.asarray(value) for key, value in changes.items()}
    with pytest.raises(StudyError, match=rf"small\.npz: {message}"):
        build(source="npz", path=save(tmp_path, arrays))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edges": [[0, 1], [1, 3]]}, "edges: row 1: found node id 3, expected 0 to 2"),
        ({"edges": [0, 1, 2]}, r"edges: found int64 \[3\], expected whole numbers \[edges, 2\]"),
        ({"node_features": np.full((3, 2), np.inf)}, "node_features: node 0, feature 0: found inf"),
        ({"node_features": np.zeros((4, 2))}, r"node_features: found float64 \[4, 2\], expected numbers \[3"),
        ({"val_masks": np.zeros((2, 4), bool)}, r"val_masks: found bool \[2, 4\], expected true or false"),
        ({"val_masks": np.full((2, 3), 2)}, "val_masks: found int64"),
        ({"val_masks": np.ones((2, 3), bool)}, "val split: node 0 is in the train split as well"),
        ({"node_labels": [0, 1, -1], "train_masks": np.array([[0, 0, 1]] * 2), "test_masks": np.array([[1, 0, 0]] * 2)},
         "found training node 2 without a label"),
    ],
)  # fmt: skip
def test_damaged_heterophilous_files(build: Build, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    arrays = heterophilous_arrays() | {key: np.asarray(value) for key, value in changes.items()}
    with pytest.raises(StudyError, match=rf"small\.npz: {message}"):
        build(source="npz", path=save(tmp_path, arrays))


def test_pickles_that_are_not_needed_are_left_alone(build: Build, tmp_path: Path) -> None:
    """Original gnn-benchmark files carry names and metadata as pickles."""
    arrays = benchmark_arrays() | {"metadata": np.array(Bomb(), dtype=object), "node_names": np.array([Bomb()], object)}
    assert build(source="npz", path=save(tmp_path, arrays)).num_nodes == 3


def test_weights_are_dropped_on_request_and_noted(build: Build, tmp_path: Path) -> None:
    path = save(tmp_path, benchmark_arrays() | {"adj_data": np.array([1, 2, 3, 1])})
    assert build(source="npz", path=path, weights="drop").manifest["notes"] == [
        "weights of the source dropped (2 other than 1)"
    ]


@pytest.mark.parametrize("share", [0, 0.02, 0.3, 0.6, 0.95])
def test_cut_off_files(build: Build, tmp_path: Path, share: float) -> None:
    path = save(tmp_path, benchmark_arrays())
    os.truncate(path, int(share * Path(path).stat().st_size))
    with pytest.raises(StudyError, match=r"small\.npz: found (an empty file|no readable \.npz archive)"):
        build(source="npz", path=path)
    with pytest.raises(StudyError, match=r"small\.npz"):
        known_num_nodes({"source": "npz", "path": path})


def test_a_changed_byte_is_found_by_the_checksum_of_the_member(build: Build, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **benchmark_arrays())
    data = bytearray(buffer.getvalue())
    with zipfile.ZipFile(buffer) as archive:
        info = archive.getinfo("labels.npy")
    # The last label is the last 8 bytes of the member; the name and header before it have this length.
    end = info.header_offset + 30 + len("labels.npy") + int.from_bytes(data[info.header_offset + 28 :][:2], "little")
    data[end + info.file_size - 8] = 0
    (tmp_path / "small.npz").write_bytes(data)
    with pytest.raises(StudyError, match=r"small\.npz: labels: found a damaged array .*CRC"):
        build(source="npz", path=str(tmp_path / "small.npz"))


def test_a_header_that_promises_too_much_is_refused_before_memory_is_taken(build: Build, tmp_path: Path) -> None:
    path = Path(save(tmp_path, benchmark_arrays()))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": (1 << 45,)})
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "lying.npz", "w") as new:
        for name in old.namelist():
            new.writestr(name, header.getvalue() if name == "adj_indices.npy" else old.read(name))
    with pytest.raises(StudyError, match=rf"adj_indices: found {len(header.getvalue())} bytes, expected {8 << 45}"):
        build(source="npz", path=str(tmp_path / "lying.npz"))


def test_other_files_are_refused(build: Build, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"found arrays a, expected adj_indptr, adj_indices, labels \(gnn-benchmark\)"):
        build(source="npz", path=save(tmp_path, {"a": np.zeros(1)}))
    (tmp_path / "page.npz").write_text("<html>not found</html>")
    with pytest.raises(StudyError, match=r"page\.npz: found no readable \.npz archive"):
        build(source="npz", path=str(tmp_path / "page.npz"))
    with pytest.raises(StudyError, match=r"absent\.npz: not found, although path names it"):
        build(source="npz", path=str(tmp_path / "absent.npz"))


def test_the_sha256_is_checked(build: Build, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"small\.npz: found SHA-256 [0-9a-f]{64}, expected 0{64} \(sha256\)"):
        build(source="npz", path=save(tmp_path, benchmark_arrays()), sha256="0" * 64)


def test_an_address_needs_its_sha256() -> None:
    with pytest.raises(StudyError, match="sha256: missing beside url"):
        complete_options({"source": "npz", "url": "https://example.org/a.npz"})
    with pytest.raises(StudyError, match="path: missing; give path, or url and sha256"):
        complete_options({"source": "npz"})
    with pytest.raises(StudyError, match="path, url: found both"):
        complete_options({"source": "npz", "url": "https://example.org/a.npz", "path": "a.npz", "sha256": "0" * 64})

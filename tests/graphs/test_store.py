"""Writing, opening and checking a stored graph."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from anatomy.errors import StudyError
from anatomy.graphs.blocks import FeatureBlocks
from anatomy.graphs.raw import GraphData
from anatomy.graphs.store import check_graph, identity_of, open_graph, write_graph


def path_of_three(**changes: object) -> GraphData:
    """0 - 1 - 2, both directions stored; node 2 unlabelled."""
    values = {
        "indptr": np.array([0, 1, 3, 4]),
        "indices": np.array([1, 0, 2, 1]),
        "features": FeatureBlocks.from_rows(np.eye(3, dtype=np.float32), "features"),
        "labels": np.array([0, 1, -1]),
        "split": np.array([0, 1, -1], dtype=np.int8),
        "num_classes": 2,
        "steps": [],
        "made": {},
        "evaluator": None,
    }
    return GraphData(**(values | changes))


def replace_array(folder: Path, name: str, array: np.ndarray) -> None:
    """Change an array behind the store's back, with the manifest's shape kept true."""
    np.save(folder / f"{name}.npy", array)
    manifest = json.loads((folder / "graph.json").read_text())
    manifest["arrays"][name] |= {"dtype": str(array.dtype), "shape": list(array.shape)}
    (folder / "graph.json").write_text(json.dumps(manifest))


def test_a_graph_comes_back_as_it_was_written(tmp_path: Path) -> None:
    manifest = write_graph(tmp_path / "g", "path", {"source": "test"}, path_of_three())
    graph = open_graph(tmp_path / "g")
    check_graph(graph, checksums=True)
    assert (graph.name, graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes) == ("path", 3, 4, 3, 2)
    assert graph.manifest == manifest
    assert graph.indices.tolist() == [1, 0, 2, 1]
    assert isinstance(graph.features, np.memmap)
    assert not graph.features.flags.writeable
    assert [graph.features.dtype, graph.labels.dtype, graph.split.dtype] == [np.float32, np.int64, np.int8]
    assert manifest["split"] == {"train": 1, "val": 1, "test": 0, "none": 1}
    assert {"seconds", "peak_memory_bytes", "versions", "steps", "made", "source"} <= set(manifest)


def test_identity_is_that_of_the_arrays_and_not_of_the_name(tmp_path: Path) -> None:
    first = write_graph(tmp_path / "a", "a", {}, path_of_three())
    same = write_graph(tmp_path / "b", "b", {"seed": 1}, path_of_three())
    other = write_graph(tmp_path / "c", "c", {}, path_of_three(labels=np.array([1, 1, -1])))
    assert first["identity"] == same["identity"] != other["identity"]
    assert first["identity"] == identity_of(first["arrays"])


def test_features_larger_than_a_block_are_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anatomy.graphs.blocks.BLOCK_BYTES", 24)
    write_graph(tmp_path / "g", "g", {}, path_of_three())
    assert open_graph(tmp_path / "g").features.tolist() == np.eye(3).tolist()


def test_a_failed_build_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    write_graph(tmp_path / "g", "g", {}, path_of_three())
    rows = np.eye(3, dtype=np.float32)
    rows[2, 1] = np.nan
    broken = path_of_three(features=FeatureBlocks.from_rows(rows, "x.npz: attr_matrix"), labels=np.array([1, 0, 0]))
    with pytest.raises(
        StudyError, match=r"x\.npz: attr_matrix: node 2, feature 1: found nan, expected a finite number"
    ):
        write_graph(tmp_path / "g", "g", {}, broken)
    assert open_graph(tmp_path / "g").labels.tolist() == [0, 1, -1]
    assert sorted(path.name for path in (tmp_path / "g").iterdir()) == sorted(
        ["graph.json", "indptr.npy", "indices.npy", "features.npy", "labels.npy", "split.npy"]
    )


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("indices", [1, 0, 3, 1], r"indices\.npy: entry 2: found 3, expected 0 to 2"),
        ("indices", [1, 0, -1, 1], r"indices\.npy: entry 2: found -1, expected 0 to 2"),
        ("indices", [1, 2, 0, 1], r"indices\.npy: node 1: found in-neighbours out of order"),
        ("indptr", [0, 3, 1, 4], r"indptr\.npy: found 0 to 4, expected offsets that rise from 0 to 4"),
        ("indptr", [0, 1, 3, 5], r"indptr\.npy: found 0 to 5, expected offsets that rise from 0 to 4"),
        ("labels", [0, 2, -1], r"labels\.npy: entry 1: found 2, expected -1 to 1"),
        ("labels", [-1, 1, 0], r"split\.npy: node 0: found a training node without a label"),
        ("split", np.array([0, 3, -1], dtype=np.int8), r"split\.npy: entry 1: found 3, expected -1 to 2"),
        ("features", np.full((3, 3), np.inf, dtype=np.float32), r"features\.npy: node 0, feature 0: found inf"),
    ],
)
def test_damage_is_named(tmp_path: Path, name: str, array: object, message: str) -> None:
    write_graph(tmp_path, "g", {}, path_of_three())
    replace_array(tmp_path, name, np.asarray(array))
    with pytest.raises(StudyError, match=message):
        check_graph(open_graph(tmp_path))


def test_lengths_that_do_not_fit_are_refused_on_opening(tmp_path: Path) -> None:
    write_graph(tmp_path, "g", {}, path_of_three())
    replace_array(tmp_path, "split", np.zeros(2, dtype=np.int8))
    with pytest.raises(StudyError, match=r"split\.npy: found int8 \[2\], expected int8 \[3\]"):
        open_graph(tmp_path)


def test_a_cut_off_array_is_refused(tmp_path: Path) -> None:
    write_graph(tmp_path, "g", {}, path_of_three())
    os.truncate(tmp_path / "labels.npy", 140)
    with pytest.raises(StudyError, match=r"labels\.npy: damaged"):
        open_graph(tmp_path)


def test_changed_values_are_found_by_their_checksum(tmp_path: Path) -> None:
    write_graph(tmp_path, "g", {}, path_of_three())
    np.save(tmp_path / "labels.npy", np.array([1, 0, -1]))
    check_graph(open_graph(tmp_path))
    with pytest.raises(StudyError, match=r"labels\.npy: found SHA-256"):
        check_graph(open_graph(tmp_path), checksums=True)


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"graph\.json: not found"):
        open_graph(tmp_path)
    (tmp_path / "graph.json").write_text('{"kind": "partition"}')
    with pytest.raises(StudyError, match="found kind 'partition', expected 'graph'"):
        open_graph(tmp_path)

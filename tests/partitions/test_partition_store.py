"""A stored partition is opened whole, for its own graph, or not at all."""

import json

import numpy as np
import pytest

from anatomy.errors import StudyError
from anatomy.files import describe_array, save_array
from anatomy.graphs.store import open_graph
from anatomy.partitions.build import partition_graph
from anatomy.partitions.store import open_partition


@pytest.fixture
def stored(stored_graph, ring, tmp_path):
    """(graph, folder of its partition): a ring of 8 in ranges 0-2, 3-5, 6-7."""
    graph = stored_graph(8, ring(8))
    partition_graph(graph, {"method": "hash"}, 3, tmp_path / "partition")
    return open_graph(graph), tmp_path / "partition"


def replace_array(folder, name, array):
    """Put another array there, and have the manifest describe it."""
    manifest = json.loads((folder / "partition.json").read_text())
    manifest["arrays"][name] = save_array(folder, name, array)
    (folder / "partition.json").write_text(json.dumps(manifest))


def test_what_was_written_is_read(stored):
    graph, folder = stored
    partition = open_partition(folder, graph)
    assert partition.num_parts == 3
    assert partition.assignment.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert partition.nodes(1).tolist() == [3, 4, 5]
    assert partition.halo(0, 1).tolist() == [2]
    assert partition.halo(0, 2).tolist() == [0]
    assert partition.halo(1, 1).tolist() == []
    assert partition.manifest["total"]["edge_cut"] == 3


def test_the_manifest_says_what_made_it(stored):
    graph, folder = stored
    manifest = json.loads((folder / "partition.json").read_text())
    expected = {
        "kind": "partition",
        "graph": "small",
        "graph_identity": graph.identity,
        "partitioner": "hash",
        "method": "hash",
    }
    assert manifest.items() >= expected.items()
    assert manifest["options"] == {"seed": 0}
    assert manifest["arrays"] == {
        name: describe_array(folder / f"{name}.npy", np.load(folder / f"{name}.npy")) for name in manifest["arrays"]
    }
    assert manifest["seconds"] > 0
    assert manifest["peak_memory_bytes"] > 1e6
    assert {path.name for path in folder.iterdir()} == {
        "partition.json", "assignment.npy", "halo_offsets.npy", "halo_nodes.npy"
    }  # fmt: skip


def test_partition_for_another_graph(stored, stored_graph, ring):
    other = open_graph(stored_graph(8, ring(8)[2:], name="other"))
    with pytest.raises(
        StudyError, match=r"partition\.json: a partition for another graph: found .*'small'.*, expected"
    ):
        open_partition(stored[1], other)


@pytest.mark.parametrize("wrong", [3, -1])
def test_part_out_of_range(stored, wrong):
    replace_array(stored[1], "assignment", np.array([0, 0, 0, 1, wrong, 1, 2, 2], dtype=np.int32))
    with pytest.raises(StudyError, match=rf"assignment\.npy: node 4: found part {wrong}, expected 0 to 2"):
        open_partition(stored[1])


def test_empty_part(stored):
    replace_array(stored[1], "assignment", np.array([0, 0, 0, 1, 1, 1, 1, 1], dtype=np.int32))
    with pytest.raises(StudyError, match=r"found 1 empty part\(s\), the first is part 2 of 3"):
        open_partition(stored[1])


def test_assignment_of_another_length(stored):
    replace_array(stored[1], "assignment", np.array([0, 1, 2], dtype=np.int32))
    with pytest.raises(StudyError, match=r"assignment\.npy: found an assignment of shape \[3\], expected \[8\]"):
        open_partition(stored[1])


def test_halo_node_of_another_part(stored):
    nodes = np.load(stored[1] / "halo_nodes.npy")
    nodes[0] = 7
    replace_array(stored[1], "halo_nodes", nodes)
    with pytest.raises(
        StudyError, match=r"halo_nodes\.npy: entry 0: found node 7, expected one of the part that owns the list"
    ):
        open_partition(stored[1])


def test_halo_offsets_with_a_hole(stored):
    offsets = np.load(stored[1] / "halo_offsets.npy")
    offsets[-1] += 1
    replace_array(stored[1], "halo_offsets", offsets)
    with pytest.raises(StudyError, match=r"halo_offsets\.npy: found 10 offsets"):
        open_partition(stored[1])


@pytest.mark.parametrize("name", ["assignment", "halo_offsets", "halo_nodes"])
def test_truncated_array(stored, name):
    path = stored[1] / f"{name}.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(StudyError, match=rf"{name}\.npy: damaged"):
        open_partition(stored[1])


def test_missing_array(stored):
    (stored[1] / "assignment.npy").unlink()
    with pytest.raises(StudyError, match=r"assignment\.npy: not found although the manifest names it"):
        open_partition(stored[1])

"""The table of partitions says of each kind of partitioner what is measured of it."""

import numpy as np
import pytest

from anatomy.files import read_json
from anatomy.graphs.build import build_graph
from anatomy.partitions.build import partition_graph

METHODS = {
    "metis": {"method": "metis"},
    "libra": {"method": "libra"},
    "hosts": {"method": "hierarchical", "ranks_per_host": 2},
}
OF_VERTEX_CUTS = ["mirrors", "replicas_per_node", "balance_held_edges", "balance_replicas"]
OF_HOSTS = ["num_hosts", "ranks_per_host", "edge_cut_between", "communication_volume_between", "balance_hosts"]


@pytest.fixture
def table(results, built):
    """Partitions of one graph, made by the partitioners themselves."""
    graph = results.folder / "graphs" / "tiny"
    build_graph({"source": "powerlaw", "num_nodes": 80, "mean_degree": 6, "num_classes": 2}, graph)
    for name, options in METHODS.items():
        partition_graph(graph, options, 4, results.folder / "partitions" / "tiny" / f"{name}-4")
    names = [f"tiny/{name}-4" for name in METHODS]
    return built("partitions", results.study(partitions=names)).assign(name=list(METHODS)).set_index("name")


def test_vertex_cuts_and_hosts_have_numbers_of_their_own(table, results):
    assert table[OF_VERTEX_CUTS].notna().all(axis=1).tolist() == [False, True, False]
    assert table[OF_HOSTS].notna().all(axis=1).tolist() == [False, False, True]
    assert table.loc["metis", OF_VERTEX_CUTS + OF_HOSTS].isna().all()
    folder = results.folder / "partitions" / "tiny" / "libra-4"
    roots, held = np.load(folder / "assignment.npy"), np.load(folder / "edge_assignment.npy")
    graph = results.folder / "graphs" / "tiny"
    indptr, sources = np.load(graph / "indptr.npy"), np.load(graph / "indices.npy")
    ends = np.concatenate([sources, np.repeat(np.arange(80), np.diff(indptr))])
    replicas = set(zip(ends.tolist(), np.tile(held, 2).tolist(), strict=True)) | set(enumerate(roots.tolist()))
    assert table.loc["libra", "mirrors"] == len(replicas) - 80
    assert table.loc["libra", "replicas_per_node"] == pytest.approx(len(replicas) / 80)
    edges = np.bincount(held, minlength=4)
    assert table.loc["libra", "balance_held_edges"] == pytest.approx(edges.max() / edges.mean())


def test_of_the_cut_between_hosts_both_sides_are_known(table, results):
    row = table.loc["hosts"]
    assert (row["num_hosts"], row["ranks_per_host"]) == (2, 2)
    assert 0 < row["edge_cut_between"] < row["edge_cut"]
    matrix = read_json(results.folder / "partitions" / "tiny" / "hosts-4" / "partition.json", "partition")[
        "halo_matrix"
    ]
    assert row["communication_volume_between"] == np.array(matrix)[:2, 2:].sum() + np.array(matrix)[2:, :2].sum()

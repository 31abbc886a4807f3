"""OGB archives in their exact layout, small; ogb's catalogue and Evaluator without a network."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anatomy.errors import StudyError
from anatomy.graphs import ogb_catalogue
from anatomy.graphs.sources import complete_options, known_num_nodes, needs_fetch, resources
from anatomy.graphs.store import Graph

Build = Callable[..., Graph]
EdgesOf = Callable[[Graph], list[tuple[int, int]]]

CITATIONS = [(0, 1), (1, 0), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0)]


def test_an_archive_of_csv_files(build: Build, edges_of: EdgesOf, ogb_zip: Any) -> None:
    graph = build(source="ogb", dataset="ogbn-arxiv", archive=str(ogb_zip()), direction="keep")
    assert edges_of(graph) == CITATIONS
    assert graph.features.tolist() == [[0, 0.25], [0.5, 0.75], [1, 1.25], [1.5, 1.75], [2, 2.25], [2.5, 2.75]]
    assert graph.labels.tolist() == [0, 1, 2, 0, 1, 39]
    assert graph.split.tolist() == [0, 0, 1, 2, 2, -1]
    assert (graph.num_classes, graph.manifest["evaluator"]) == (40, "ogbn-arxiv")
    assert "this archive has 6 nodes and 7 edges, the published ogbn-arxiv 169343" in graph.manifest["notes"][0]


def test_the_binary_layout_of_papers100m(build: Build, edges_of: EdgesOf, ogb_zip: Any, tmp_path: Path) -> None:
    """Labels are floats there, NaN where a paper has none."""
    archive = ogb_zip(
        "papers100M-bin",
        binary=True,
        labels=[0, 1, 171, np.nan, np.nan, 5],
        split={"train": [0, 1], "valid": [2], "test": [5]},
    )
    graph = build(source="ogb", dataset="ogbn-papers100M", archive=str(archive), direction="keep")
    assert edges_of(graph) == CITATIONS
    assert graph.features[5].tolist() == [2.5, 2.75]
    assert graph.labels.tolist() == [0, 1, 171, -1, -1, 5]
    assert graph.num_classes == 172
    assert sorted(path.name for path in graph.path.iterdir() if path.name.startswith(".")) == [], "no scratch is left"


def test_products_list_each_edge_once(build: Build, ogb_zip: Any) -> None:
    archive = str(ogb_zip("products", split_type="sales_ranking"))
    graph = build(source="ogb", dataset="ogbn-products", archive=archive)
    assert graph.num_edges == 12
    with pytest.raises(StudyError, match="ogbn-products lists each undirected edge once"):
        complete_options({"source": "ogb", "dataset": "ogbn-products", "archive": archive, "direction": "keep"})


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edges": [(0, 1), (2, 6)]}, r"found node id 6, expected 0 to 5"),
        ({"edges": [(0, 1), (-1, 2)]}, r"found node id -1, expected 0 to 5"),
        ({"num_edges": 9}, r"found 7 edges, expected 9|found int64 \[2, 7\], expected whole numbers \[2, 9\]"),
        ({"num_edges": 2}, r"more edges than the 2|expected whole numbers \[2, 2\]"),
        ({"labels": [0, 1, 2, 0, 1, 200]}, r"node 5: found label 200"),
        ({"labels": [0, 1, 2, 0, 1, -5]}, r"node 5: found label -5"),
        ({"labels": [0, 1, 2]}, r"found shape \[3\], expected \[6\]"),
        ({"features": np.full((6, 2), np.nan)}, r"node 0, feature 0: found nan"),
        ({"features": np.zeros((4, 2))}, r"found 4 rows, expected 6|node_feat: found float16 \[4, 2\]"),
        ({"split": {"train": [0], "valid": [6], "test": [2]}}, "val split: found node id 6, expected 0 to 5"),
        ({"split": {"train": [0], "valid": [0], "test": [2]}}, "val split: node 0 is in the train split as well"),
        ({"split": {"train": [0], "valid": [1]}}, r"split/time/test\.csv\.gz: not found"),
    ],
)  # fmt: skip
def test_damaged_archives(build: Build, ogb_zip: Any, changes: dict[str, Any], message: str, binary: bool) -> None:
    name, dataset = ("papers100M-bin", "ogbn-papers100M") if binary else ("arxiv", "ogbn-arxiv")
    with pytest.raises(StudyError, match=rf"{name}\.zip: {name}.*({message})"):
        build(source="ogb", dataset=dataset, archive=str(ogb_zip(name, binary=binary, **changes)))


@pytest.mark.parametrize(
    ("member", "content", "message"),
    [
        ("raw/edge.csv.gz", b"0,1\n1,x\n", "found no numbers"),
        ("raw/edge.csv.gz", b"0,1\n1\n", "found no numbers"),
        ("raw/edge.csv.gz", b"0,1,2\n", "line 1: found 3 columns, expected 2"),
        ("raw/edge.csv.gz", b"", "found 0 edges, expected 7"),
        ("raw/num-node-list.csv.gz", b"6\n6\n", r"found \[6, 6\], expected one count"),
        ("raw/num-node-list.csv.gz", b"-6\n", "found '-6', expected one count"),
        ("raw/node-label.csv.gz", b"0\n1.5\n2\n0\n1\n3\n", "node 1: found label 1.5"),
    ],
)
def test_damaged_members(build: Build, ogb_zip: Any, member: str, content: bytes, message: str) -> None:
    import gzip
    import zipfile

    good = ogb_zip()
    bad = good.with_name("bad.zip")
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(bad, "w") as new:
        for name in old.namelist():
            new.writestr(name, gzip.compress(content) if name == f"arxiv/{member}" else old.read(name))
    with pytest.raises(StudyError, match=rf"bad\.zip: arxiv/{member}.*({message})"):
        build(source="ogb", dataset="ogbn-arxiv", archive=str(bad))


def test_the_archive_of_another_dataset(build: Build, ogb_zip: Any) -> None:
    with pytest.raises(StudyError, match=r"arxiv\.zip: products/raw/num-node-list\.csv\.gz: not found"):
        build(source="ogb", dataset="ogbn-products", archive=str(ogb_zip()))


def test_an_archive_with_members_outside_its_folder(build: Build, ogb_zip: Any, tmp_path: Path) -> None:
    archive = ogb_zip(extra={"arxiv/../../evil.txt": b"!"})
    with pytest.raises(StudyError, match="expected names inside the archive's own folder"):
        build(source="ogb", dataset="ogbn-arxiv", archive=str(archive))
    assert not list(tmp_path.rglob("evil.txt"))


def test_a_cut_off_archive(build: Build, ogb_zip: Any) -> None:
    archive = ogb_zip()
    archive.write_bytes(archive.read_bytes()[:-300])
    with pytest.raises(StudyError, match=r"arxiv\.zip: found no readable zip archive"):
        build(source="ogb", dataset="ogbn-arxiv", archive=str(archive))


def test_sizes_are_known_before_anything_is_fetched(ogb_zip: Any) -> None:
    papers = {"source": "ogb", "dataset": "ogbn-papers100M"}
    assert known_num_nodes(papers) == 111_059_956
    assert needs_fetch(papers)
    needed = resources(papers)
    assert needed["mem_mb"] > 3 * 8 * 1_615_685_872 / 1e6, "listed entries and twice as many symmetrised"
    assert needed["disk_mb"] > (111_059_956 * 128 * 4 + 2 * 8 * 1_615_685_872) / 1e6
    local = {"source": "ogb", "dataset": "ogbn-arxiv", "archive": str(ogb_zip())}
    assert known_num_nodes(local) == 6
    assert not needs_fetch(local)
    assert resources(local)["disk_mb"] < 100


def test_unknown_datasets_are_refused() -> None:
    with pytest.raises(StudyError, match="dataset: found 'ogbn-arxiw', did you mean 'ogbn-arxiv'"):
        complete_options({"source": "ogb", "dataset": "ogbn-arxiw"})
    with pytest.raises(StudyError, match="the key 'dataset'"):
        complete_options({"source": "ogb"})
    with pytest.raises(StudyError, match="mirror, archive: found both"):
        complete_options({"source": "ogb", "dataset": "ogbn-arxiv", "mirror": "http://a/", "archive": "a.zip"})


def test_catalogue() -> None:
    arxiv, papers = ogb_catalogue.dataset("ogbn-arxiv"), ogb_catalogue.dataset("ogbn-papers100M")
    assert arxiv.url == "http://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"
    assert (arxiv.folder, arxiv.num_classes, arxiv.split, arxiv.binary, arxiv.listed_once) == (
        "arxiv",
        40,
        "time",
        False,
        False,
    )
    assert (papers.folder, papers.num_classes, papers.binary) == ("papers100M-bin", 172, True)
    assert ogb_catalogue.dataset("ogbn-products").listed_once


NO_NETWORK = """
import socket, sys
def refuse(*arguments, **options):
    print("a network call was made", file=sys.stderr)
    raise SystemExit(3)
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
"""


def run_without_network(scripts: Path, code: str) -> str:
    """Run Python code in a process of its own where any network call ends it."""
    result = subprocess.run(
        [sys.executable, "-c", NO_NETWORK + code], cwd=scripts, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_evaluator_is_ogbs_and_makes_no_network_call(scripts: Path) -> None:
    """Two of three are right: 2/3."""
    pytest.importorskip("sklearn")
    code = """
import numpy as np
from anatomy.graphs.ogb_catalogue import evaluator
score = evaluator("ogbn-arxiv").eval({"y_true": np.array([[1], [2], [3]]), "y_pred": np.array([[1], [2], [0]])})
import threading
print(score["acc"], "ogb" in sys.modules, "outdated" in sys.modules, "dgl" in sys.modules, threading.active_count())
"""
    assert run_without_network(scripts, code).split() == [str(2 / 3), "False", "False", "False", "1"]


def test_the_sources_import_without_the_heavy_packages(scripts: Path) -> None:
    code = """
import anatomy.graphs.build, anatomy.graphs.fetch, anatomy.graphs.store
print([name for name in ("torch", "dgl", "ogb", "outdated", "pandas", "scipy") if name in sys.modules])
"""
    assert run_without_network(scripts, code).strip() == "[]"


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anatomy.graphs.ogb_catalogue.importlib.util.find_spec", lambda name: None)
    with pytest.raises(StudyError, match="ogb: not installed"):
        ogb_catalogue.evaluator("ogbn-arxiv")


def test_our_reading_equals_ogbs(build: Build, ogb_zip: Any, tmp_path: Path) -> None:
    """ogb's own reader, loaded from its file alone, gives the same arrays from the unpacked archive."""
    import importlib.util

    pytest.importorskip("tqdm")
    archive = ogb_zip()
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    spec = importlib.util.spec_from_file_location(
        "ogb_read_graph_raw", ogb_catalogue._package() / "io" / "read_graph_raw.py"
    )
    module = importlib.util.module_from_spec(spec)
    source = (
        Path(spec.origin)
        .read_text()
        .replace("from ogb.utils.url import decide_download, download_url, extract_zip", "")
    )
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    (expected,) = module.read_csv_graph_raw(str(tmp_path / "unpacked/arxiv/raw"), additional_node_files=["node_year"])
    graph = build(source="ogb", dataset="ogbn-arxiv", archive=str(archive), direction="keep")
    assert graph.features.tolist() == expected["node_feat"].tolist()
    assert sorted(map(tuple, expected["edge_index"].T.tolist())) == CITATIONS

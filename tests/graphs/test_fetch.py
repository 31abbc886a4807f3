"""From an address to a stored graph, with the programs as a person calls them."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anatomy.errors import StudyError
from anatomy.graphs.build import build_graph
from anatomy.graphs.fetch import fetch_source, with_fetched
from anatomy.graphs.store import check_graph, open_graph

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(scripts: Path, tmp_path: Path) -> Run:
    """Run one of the study's programs in an empty folder, with a standard input that is closed, or open and silent."""

    def _run(program: str, *arguments: str, stdin: str = "closed") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(scripts / program), *arguments]
        read_end, write_end = os.pipe()
        try:
            return subprocess.run(
                command if stdin == "silent" else ["bash", "-c", '"$@" <&-', "bash", *command],
                stdin=read_end,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        finally:
            os.close(read_end)
            os.close(write_end)

    return _run


@pytest.mark.parametrize("stdin", ["closed", "silent"])
def test_fetch_and_build_by_hand(run: Run, server: Any, ogb_zip: Any, tmp_path: Path, stdin: str) -> None:
    """Never a prompt: neither with a closed standard input, nor with one that is open and silent."""
    server.body = ogb_zip().read_bytes()
    server.answers = ["status 503", "cut 700", "ok"]
    dataset = ["--source", "ogb", "--dataset", "ogbn-arxiv", "--mirror", f"{server.url}/ogb"]
    fetched = run("fetch_source.py", *dataset, "--out", "sources/arxiv", "--backoff-s", "0.05", stdin=stdin)
    assert fetched.returncode == 0, fetched.stderr
    assert [path for path, _ in server.requests] == ["/ogb/arxiv.zip"] * 3
    assert "trying again" in fetched.stderr
    manifest = json.loads((tmp_path / "sources/arxiv/source.json").read_text())
    assert manifest["files"]["archive"] == {
        "file": "archive-arxiv.zip",
        "url": f"{server.url}/ogb/arxiv.zip",
        "bytes": len(server.body),
        "sha256": hashlib.sha256(server.body).hexdigest(),
    }
    built = run("build_graph.py", *dataset, "--fetched", "sources/arxiv", "--out", "arxiv", stdin=stdin)
    assert built.returncode == 0, built.stderr
    graph = open_graph(tmp_path / "arxiv")
    check_graph(graph)
    assert (graph.num_nodes, graph.num_edges) == (6, 12)
    assert graph.manifest["source"]["mirror"] == f"{server.url}/ogb"
    assert "archive" not in graph.manifest["source"], "the manifest holds the options as they were given"


def test_files_of_an_edge_list_are_fetched_each(server: Any, tmp_path: Path) -> None:
    server.body = b"0 1\n1 2\n"
    sha256 = hashlib.sha256(server.body).hexdigest()
    options = {
        "source": "edgelist",
        "url": f"{server.url}/a/edges.txt?raw=1",
        "sha256": sha256,
        "labels_url": f"{server.url}/a/labels..txt",
        "labels_sha256": sha256,
    }
    manifest = fetch_source(options, tmp_path / "src")
    assert {key: entry["file"] for key, entry in manifest["files"].items()} == {
        "path": "path-edges.txt",
        "labels_path": "labels_path-labels..txt",
    }
    build_graph(options | {"stratify": False, "num_nodes": 3}, tmp_path / "g", fetched=tmp_path / "src")
    assert open_graph(tmp_path / "g").labels.tolist() == [1, 2, -1], (
        "the same file read as labels: node 0 has 1, node 1 has 2"
    )


def test_what_was_fetched_for_another_address_is_not_used(server: Any, ogb_zip: Any, tmp_path: Path) -> None:
    server.body = ogb_zip().read_bytes()
    options = {"source": "ogb", "dataset": "ogbn-arxiv", "mirror": server.url}
    fetch_source(options, tmp_path / "src")
    with pytest.raises(StudyError, match=r"found http://127.*/arxiv\.zip fetched, expected http://snap"):
        with_fetched({"source": "ogb", "dataset": "ogbn-arxiv"}, tmp_path / "src")
    (tmp_path / "src/archive-arxiv.zip").write_bytes(b"cut")
    with pytest.raises(
        StudyError, match=r"archive-arxiv\.zip: found 3 bytes, expected \d+ bytes; run fetch_source\.py"
    ):
        with_fetched(options, tmp_path / "src")
    fetch_source(options, tmp_path / "src")
    assert with_fetched(options, tmp_path / "src")["archive"] == str(tmp_path / "src/archive-arxiv.zip")


def test_building_never_fetches(server: Any, tmp_path: Path) -> None:
    options = {"source": "ogb", "dataset": "ogbn-arxiv", "mirror": server.url}
    with pytest.raises(StudyError, match=r"not fetched yet; run fetch_source\.py with the same options"):
        build_graph(options, tmp_path / "g")
    assert server.requests == []
    assert not (tmp_path / "g" / "graph.json").exists()


def test_nothing_to_fetch(tmp_path: Path) -> None:
    assert fetch_source({"source": "powerlaw"}, tmp_path)["files"] == {}


def test_build_by_hand(run: Run, tmp_path: Path) -> None:
    (tmp_path / "it's small.graph").write_text("3 2\n2\n1 3\n2\n")
    built = run("build_graph.py", "--source", "metis", "--path", "it's small.graph", "--out", "a dir/o'ut")
    assert built.returncode == 0, built.stderr
    graph = open_graph(tmp_path / "a dir/o'ut")
    assert (graph.name, graph.num_edges) == ("o'ut", 4)


def test_options_as_flags_as_pairs_and_from_a_file(run: Run, tmp_path: Path) -> None:
    flags = [
        "--num-nodes",
        "60",
        "--mean-degree",
        "4",
        "--num-classes",
        "2",
        "--num-features",
        "3",
        "--stratify",
        "false",
    ]
    pairs = [
        "--option",
        "num_nodes=60",
        "--option",
        "mean-degree=4",
        "--option",
        "num_classes=2",
        "--num-features",
        "3",
    ]
    spec = {
        "source": "powerlaw",
        "num_nodes": 99,
        "mean_degree": 4,
        "num_classes": 2,
        "num_features": 3,
        "stratify": False,
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    runs = [
        run("build_graph.py", "--source", "powerlaw", *flags, "--out", "a"),
        run("build_graph.py", "--source", "powerlaw", *pairs, "--option", "stratify=false", "--out", "b"),
        run("build_graph.py", "--spec", "spec.json", "--num-nodes", "60", "--name", "mine", "--out", "c"),
    ]
    assert [result.returncode for result in runs] == [0, 0, 0], [result.stderr for result in runs]
    graphs = [open_graph(tmp_path / name) for name in "abc"]
    assert len({graph.identity for graph in graphs}) == 1
    assert graphs[2].name == "mine"
    assert graphs[0].num_nodes == 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source", "metis", "--path", "no.graph"], "error: no.graph: not found, although path names it"),
        (["--source", "powerlaw", "--num-nodes", "many"], "num_nodes: found 'many', expected integer"),
        (["--source", "powerlaw", "--path", "x"], "(source powerlaw): unknown key 'path'"),
        (["--source", "powerlaw", "--option", "seed"], "--option: found 'seed', expected KEY=VALUE"),
        (["--source", "powerlaw", "--option", "sead=1"], "(source powerlaw): unknown key 'sead', did you mean 'seed'?"),
        (["--spec", "wrong.json"], "wrong.json (source powerlaw): unknown key 'homofily', did you mean"),
        (["--spec", "unknown.json"], "unknown.json: source: 'powerlow' does not exist, did you mean 'powerlaw'?"),
        ([], "command line: option 'source' is missing"),
    ],
)  # fmt: skip
def test_mistakes_end_in_one_line(run: Run, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "wrong.json").write_text('{"source": "powerlaw", "homofily": 1}')
    (tmp_path / "unknown.json").write_text('{"source": "powerlow"}')
    result = run("build_graph.py", *arguments, "--out", "g")
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert len([line for line in result.stderr.splitlines() if line.startswith("error:")]) == 1


def test_help_names_every_option(run: Run) -> None:
    for program in ("build_graph.py", "fetch_source.py"):
        text = run(program, "--help").stdout
        for option in ("--homophily", "--split-index", "--dataset", "--labels-path", "--spec", "--self-loops"):
            assert option in text


def test_what_a_killed_build_left_does_not_disturb(tmp_path: Path) -> None:
    scratch = tmp_path / "g" / ".scratch"
    scratch.mkdir(parents=True)
    np.save(scratch / "edge_index.npy", np.zeros(3))
    build_graph({"source": "powerlaw", "num_nodes": 50, "mean_degree": 3, "num_classes": 2}, tmp_path / "g")
    assert not scratch.exists()


def test_too_little_disk_space_is_said_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 3_000_000})
    monkeypatch.setattr("anatomy.graphs.build.shutil.disk_usage", lambda path: usage)
    with pytest.raises(StudyError, match="found 3 MB of free disk space, expected about"):
        build_graph({"source": "powerlaw"}, tmp_path / "g")

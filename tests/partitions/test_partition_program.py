"""Partitioning by hand: the program, its options, and what it refuses."""

import json
import subprocess
import sys

import pytest

from anatomy.errors import StudyError
from anatomy.graphs.store import open_graph
from anatomy.partitions import PARTITIONERS
from anatomy.partitions.options import complete_options
from anatomy.partitions.store import open_partition


@pytest.fixture
def program(scripts, stored_graph, ring, tmp_path):
    """Run partition_graph.py on a stored ring of 12 nodes."""
    graph = stored_graph(12, ring(12))

    def _program(*arguments):
        command = [
            sys.executable,
            str(scripts / "partition_graph.py"),
            "--graph",
            str(graph),
            "--out",
            str(tmp_path / "out"),
        ]
        return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)

    return _program


def test_by_hand(program, tmp_path):
    result = program("--partitioner", "metis", "--num-parts", "4", "--seed", "0")
    assert result.returncode == 0, result.stderr
    partition = open_partition(tmp_path / "out", open_graph(tmp_path / "graphs" / "small"))
    assert partition.manifest["partitioner"] == "metis"
    assert partition.manifest["options"] == {"seed": 0, "imbalance": 0.03, "balance_train": False, "objective": "cut"}
    assert partition.manifest["total"]["edge_cut"] == 4


def test_options_of_a_configuration(program, tmp_path):
    """As a rule passes them: all in one, under the config's name; single ones override."""
    options = json.dumps({"method": "ldg", "seed": 3, "order": "natural"})
    result = program("--name", "stream", "--options", options, "--num-parts", "2", "--seed", "4", "--balance-train")
    assert result.returncode == 0, result.stderr
    manifest = open_partition(tmp_path / "out").manifest
    assert (manifest["partitioner"], manifest["method"]) == ("stream", "ldg")
    assert manifest["options"] == {"seed": 4, "imbalance": 0.03, "order": "natural", "balance_train": True}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--partitioner", "metsi", "--num-parts", "2"], "method: 'metsi' does not exist, did you mean 'metis'?"),
        (["--partitioner", "hash", "--num-parts", "13"], "graph small: found 13 parts for 12 nodes, expected 1 to 12"),
        (["--partitioner", "hash", "--num-parts", "0"], "found 0 parts"),
        (["--partitioner", "hash", "--num-parts", "-2"], "found -2 parts"),
        (["--partitioner", "single", "--num-parts", "2"], "expected 1"),
        (
            ["--partitioner", "hash", "--num-parts", "2", "--imbalance", "0.1"],
            "unknown key 'imbalance'; known keys: seed",
        ),
        (
            ["--partitioner", "metis", "--num-parts", "2", "--attempts", "0"],
            "attempts: found 0, expected at least 1",
        ),
        (
            ["--partitioner", "ldg", "--num-parts", "2", "--order", "bfs"],
            "order: found 'bfs'; choose one of: random, natural",
        ),
        (["--num-parts", "2"], "--partitioner: found none"),
        (["--num-parts", "2", "--options", "{metis}"], "which is not JSON"),
        (["--num-parts", "2", "--options", "[]"], "expected a JSON object"),
    ],
)
def test_refused_in_one_message(program, tmp_path, arguments, message):
    result = program(*arguments)
    assert result.returncode == 1
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out" / "partition.json").exists()


def test_damaged_graph_is_refused(program, tmp_path):
    path = tmp_path / "graphs" / "small" / "indices.npy"
    content = bytearray(path.read_bytes())
    content[-8:] = (99).to_bytes(8, "little")
    path.write_bytes(content)
    result = program("--partitioner", "metis", "--num-parts", "2")
    assert result.returncode == 1
    assert "indices.npy: entry 23: found 99, expected 0 to 11" in result.stderr


def test_help_names_every_method_and_option(scripts):
    result = subprocess.run(
        [sys.executable, str(scripts / "partition_graph.py"), "--help"], capture_output=True, text=True, check=True
    )
    for name, plugin in PARTITIONERS.items():
        assert f"{name}:" in " ".join(result.stdout.split())
        for option, schema in plugin.constants["OPTIONS"]["properties"].items():
            assert f"--{option.replace('_', '-')}" in result.stdout
            assert schema["description"] in " ".join(result.stdout.split())


def test_registry_loads_no_method(scripts):
    """Nothing but the standard library is needed to know the methods and their options."""
    code = (
        f"import sys; sys.path.insert(0, {str(scripts)!r}); from anatomy.partitions import PARTITIONERS; "
        "print([p.constants['OPTIONS'] for p in PARTITIONERS.values()] and "
        "sorted({'numpy', 'scipy', 'numba', 'pymetis', 'torch', 'dgl'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("name", list(PARTITIONERS))
def test_every_method_describes_itself(name):
    constants = PARTITIONERS[name].constants
    assert constants["SUMMARY"]
    assert all(schema["description"] for schema in constants["OPTIONS"]["properties"].values())
    required = dict.fromkeys(constants["OPTIONS"]["required"], 2)
    assert complete_options({"method": name} | required)["seed"] == 0


def test_missing_method():
    with pytest.raises(StudyError, match=f"config: option 'method' is missing; add one of: {', '.join(PARTITIONERS)}"):
        complete_options({"seed": 1}, "config")

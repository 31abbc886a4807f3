"""What the README tells a newcomer to type or to write works as it stands there."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from anatomy.configuration import ROOT_PARTITIONER
from anatomy.partitions import PARTITIONERS

README = (Path(__file__).parents[2] / "README.md").read_text()
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL).group(1)


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def copy_of(finished, folder):
    """A copy of the finished study that may be changed."""
    checkout, _ = finished
    return checkout.copied_to(folder)


@pytest.mark.slow
def test_what_it_says_to_add_can_be_added(finished, tmp_path):
    """The files and entries of the section, as they stand, become part of a study and give a verdict."""
    study = copy_of(finished, tmp_path / "study")
    text = section("Add something")
    config = yaml.safe_load((study.root / "config" / "test.yaml").read_text())
    for path, code in zip(re.findall(r"`(workflow/\S+\.py)`", text), blocks(text, "python"), strict=True):
        (study.root / path).write_text(code)
    for entry in blocks(text, "yaml"):
        for key, value in yaml.safe_load(entry).items():
            config[key].update(value)
    (study.root / "mine.txt").write_text("".join(f"{i} {(i + 1) % 40}\n{i} {(i + 7) % 40}\n" for i in range(40)))
    (study.root / "mine-labels.txt").write_text("".join(f"{i} {i % 2}\n" for i in range(40)))
    config |= {
        "results": "results/mine",
        "experiments": {
            "mine": {
                "question": "Does what the README adds work?",
                "graphs": ["mine"],
                "ranks": [2],
                "partitioners": ["stripes"],
                "strategies": ["twice"],
                "models": ["sage"],
                "seeds": [0, 1, 2],
            }
        },
        "tables": {"convergence": {"experiments": ["mine"]}},
        "figures": ["convergence"],
        "observations": {"loss_is_small": config["observations"]["loss_is_small"]},
    }
    (study.root / "config" / "mine.yaml").write_text(yaml.safe_dump(config))
    result = study.snakemake("--configfile", "config/mine.yaml", "--cores", "2")
    assert result.returncode == 0, result.stdout
    results = study.root / "results" / "mine"
    observation = json.loads((results / "observations" / "loss_is_small.json").read_text())
    assert observation["threshold"] == 0.5
    assert observation["n"] == 3
    assert observation["verdict"] == "not supported", "three epochs do not learn a ring"
    partition = json.loads((results / "partitions" / "mine" / "stripes-2" / "partition.json").read_text())
    assert partition["total"]["edge_cut"] == 80, "both i + 1 and i + 7 are odd steps, so that every edge is cut"


@pytest.mark.slow
def test_traces_of_ones_own_come_out_as_it_says(finished, tmp_path):
    study = copy_of(finished, tmp_path / "study")
    text = section("Bring your own traces")
    (entry,) = blocks(text, "yaml")
    shipped = yaml.safe_load((study.root / "config" / "traces.yaml").read_text())
    assert shipped["traces"]["mine"]["path"] == yaml.safe_load(entry)["traces"]["mine"]["path"]
    commands = [line for block in blocks(text, "sh") for line in block.splitlines()]
    assert len(commands) == 4
    for command in commands:
        environment = os.environ | {"PATH": PATH}
        result = subprocess.run(command, shell=True, cwd=study.root, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    results = study.root / "results"
    figures = [*re.findall(r"`(\w+)` \(", text), "imbalance"]
    assert sorted(figures) == sorted(shipped["figures"])
    assert all((results / "own" / "figures" / f"{figure}.pdf").is_file() for figure in figures)
    assert (results / "demo" / "figures" / "phases.pdf").is_file()
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    files = {name for row in rows for name in re.findall(r"`([a-z_]+\.[a-z.]+)`", row)}
    intervals = {"intervals.parquet"}
    assert {path.name for path in (results / "demo" / "traces" / "mine").iterdir()} - intervals == files


@pytest.mark.slow
def test_its_commands_by_hand_work(finished, tmp_path):
    study = copy_of(finished, tmp_path / "study")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free_port = str(probe.getsockname()[1])
    environment = os.environ | {"PATH": PATH, "PET_MASTER_PORT": free_port}  # torchrun's --master-port
    commands = [line for line in blocks(section("Folders"), "sh")[0].splitlines() if line]
    assert len(commands) == 4
    for command in commands:
        result = subprocess.run(command, shell=True, cwd=study.root, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, f"{command}\n{result.stderr}"
    demo = study.root / "results" / "demo"
    manifests = ("graph/graph.json", "partition/partition.json", "run/manifest.json", "traces/traces.json")
    assert all((demo / manifest).is_file() for manifest in manifests)


def test_it_names_every_partitioner_that_one_may_choose():
    named = re.search(r"\*\*A partitioner\*\* (.*?) to edges", README, re.DOTALL).group(1)
    assert set(re.findall(r"`(\w+)`", named)) == set(PARTITIONERS) - {ROOT_PARTITIONER}


def test_files_and_targets_that_it_names_exist():
    root = Path(__file__).parents[2]
    for name in re.findall(r"`((?:config|envs|rules|tests|profiles|workflow)/[^`\s]*)`", README):
        created = name.endswith(("stripes.py", "fullgraph_twice.py", "loss_is_small.py"))
        assert created or (root / name).exists(), name
    targets = re.search(r"The targets (.*?) build", README, re.DOTALL).group(1)
    snakefile = (root / "Snakefile").read_text()
    for target in re.findall(r"`(\w+)`", targets):
        assert f"rule {target}:" in snakefile

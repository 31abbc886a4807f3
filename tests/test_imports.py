"""What decides a result is found from the import statements, and nothing else is."""

import os
import subprocess
import sys

import pytest

from anatomy.imports import LIBRARY, modules_behind

TRAINING = LIBRARY / "training"


def names(files):
    return {str(file.relative_to(LIBRARY)) for file in files if file.is_relative_to(LIBRARY)}


def test_a_strategy_is_behind_itself_only(scripts):
    found = names(modules_behind([scripts / "launch_run.py", TRAINING / "strategies" / "minibatch.py"], "training"))
    assert {"training/strategies/minibatch.py", "training/features.py", "training/run.py"} <= found
    assert "training/strategies/fullgraph.py" not in found


def test_a_module_that_only_one_strategy_imports_is_behind_that_one():
    behind = {
        name: names(modules_behind([TRAINING / "strategies" / f"{name}.py"], "training"))
        for name in ("minibatch", "fullgraph")
    }
    assert "training/features.py" in behind["minibatch"]
    assert "training/features.py" not in behind["fullgraph"]
    assert "training/boundary.py" in behind["fullgraph"]


@pytest.mark.parametrize(("method", "expected"), [("metis", True), ("hierarchical", True), ("ldg", False)])
def test_what_runs_in_a_process_of_its_own_is_behind_who_starts_it(method, expected):
    found = names(modules_behind([LIBRARY / "partitions" / "methods" / f"{method}.py"], "partitions"))
    assert ("partitions/methods/_metis_process.py" in found) == expected


def test_a_program_that_a_strategy_starts_is_behind_it():
    found = names(modules_behind([TRAINING / "strategies" / "distdgl.py"], "training"))
    assert "training/distdgl/server.py" in found


def test_other_stages_are_not_followed(scripts):
    found = names(modules_behind([scripts / "train_run.py"], "training", "phases.py"))
    assert "phases.py" in found
    assert not [name for name in found if name.startswith(("graphs/", "partitions/"))]


@pytest.mark.parametrize(
    ("program", "stage"),
    [("build_graph.py", "graphs"), ("partition_graph.py", "partitions"), ("parse_traces.py", "traces")],
)
def test_no_module_that_a_program_loads_is_missed(scripts, program, stage):
    """Against the truth: what Python has loaded when the program has shown its help."""
    code = f"""
import runpy, sys
sys.argv = [{program!r}, "--help"]
try:
    runpy.run_path({str(scripts / program)!r}, run_name="__main__")
except SystemExit:
    pass
for name, module in sys.modules.items():
    if name.startswith("anatomy.{stage}"):
        print(module.__file__, file=sys.stderr)
"""
    environment = os.environ | {"PYTHONPATH": str(scripts)}
    loaded = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    # Sources are loaded by name, all of them, to show their options.
    roots = [scripts / program, *(LIBRARY / "graphs" / "sources").glob("[!_]*.py")]
    assert set(loaded.stderr.split()) <= set(map(str, modules_behind(roots, stage)))
    assert loaded.stderr

"""The test study from its first rule to its report, and what a later call does."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

TEST = ("--configfile", "config/test.yaml", "--cores", "2")


@pytest.mark.slow
def test_every_rule_ran(finished):
    checkout, said = finished
    listed = checkout.snakemake("--list-rules", "--configfile", "config/test.yaml", "--quiet", "all").stdout.split()
    targets = set(
        checkout.snakemake("--list-target-rules", "--configfile", "config/test.yaml", "--quiet", "all").stdout.split()
    )
    ran = set(re.findall(r"^([a-z_]+) +\d+$", said, re.MULTILINE))
    assert set(listed) - targets - ran == set()
    assert len(ran) > 10


@pytest.mark.slow
def test_the_terminal_tells_how_far_it_is(finished):
    _, said = finished
    assert re.search(r"\d+ of \d+ steps \(\d+%\) done", said)
    assert "train tiny.metis-2.minibatch.sage.s0" in said
    assert "$(dirname" not in said, "no wall of shell commands"


@pytest.mark.slow
def test_results_are_there_and_nothing_is_half_written(finished):
    checkout, _ = finished
    results = checkout.root / "results" / "test"
    assert (results / "report.html").stat().st_size > 10_000
    verdict = json.loads((results / "observations" / "preparation_dominates.json").read_text())["verdict"]
    assert verdict == "inconclusive", "one repetition is no evidence"
    assert [path for path in results.rglob("*") if "partial" in path.name] == []
    built_elsewhere = {path.name for path in checkout.root.iterdir()} - {"results", ".snakemake"}
    assert built_elsewhere == {"Snakefile", "rules", "workflow", "profiles", "config", "envs", "tests"}


@pytest.mark.slow
def test_second_call_does_nothing_and_says_so(finished):
    checkout, _ = finished
    result = checkout.snakemake(*TEST)
    assert result.returncode == 0
    assert "Nothing to be done" in result.stdout
    assert checkout.planned(*TEST) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("figures/phases.py", {"draw_figure", "build_report"}),
        ("tables/volume.py", {"tabulate_study", "draw_figure", "build_report"}),
        ("observations/preparation_dominates.py", {"judge_observation", "build_report"}),
    ],
)
def test_a_changed_module_reruns_what_it_decides_and_no_more(finished, module, expected):
    checkout, _ = finished
    path = checkout.root / "workflow" / "scripts" / "anatomy" / module
    original = path.read_bytes()
    stamps = path.stat()
    try:
        path.write_bytes(original + b"\n# changed\n")
        assert checkout.planned(*TEST) - {"all"} == expected
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))


@pytest.mark.slow
def test_training_module_reruns_training(finished):
    checkout, _ = finished
    path = checkout.root / "workflow" / "scripts" / "anatomy" / "training" / "strategies" / "minibatch.py"
    original, stamps = path.read_bytes(), path.stat()
    try:
        path.write_bytes(original + b"\n# changed\n")
        planned = checkout.planned(*TEST)
        assert {"train_run", "profile_run"} <= planned
        assert not {"build_graph", "partition_graph"} & planned
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))


BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "dgl", "ogb"}:
            raise ModuleNotFoundError(f"{name} is not installed here")
sys.meta_path.insert(0, Blocker())
"""


@pytest.mark.slow
def test_later_stages_run_without_torch_and_dgl(finished, tmp_path):
    checkout, _ = finished
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    environment = {"PYTHONPATH": str(tmp_path)}
    blocked = subprocess.run([sys.executable, "-c", "import torch"], env=os.environ | environment, capture_output=True)
    assert blocked.returncode != 0, "the blocker works"
    copy = tmp_path / "copy"
    shutil.copytree(checkout.root, copy, symlinks=True)
    later = ("traces", "tables", "figures", "observations", "report.html", "config.json")
    for name in later:
        target = copy / "results" / "test" / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    again = type(checkout).__new__(type(checkout))
    again.root = copy
    result = again.snakemake(*TEST, **environment)
    assert result.returncode == 0, result.stdout
    ran = set(re.findall(r"^([a-z_]+) +\d+$", result.stdout, re.MULTILINE))
    assert {"parse_trace", "tabulate_study", "draw_figure", "judge_observation", "build_report"} <= ran
    assert not {"train_run", "profile_run", "build_graph", "partition_graph"} & ran


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [4, 9])
def test_after_kill_the_next_call_carries_on(finished, tmp_path, after_s):
    """Snakemake is killed at work; its jobs go with it; the next call ends well."""
    checkout, _ = finished
    fresh = type(checkout)(tmp_path / "study")
    process = subprocess.Popen(
        fresh.command(*TEST), cwd=fresh.root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(after_s)
    assert process.poll() is None, "killed in the middle, not after the end"
    process.send_signal(signal.SIGKILL)
    process.wait()
    result = fresh.snakemake(*TEST)
    assert result.returncode == 0, result.stdout
    assert (fresh.root / "results" / "test" / "report.html").is_file()

"""The test study from its first rule to its report, and what a later call does."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
import yaml

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
    started = re.findall(r"^\d\d:\d\d:\d\d +(\d+) of (\d+) done   \S", said, re.MULTILINE)
    jobs = int(re.search(r"^total +(\d+)$", said, re.MULTILINE).group(1))
    assert {int(total) for _, total in started} == {jobs}
    assert [int(done) for done, _ in started] == sorted(int(done) for done, _ in started)
    assert re.search(rf"{jobs} of {jobs} done$", said, re.MULTILINE)
    assert "train tiny.metis-2.minibatch.sage.s0" in said
    assert len(said.splitlines()) < 2 * jobs, "a line for each job, no wall of rules"


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
@pytest.mark.parametrize(
    "folder", ["graphs/sources", "partitions/methods", "training/strategies", "tables", "observations"]
)
def test_a_file_added_beside_the_others_reruns_nothing(finished, folder):
    checkout, _ = finished
    library = checkout.root / "workflow" / "scripts" / "anatomy" / folder
    added = library / "another.py"
    added.write_bytes(next(library.glob("[!_]*.py")).read_bytes())
    try:
        assert checkout.planned(*TEST) == set()
    finally:
        added.unlink()


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
    copy = checkout.copied_to(tmp_path / "copy")
    later = ("traces", "tables", "figures", "observations", "report.html", "config.json")
    for name in later:
        target = copy.root / "results" / "test" / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    result = copy.snakemake(*TEST, **environment)
    assert result.returncode == 0, result.stdout
    ran = set(re.findall(r"^([a-z_]+) +\d+$", result.stdout, re.MULTILINE))
    assert {"parse_trace", "tabulate_study", "draw_figure", "judge_observation", "build_report"} <= ran
    assert not {"train_run", "profile_run", "build_graph", "partition_graph"} & ran


def processes_in(folder):
    """Command lines of the processes that work in a folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.cmdline())
    return found


@pytest.mark.slow
def test_a_mistake_in_the_configuration_is_one_message(finished):
    checkout, _ = finished
    result = checkout.snakemake(*TEST, "--config", "figurs=1")
    assert result.returncode == 1
    assert "Traceback" not in result.stdout
    message = result.stdout[result.stdout.index("error: ") :]
    assert message.startswith(
        "error: config/test.yaml: 1 mistake(s)\n  (top level): unknown key 'figurs', did you mean 'figures'?"
    )


@pytest.mark.slow
def test_a_failed_job_shows_its_log_and_stops_no_other(finished, tmp_path):
    """A graph whose features were damaged: what trains on it says so, the rest of the study is built."""
    checkout, _ = finished
    copy = checkout.copied_to(tmp_path / "copy")
    results = copy.root / "results" / "test"
    features = results / "graphs" / "cliques" / "features.npy"
    features.write_bytes(features.read_bytes()[:-4])
    metrics = results / "runs" / "cliques.single-1.fullgraph.sage.s0" / "timed" / "metrics.json"
    metrics.unlink()
    (results / "figures" / "phases.pdf").unlink()
    result = copy.snakemake(*TEST)
    assert result.returncode == 1
    assert re.search(r"FAILED: train cliques\S+\n.*logs/\S+cliques", result.stdout)
    assert "error: results/test/graphs/cliques/features.npy: damaged" in result.stdout
    assert "Traceback" not in result.stdout
    assert "CalledProcessError" not in result.stdout, "what the log says is enough"
    assert not metrics.exists()
    assert (results / "figures" / "phases.pdf").exists()


@pytest.mark.slow
def test_the_default_profile_leaves_another_profile_its_say(finished, tmp_path):
    checkout, _ = finished
    profile = tmp_path / "site"
    profile.mkdir()
    (profile / "config.yaml").write_text("configfile: config/test.yaml\nexecutor: slurm\njobs: 3\n")
    result = checkout.snakemake("--profile", str(profile), "--dry-run", "--forceall")
    assert result.returncode == 0, result.stdout
    assert "tiny.metis-2" in result.stdout
    default = yaml.safe_load((checkout.root / "profiles" / "default" / "config.yaml").read_text())
    where = {"executor", "jobs", "configfile", "resources", "default-resources", "set-resources", "set-threads"}
    assert not where & default.keys()


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
    end = time.monotonic() + 15
    while jobs := processes_in(fresh.root):
        assert time.monotonic() < end, f"jobs outlive their study: {jobs}"
        time.sleep(0.1)
    result = fresh.snakemake(*TEST)
    assert result.returncode == 0, result.stdout
    assert (fresh.root / "results" / "test" / "report.html").is_file()


@pytest.mark.slow
def test_accuracy_by_ogbs_evaluator_equals_ours(finished, tmp_path):
    """The same run on the same graph, once as a graph of OGB's: its Evaluator must come to the same accuracies."""
    checkout, _ = finished
    results = checkout.root / "results" / "test"
    graph = tmp_path / "tiny"
    shutil.copytree(results / "graphs" / "tiny", graph)
    manifest = json.loads((graph / "graph.json").read_text())
    (graph / "graph.json").write_text(json.dumps(manifest | {"evaluator": "ogbn-arxiv"}))
    run = results / "runs" / "tiny.metis-2.fullgraph.sage.s0"
    command = [sys.executable, "workflow/scripts/launch_run.py", "--spec", run / "run.json", "--graph", graph]
    command += ["--partition", results / "partitions" / "tiny" / "metis-2", "--out", tmp_path / "out"]
    subprocess.run(command, cwd=checkout.root, check=True)
    ours, theirs = (json.loads((folder / "metrics.json").read_text()) for folder in (run / "timed", tmp_path / "out"))
    assert theirs["final"] == pytest.approx(ours["final"], abs=1e-9)
    assert 0.3 < theirs["final"]["test_accuracy"] <= 1

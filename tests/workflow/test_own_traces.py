"""Studies of traces that were recorded elsewhere: nothing is trained, everything that needs traces alone is built.

tests/data/traces was made by hand: two ranks of a job with GPUs and NCCL, two steps of 1000 us each, in which (in us)

    rank 0  copies 40-140, computes 140-500 and 800-860, all-reduces 1 MB from 450 to 800
    rank 1  copies 40-140, computes 140-600 and 800-860, all-reduces it from 550 to 800
"""

import re
import shutil

import pandas as pd
import pytest

OWN = ("--configfile", "config/traces.yaml", "--cores", "2")
TEST = ("--configfile", "config/test.yaml", "--cores", "2")
MICROSECONDS = 1e-6
TRAINING = {"fetch_source", "build_graph", "partition_graph", "specify_run", "train_run", "profile_run"}


@pytest.fixture(scope="module")
def own(finished, tmp_path_factory):
    """A checkout in which config/traces.yaml was run as we ship it, and what the terminal showed."""
    checkout = finished[0].copied_to(tmp_path_factory.mktemp("own") / "study")
    result = checkout.snakemake(*OWN)
    assert result.returncode == 0, result.stdout
    return checkout, result.stdout


def table_of(checkout, name, results="own"):
    return pd.read_csv(checkout.root / "results" / results / "tables" / f"{name}.csv")


@pytest.mark.slow
def test_only_what_needs_traces_alone_is_built(own):
    checkout, said = own
    ran = set(re.findall(r"^([a-z_]+) +\d+$", said, re.MULTILINE)) - {"total", "all"}
    assert ran == {"parse_trace", "tabulate_study", "draw_figure", "record_config", "build_report"}
    results = checkout.root / "results" / "own"
    assert {path.name for path in (results / "traces" / "mine").glob("*.json*")} == {"traces.json", "timeline.json.gz"}
    assert not (results / "runs").exists()
    assert "Traces recorded elsewhere, GPU and NCCL" in (results / "figures" / "phases.csv").read_text()
    page = (results / "report.html").read_text()
    assert "This study judges no observations." in page
    assert "Where do the steps of this job go?" in page


@pytest.mark.slow
def test_its_numbers_are_those_of_the_traces(own):
    checkout, _ = own
    phases = table_of(checkout, "phases").set_index("group")
    spent = {"compute": (420 + 520) / 2, "communication": (300 + 200) / 2, "copy": 100, "idle": 40 + 140}
    assert phases["seconds_per_step"].to_dict() == pytest.approx({key: us * MICROSECONDS for key, us in spent.items()})
    assert phases.loc["communication", "wait_share"] == pytest.approx((550 - 500) / (300 + 200)), "what is not hidden"
    assert set(phases["platform"]) == {"GPU and NCCL"}
    (collective,) = table_of(checkout, "collectives").to_dict("records")
    assert (collective["kind"], collective["bytes_per_call"], collective["group_size"]) == ("all_reduce", 1e6, 2)
    assert collective["wait_s_per_call"] == pytest.approx((100 + 0) / 2 * MICROSECONDS)
    assert collective["transfer_s_per_call"] == pytest.approx(250 * MICROSECONDS)
    assert collective["bus_bandwidth_bytes_per_s"] == pytest.approx(1e6 / (250 * MICROSECONDS) * 2 * (2 - 1) / 2)
    assert collective["unmatched_share"] == 0
    imbalance = table_of(checkout, "imbalance").set_index("rank")
    assert imbalance["compute_s_per_step"].tolist() == pytest.approx([420 * MICROSECONDS, 520 * MICROSECONDS])
    assert imbalance["wait_share"].tolist() == pytest.approx([100 / 350, 0])
    kernels = table_of(checkout, "operators").query("device == 'cuda'").set_index("category")
    assert kernels["share"].sum() == pytest.approx(1)
    assert kernels.loc["dense", "self_s_per_step"] == pytest.approx((250 + 350) / 2 * MICROSECONDS)
    queueing = table_of(checkout, "queueing").set_index("rank")
    assert queueing["kernels_per_step"].tolist() == [5, 5], "without copies and communication"
    assert queueing["not_computing_s_per_step"].tolist() == pytest.approx([580 * MICROSECONDS, 480 * MICROSECONDS])
    causes = queueing.filter(regex="_bound_s|synchronisation_s|launched_s|unknown_s")
    assert causes.sum(axis=1).tolist() == pytest.approx(queueing["not_computing_s_per_step"].tolist())
    assert queueing["copy_bound_s_per_step"].tolist() == pytest.approx([100 * MICROSECONDS] * 2)


@pytest.mark.slow
def test_they_stand_beside_the_studys_own_runs_and_are_never_mixed_with_them(finished):
    checkout, _ = finished
    panels = pd.read_csv(checkout.root / "results" / "test" / "figures" / "phases.csv")["panel"].unique()
    assert sum("GPU and NCCL" in panel for panel in panels) == 1
    assert all(("GPU and NCCL" in panel) != ("CPU and Gloo" in panel) for panel in panels)
    queueing = table_of(checkout, "queueing", "test")
    assert set(queueing.loc[queueing["run"] != "gpus", "status"]) == {"no GPU"}
    assert set(queueing.loc[queueing["run"] == "gpus", "status"]) == {"completed"}


@pytest.mark.slow
@pytest.mark.parametrize("change", ["changed", "added", "removed"])
def test_a_changed_file_is_read_again_and_nothing_is_trained(finished, tmp_path, change):
    copy = finished[0].copied_to(tmp_path / "copy")
    folder = copy.root / "tests" / "data" / "traces"
    if change == "changed":
        (folder / "rank1.json").write_text((folder / "rank1.json").read_text().replace("ampere", "volta"))
    elif change == "added":
        shutil.copy2(folder / "rank1.json", folder / "rank2.json")
    else:
        (folder / "rank1.json").unlink()
    planned = copy.planned(*TEST)
    assert planned == {"parse_trace", "tabulate_study", "draw_figure", "judge_observation", "build_report", "all"}
    said = copy.snakemake(*TEST, "--dry-run").stdout
    assert set(re.findall(r"take the traces of (\S+) apart", said)) == {"gpus"}


@pytest.mark.slow
def test_a_folder_that_is_not_there_is_one_line_and_no_matter_of_other_studies(finished, tmp_path):
    copy = finished[0].copied_to(tmp_path / "copy")
    shutil.rmtree(copy.root / "tests" / "data" / "traces")
    result = copy.snakemake(*OWN)
    assert result.returncode == 1
    assert "Traceback" not in result.stdout
    assert "traces.mine.path: tests/data/traces does not exist; give a folder with one trace per rank" in result.stdout
    other = copy.snakemake("--configfile", "config/study.yaml", "--dry-run", "--quiet", "all")
    assert other.returncode == 0, other.stdout


@pytest.mark.slow
def test_a_damaged_trace_is_said_and_leaves_no_table(finished, tmp_path):
    copy = finished[0].copied_to(tmp_path / "copy")
    trace = copy.root / "tests" / "data" / "traces" / "rank1.json"
    trace.write_bytes(trace.read_bytes()[:-4])
    result = copy.snakemake(*OWN)
    assert result.returncode == 1
    said = r"FAILED: take the traces of mine apart\n\S*logs/failed/traces-mine\.log: error: .*rank1\.json"
    assert re.search(said, result.stdout)
    assert "Traceback" not in result.stdout
    assert not list((copy.root / "results" / "own").rglob("*.parquet"))

"""The whole stage: files in, tables out; by hand, and without what only training needs."""

import json
import os
import signal
import subprocess
import sys

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anatomy.arrow import TYPES
from anatomy.errors import StudyError
from anatomy.traces import parsing
from anatomy.traces.options import ParseOptions
from anatomy.traces.parsing import examine_files, parse_traces
from anatomy.traces.tables import COLUMNS

GPU_TABLES = ("queueing", "idle")
"""Tables that are empty without a GPU."""


@pytest.fixture
def traces(tmp_path, new_trace):
    """A folder with the traces of two ranks, of steps 3 and 4."""
    folder = tmp_path / "traces"
    for rank in range(2):
        trace = new_trace(rank, 2)
        for step in (3, 4):
            base = 1000 * step
            trace.step(step, base, base + 100)
            trace.op("aten::mm", base + 10, base + 40)
            trace.gloo("all_reduce", base + 50, base + 70 + rank)
        trace.write(folder, f"rank{rank}.json.gz")
    return folder


def profile_manifest(folder, **content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps({"kind": "profile", "run": "g.metis-2.s0", **content}))


def schema_of(table):
    return pa.schema(
        [(name, TYPES[kind] if kind in TYPES else pa.string()) for name, (kind, _) in COLUMNS[table].items()]
    )


def test_every_table_has_its_columns_and_types(tmp_path, traces):
    manifest = parse_traces(traces, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "traces.json").read_text()) == manifest
    for table, columns in COLUMNS.items():
        content = pq.read_table(tmp_path / "out" / f"{table}.parquet")
        assert content.schema.equals(schema_of(table))
        assert manifest["tables"][table]["rows"] == content.num_rows
        assert (content.num_rows > 0) == (table not in GPU_TABLES)
        assert list(manifest["tables"][table]["columns"]) == list(columns)
    assert manifest["kind"] == "traces"
    assert manifest["trace_kind"] == "cpu-gloo"
    assert manifest["ranks"] == [0, 1]
    assert manifest["missing_ranks"] == []
    assert manifest["num_steps"] == 2
    assert manifest["unmatched_share"] == 0


def test_equal_traces_give_equal_tables(tmp_path, traces):
    for out in ("first", "second"):
        parse_traces(traces, tmp_path / out)
    for name in ("timeline.json.gz", *(f"{table}.parquet" for table in COLUMNS)):
        first, second = ((tmp_path / out / name).read_bytes() for out in ("first", "second"))
        assert first == second


def test_several_processes_give_what_one_gives(tmp_path, traces, monkeypatch):
    parse_traces(traces, tmp_path / "one")
    monkeypatch.setattr(parsing, "SMALL_JOB_BYTES", 0)
    monkeypatch.setattr(parsing.os, "sched_getaffinity", lambda _: {0, 1})
    parse_traces(traces, tmp_path / "several")
    for table in COLUMNS:
        first, second = ((tmp_path / out / f"{table}.parquet").read_bytes() for out in ("one", "several"))
        assert first == second


@pytest.mark.parametrize("small_job_bytes", [0, 1_000_000])
def test_an_error_in_a_file_is_the_same_from_another_process(traces, monkeypatch, small_job_bytes):
    (traces / "rank1.json.gz").write_bytes(b"")
    monkeypatch.setattr(parsing, "SMALL_JOB_BYTES", small_job_bytes)
    with pytest.raises(StudyError, match=r"rank1\.json\.gz: the file is empty"):
        examine_files(sorted(traces.iterdir()), ParseOptions())


def test_a_process_that_is_killed_is_one_message(traces, monkeypatch):
    monkeypatch.setattr(parsing, "SMALL_JOB_BYTES", 0)
    monkeypatch.setattr(parsing.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(parsing, "read_trace", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(StudyError, match="a process that read one of 2 traces was killed"):
        examine_files(sorted(traces.iterdir()), ParseOptions())


def test_steps_that_a_rank_lacks_are_left_out_and_noted(tmp_path, traces, new_trace):
    trace = new_trace(1, 2)
    for step in (4, 5):
        trace.step(step, 1000 * step, 1000 * step + 100)
    trace.write(traces, "rank1.json.gz")
    manifest = parse_traces(traces, tmp_path / "out")
    assert manifest["num_steps"] == 1
    assert "steps 3, 5 are not in the traces of all ranks and are left out" in manifest["notes"]
    assert pd.read_parquet(tmp_path / "out" / "steps.parquet")["step"].tolist() == [4, 4]


@pytest.mark.parametrize("steps", [(7, 8), ()])
def test_ranks_without_a_common_step_are_an_error(tmp_path, traces, new_trace, steps):
    trace = new_trace(1, 2)
    trace.op("aten::mm", 10, 20)
    for step in steps:
        trace.step(step, 1000 * step, 1000 * step + 100)
    trace.write(traces, "rank1.json.gz")
    with pytest.raises(StudyError, match=r"have no step in common \(rank 0: \[3, 4\]; rank 1: (\[7, 8\]|none)\)"):
        parse_traces(traces, tmp_path / "out")
    assert not (tmp_path / "out" / "traces.json").exists()


def test_without_steps_the_whole_window_is_one(tmp_path, new_trace):
    trace = new_trace()
    trace.op("aten::mm", 1010, 1040)
    trace.op("aten::relu", 1050, 1110)
    trace.write(tmp_path / "traces", "rank0.json")
    manifest = parse_traces(tmp_path / "traces", tmp_path / "out")
    assert manifest["steps_annotated"] is False
    assert any("the whole window of each trace counts as one step, number 0" in note for note in manifest["notes"])
    steps = pd.read_parquet(tmp_path / "out" / "steps.parquet")
    assert steps[["step", "wall_ns", "compute_ns", "other_ns"]].to_numpy().tolist() == [[0, 100_000, 90_000, 10_000]]
    assert manifest["trace_kind"] == "cpu"


def test_a_delay_that_is_not_known_is_missing(tmp_path, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.kernel("gemm", 1010, 1040)
    trace.write(tmp_path / "traces", "rank0.json")
    parse_traces(tmp_path / "traces", tmp_path / "out")
    found = pd.read_parquet(tmp_path / "out" / "queueing.parquet")
    assert found[["kernels", "mean_kernel_ns", "launched"]].to_numpy().tolist() == [[1, 30_000, 0]]
    assert found[["delay_mean_ns", "delay_median_ns", "delay_p95_ns"]].isna().all(axis=None)


def test_an_unknown_phase_counts_as_other_and_is_noted(tmp_path, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.phase("dance", 1010, 1040)
    trace.write(tmp_path / "traces", "rank0.json")
    manifest = parse_traces(tmp_path / "traces", tmp_path / "out")
    assert any("phases dance are not among the study's" in note for note in manifest["notes"])
    assert pd.read_parquet(tmp_path / "out" / "phases.parquet")["phase"].tolist() == ["other"]


def test_a_run_of_the_study_names_itself_and_must_be_complete(tmp_path, traces):
    profile_manifest(traces, status="completed", reason=None, ranks=2)
    assert parse_traces(traces, tmp_path / "out")["run"] == "g.metis-2.s0"
    (traces / "rank1.json.gz").unlink()
    with pytest.raises(StudyError, match="no trace of rank 1; expected 2, found 1"):
        parse_traces(traces, tmp_path / "out")


def test_a_run_that_was_kept_as_a_failure_has_empty_tables(tmp_path):
    profile_manifest(tmp_path / "traces", status="out of memory", reason="rank 1 was killed", ranks=2)
    manifest = parse_traces(tmp_path / "traces", tmp_path / "out")
    assert manifest["status"] == "out of memory"
    assert manifest["notes"] == [
        "the profiled run ended as 'out of memory': rank 1 was killed; there are no traces to read"
    ]
    for table in COLUMNS:
        content = pq.read_table(tmp_path / "out" / f"{table}.parquet")
        assert content.num_rows == 0
        assert content.schema.equals(schema_of(table))


def test_an_error_leaves_no_table_and_keeps_an_earlier_result(tmp_path, traces):
    out = tmp_path / "out"
    parse_traces(traces, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (traces / "rank1.json.gz").write_bytes((traces / "rank1.json.gz").read_bytes()[:-4])
    with pytest.raises(StudyError, match=r"rank1\.json\.gz"):
        parse_traces(traces, out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    with pytest.raises(StudyError):
        parse_traces(traces, tmp_path / "fresh")
    assert not (tmp_path / "fresh").exists()


def test_the_traces_folder_is_no_place_for_the_tables(traces):
    with pytest.raises(StudyError, match="--out must be another folder"):
        parse_traces(traces, traces)


WITHOUT_TRAINING = """
import runpy, sys
for package in ("torch", "dgl", "ogb", "matplotlib"):
    sys.modules[package] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_script(scripts, *arguments):
    command = [sys.executable, "-c", WITHOUT_TRAINING, str(scripts / "parse_traces.py"), *map(str, arguments)]
    environment = {"PYTHONPATH": ":".join([str(scripts), *filter(None, sys.path)])}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_script_needs_neither_torch_nor_dgl(tmp_path, traces, scripts):
    done = run_script(scripts, "--traces", traces, "--out", tmp_path / "out", "--run", "mine", "--expected-ranks", 2)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "traces.json").read_text())["run"] == "mine"


def test_the_script_ends_with_one_message(tmp_path, traces, scripts):
    done = run_script(scripts, "--traces", traces, "--out", tmp_path / "out", "--expected-ranks", 3)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: {traces}: no trace of rank 2; expected 3")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()

"""How tables are written, read back, and asked for on the command line."""

import json
import subprocess
import sys

import pandas as pd
import pytest

from anatomy.errors import StudyError
from anatomy.options import complete_options
from anatomy.tables import TABLES
from anatomy.tables.common.inputs import Study, read_runs_file
from anatomy.tables.common.options import assignments, json_object
from anatomy.tables.common.store import open_table, tabulate


@pytest.fixture
def run(results):
    return results.run(epochs=[{"rank": 0, "val_accuracy": 0.5}, {"rank": 0, "epoch": 1}])


def test_a_table_is_written_with_its_dictionary_and_reads_back(results, run, tmp_path):
    tabulate("convergence", results.study(run), {}, tmp_path / "tables")
    frame, manifest = open_table(tmp_path / "tables" / "convergence.parquet")
    assert manifest["columns"]["train_s"]["unit"] == "s"
    assert manifest["rows"] == len(frame) == 2
    assert [machine["runs"] for machine in manifest["machines"]] == [[run]]
    assert frame["val_accuracy"].isna().tolist() == [False, True]
    csv = pd.read_csv(tmp_path / "tables" / "convergence.csv")
    assert csv["train_s"].tolist() == frame["train_s"].tolist()


def test_equal_inputs_give_equal_files(results, run, tmp_path):
    manifests = [tabulate("runs", results.study(run), {}, tmp_path / name) for name in ("a", "b")]
    assert manifests[0]["sha256"] == manifests[1]["sha256"]


def test_every_column_of_every_table_is_described():
    for name, plugin in TABLES.items():
        module = plugin.load()
        assert set(module.KEY) <= set(module.COLUMNS), name
        assert module.SUMMARY
        assert all(column.description for column in module.COLUMNS.values()), name
        complete_options({}, module.OPTIONS, name)


def test_a_table_without_runs_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(StudyError, match="no rows; name at least one run"):
        tabulate("runs", Study.of(tmp_path, []), {}, tmp_path / "tables")
    assert list((tmp_path / "tables").iterdir()) == []


def test_a_table_whose_runs_were_all_left_out_is_empty_and_says_so(tmp_path, results):
    left_out = {"a second host": ["tiny.metis-2.fullgraph.sage.h2.s0"]}
    tabulate("runs", Study.of(tmp_path, [], left_out=left_out), {}, tmp_path / "tables")
    frame, manifest = open_table(tmp_path / "tables" / "runs.parquet")
    assert frame.empty
    assert manifest["left_out"] == left_out


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda path: path.unlink(), "not found although its manifest is there"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "damaged"),
        (lambda path: pd.DataFrame({"run": ["a"]}).to_parquet(path), "found the columns run, the manifest says"),
    ],
)
def test_a_table_that_is_not_what_its_manifest_says_is_refused(results, run, tmp_path, break_it, message):
    tabulate("runs", results.study(run), {}, tmp_path)
    break_it(tmp_path / "runs.parquet")
    with pytest.raises(StudyError, match=message):
        open_table(tmp_path / "runs.parquet")


def test_damaged_inputs_are_named(results, run):
    epochs = results.folder / "runs" / run / "timed" / "epochs.parquet"
    epochs.write_bytes(epochs.read_bytes()[:-9])
    with pytest.raises(StudyError, match=r"epochs\.parquet: cannot be read"):
        TABLES["runs"].load().build(results.study(run), {})


def test_a_column_that_is_absent_is_an_error_and_not_a_guess(results, run):
    epochs = results.folder / "runs" / run / "timed" / "epochs.parquet"
    pd.read_parquet(epochs).drop(columns="wall_s").to_parquet(epochs)
    with pytest.raises(StudyError, match="wall_s"):
        TABLES["runs"].load().build(results.study(run), {})


def test_runs_file(tmp_path):
    path = tmp_path / "runs.txt"
    path.write_text("strong\tone\n\nweak\tone\ntwo\n")
    pairs = read_runs_file(path)
    assert pairs == [("strong", "one"), ("weak", "one"), ("", "two")]
    study = Study.of(tmp_path, pairs)
    assert [(run.name, run.experiments) for run in study.runs] == [("one", ("strong", "weak")), ("two", ())]
    path.write_text("a\tb\tc\n")
    with pytest.raises(StudyError, match=r"line 1: found 3 fields"):
        read_runs_file(path)
    with pytest.raises(StudyError, match="not found"):
        read_runs_file(tmp_path / "none")


def test_options_are_checked():
    schema = TABLES["cache"].constants["OPTIONS"]
    assert complete_options({}, schema, "cache") == {"capacity_shares": [0.01, 0.05, 0.1, 0.2]}
    with pytest.raises(StudyError, match="unknown key 'capacity'"):
        complete_options({"capacity": 1}, schema, "cache")
    with pytest.raises(StudyError, match=r"capacity_shares\.0: found 2\.0, expected at most 1"):
        complete_options({"capacity_shares": [2.0]}, schema, "cache")
    assert assignments(["ranks=2", "graph=powerlaw", "a=b=c"], "--where") == {
        "ranks": 2,
        "graph": "powerlaw",
        "a": "b=c",
    }
    assert json_object('{"strong": ["a"]}') == {"strong": ["a"]}
    with pytest.raises(StudyError, match="not valid JSON"):
        json_object("{strong: a}")
    with pytest.raises(StudyError, match="found list, expected a JSON object"):
        json_object("[1]")
    with pytest.raises(StudyError, match="expected NAME=VALUE"):
        assignments(["graph"], "--where")


def test_the_program_writes_a_table_by_hand(results, run, scripts, tmp_path):
    command = [sys.executable, scripts / "tabulate_study.py", "scaling", "--results", results.folder, "--out", tmp_path]
    runs_file = tmp_path / "runs.txt"
    runs_file.write_text(f"a\t{run}\nb\t{run}\n")
    ended = subprocess.run(
        [*command, "--runs-file", runs_file, "--strong", "a", "--options", '{"weak": ["b"]}'],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "scaling.json").read_text())["options"] == {"strong": ["a"], "weak": ["b"]}
    ended = subprocess.run([*command, "--run", "absent"], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ")
    assert "absent/timed/metrics.json: not found" in ended.stderr


def test_an_option_of_one_value_is_given_by_hand(results, run, scripts, tmp_path):
    command = [sys.executable, scripts / "tabulate_study.py", "strategies", "--results", results.folder]
    command += ["--out", tmp_path, "--run", run, "--baseline", "minibatch"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "strategies.json").read_text())["options"] == {"baseline": "minibatch"}


def test_an_unknown_table_is_answered_with_those_that_there_are(scripts):
    ended = subprocess.run([sys.executable, scripts / "tabulate_study.py", "phase"], capture_output=True, text=True)
    assert ended.returncode == 1
    assert f"there are: {', '.join(sorted(TABLES))};" in ended.stderr

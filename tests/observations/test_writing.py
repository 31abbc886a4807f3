"""Verdicts as files, and the table that closes a study in the terminal."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from anatomy.errors import StudyError
from anatomy.files import read_json, write_json
from anatomy.observations import OBSERVATIONS
from anatomy.observations.common.reading import load_observations
from anatomy.observations.common.store import judge_observation
from anatomy.observations.common.terminal import measured, takes_colour, verdict_table
from anatomy.options import complete_options
from anatomy.tables import TABLES
from anatomy.tables.common.columns import dictionary

MACHINE = {"cpu": "a processor", "cores": 2, "memory_bytes": 8, "system": "Linux"}


@pytest.fixture
def table_of(planted, tmp_path):
    """Writes the planted table of an observation, as the table stage would, and returns its path."""

    def write(observation: str, holds: bool = True) -> Path:
        name = OBSERVATIONS[observation].constants["TABLE"]
        frame = planted.table(observation, holds)
        path = tmp_path / "tables" / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        frame.to_parquet(path, index=False)
        manifest = {"kind": "table", "table": name, "columns": dictionary(TABLES[name].load().COLUMNS)}
        manifest |= {"machines": [{**MACHINE, "runs": sorted(set(frame["run"]))}], "sha256": {"parquet": "0" * 64}}
        write_json(path.with_suffix(".json"), manifest)
        return path

    return write


def judged(observation: str, table: Path, out: Path, **options) -> dict:
    schema = OBSERVATIONS[observation].constants["OPTIONS"]
    return judge_observation(observation, table, complete_options(options, schema, observation), out)


@pytest.mark.parametrize("observation", list(OBSERVATIONS))
def test_a_verdict_file_holds_all_that_was_promised(observation, table_of, tmp_path):
    out = tmp_path / "observations"
    verdict = judged(observation, table_of(observation), out)
    assert read_json(out / f"{observation}.json", "observation") == verdict
    promised = "claim source statistic unit estimate confidence ci_low ci_high n threshold direction verdict reason"
    assert {*promised.split(), "holds_for", "table", "figure", "runs", "values"} <= verdict.keys()
    assert verdict["verdict"] == "supported"
    assert verdict["holds_for"] == {"platform": "CPU and Gloo", **MACHINE}
    assert verdict["n"] == len(verdict["values"]) == len(verdict["seeds"]) == 8
    assert verdict["notes"]
    assert verdict["runs"]


def test_a_verdict_without_numbers_is_a_file_as_well(table_of, tmp_path):
    verdict = judged("preparation_dominates", table_of("preparation_dominates"), tmp_path, where={"graph": "none"})
    assert verdict["verdict"] == "inconclusive"
    assert (verdict["estimate"], verdict["ci_low"], verdict["values"], verdict["n"]) == (None, None, [], 0)
    assert verdict["holds_for"]["cpu"] == "a processor"


@pytest.mark.parametrize("slow_ones", ["no table", "no slow link"])
def test_what_was_left_out_is_not_measurable_and_what_is_missing_is_inconclusive(table_of, tmp_path, slow_ones):
    """A study on one host has no run at all; a cluster whose links cannot be set has those of links as they are."""
    path = table_of("slow_links_dominate")
    table = pd.read_parquet(path)
    (table.head(0) if slow_ones == "no table" else table[table["link_mbit"].isna()]).to_parquet(path, index=False)
    missing = judged("slow_links_dominate", path, tmp_path)
    assert missing["verdict"] == "inconclusive"
    manifest = json.loads(path.with_suffix(".json").read_text())
    wants = {"a second host": ["one"], "links that can be given a bandwidth": ["one", "two"]}
    path.with_suffix(".json").write_text(json.dumps(manifest | {"left_out": wants}))
    verdict = judged("slow_links_dominate", path, tmp_path)
    assert verdict["verdict"] == "not measurable here"
    assert verdict["reason"].startswith("no run with link_mbit = 100")
    assert verdict["reason"].endswith("for want of a second host and links that can be given a bandwidth")


def test_left_out_runs_change_nothing_where_there_are_others(table_of, tmp_path):
    path = table_of("slow_links_dominate")
    manifest = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps(manifest | {"left_out": {"a third host": ["one"]}}))
    assert judged("slow_links_dominate", path, tmp_path)["verdict"] == "supported"


def test_runs_of_two_machines_are_both_named(table_of, tmp_path):
    path = table_of("preparation_dominates")
    manifest = json.loads(path.with_suffix(".json").read_text())
    runs = manifest["machines"][0]["runs"]
    manifest["machines"] = [{**MACHINE, "runs": runs[:4]}, {**MACHINE, "cpu": "another", "runs": runs[4:]}]
    path.with_suffix(".json").write_text(json.dumps(manifest))
    holds_for = judged("preparation_dominates", path, tmp_path)["holds_for"]
    assert holds_for["cpu"] == ["a processor", "another"]
    assert holds_for["cores"] == 2


def test_judging_twice_gives_the_same_file(table_of, tmp_path):
    path = table_of("cache_catches_refetches")
    for name in ("a", "b"):
        judged("cache_catches_refetches", path, tmp_path / name)
    first, second = ((tmp_path / name / "cache_catches_refetches.json").read_bytes() for name in ("a", "b"))
    assert first == second


def test_the_wrong_table_is_refused(table_of, tmp_path):
    with pytest.raises(StudyError, match=r"found the table 'cache'; preparation_dominates is judged on 'phases'"):
        judged("preparation_dominates", table_of("cache_catches_refetches"), tmp_path)


def test_the_program_judges_by_hand(table_of, scripts, tmp_path):
    path = table_of("partitioner_cuts_volume")
    command = [sys.executable, scripts / "judge_observation.py", "partitioner_cuts_volume", "--table", path]
    command += ["--out", tmp_path / "observations"]
    options = ["--threshold", "0.1", "--option", "baseline=random", "--where", "ranks=2"]
    options += ["--options", '{"threshold": 0.9, "confidence": 0.9}']
    ended = subprocess.run([*command, *options], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    verdict = json.loads((tmp_path / "observations" / "partitioner_cuts_volume.json").read_text())
    assert (verdict["verdict"], verdict["confidence"]) == ("not supported", 0.9)
    assert verdict["options"]["where"] == {"ranks": 2}
    ended = subprocess.run([*command, "--option", "colour=red"], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "unknown key 'colour'; known keys: " in ended.stderr


class TestClosingTable:
    @pytest.fixture
    def results(self, table_of, tmp_path):
        for observation in OBSERVATIONS:
            options = {"where": {"graph": "none"}} if observation == "weak_scaling_efficiency" else {}
            judged(
                observation,
                table_of(observation, holds=observation != "sync_is_waiting"),
                tmp_path / "observations",
                **options,
            )
        return tmp_path

    @pytest.mark.parametrize("width", [60, 80, 100, 120, 140])
    def test_it_fits_the_width_and_says_everything(self, results, width):
        text = verdict_table(load_observations(results), Path("results"), width, colour=False)
        assert max(map(len, text.splitlines())) <= width
        for name, plugin in OBSERVATIONS.items():
            assert name in text
            assert f"results/figures/{plugin.constants['FIGURE']}.pdf" in text
        totals = f"{len(OBSERVATIONS)} observations: {len(OBSERVATIONS) - 2} supported, 1 not supported, 1 inconclusive"
        assert totals in " ".join(text.split())
        assert "no run with mode = weak and graph = none" in text
        assert "measured on CPU and Gloo, a processor, 2 cores" in text

    def test_colour_adds_nothing_but_colour(self, results):
        observations = load_observations(results)
        plain, painted = (verdict_table(observations, results, 140, colour) for colour in (False, True))
        assert "\033[32m" in painted
        assert re.sub(r"\033\[\d+m", "", painted) == plain

    def test_numbers_show_on_which_side_of_the_threshold_they_lie(self):
        numbers = {"estimate": 0.497, "ci_low": 0.492, "ci_high": 0.49996, "threshold": 0.5}
        assert measured(numbers) == "0.497 [0.492, 0.49996]"
        assert measured(numbers | {"ci_high": 0.5}) == "0.497 [0.492, 0.5]"
        assert measured(numbers | {"estimate": None}) == "-"

    def test_colour_is_for_terminals_that_want_it(self):
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        assert takes_colour(Terminal(), {})
        assert not takes_colour(Terminal(), {"NO_COLOR": "1"})
        assert not takes_colour(Terminal(), {"TERM": "dumb"})
        assert not takes_colour(io.StringIO(), {})

    def test_the_program_shows_it(self, results, scripts):
        command = [sys.executable, scripts / "show_verdicts.py", "--results", results]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "preparation_dominates" in ended.stdout
        assert "\033" not in ended.stdout
        ended = subprocess.run([*command[:3], results / "empty"], capture_output=True, text=True)
        assert ended.returncode == 1
        assert "found no verdicts" in ended.stderr

"""What a configuration plans: runs without repetition, those that need what a machine lacks, and recorded traces."""

import copy
import re
from pathlib import Path

import pytest
import yaml

from anatomy.configuration import check_configuration, trace_files
from anatomy.errors import StudyError
from anatomy.plan import Plan

TEST = yaml.safe_load((Path(__file__).parents[1] / "config" / "test.yaml").read_text())


def test_shared_runs_are_run_once_and_one_rank_needs_no_partitioner():
    config = copy.deepcopy(TEST)
    config["experiments"] = {
        "one": {**TEST["experiments"]["all"], "ranks": [1, 2], "profile": False},
        "two": {**TEST["experiments"]["all"], "seeds": [0, 1]},
    }
    config["tables"] = {name: {"experiments": ["one", "two"]} for name in config["tables"]}
    plan = Plan(check_configuration(config, "mine.yaml"))
    assert len(plan.experiments["one"]) == 2 + 4, "metis and random are the same on one rank"
    assert len(plan.experiments["two"]) == 8
    assert len(plan.runs) == 2 + 8
    assert plan.profiled == {run.name for run in plan.experiments["two"]}
    assert ("tiny", "single-1") in plan.partitions
    specification = plan.specification("tiny.single-1.minibatch.sage.s0")
    assert specification["ranks"] == specification["num_parts"] == 1
    assert specification["strategy"]["fanouts"] == [4, 4]


def test_ranks_that_do_not_share_a_host_are_other_runs_on_several():
    config = copy.deepcopy(TEST)
    config["experiments"]["hosts"] |= {"ranks": [1, 2, 4], "ranks_per_host": [1, 2], "strategies": ["fullgraph"]}
    checked = check_configuration(config, "mine.yaml")
    names = [run.name for run in Plan(checked).experiments["hosts"]]
    assert names == [
        "tiny.single-1.fullgraph.sage.s0",
        "tiny.metis-2.fullgraph.sage.h2.s0",
        "tiny.metis-2.fullgraph.sage.s0",
        "tiny.metis-4.fullgraph.sage.h4.s0",
        "tiny.metis-4.fullgraph.sage.h2.s0",
    ]
    assert Plan(checked).specification(names[3])["hosts"] == 4
    assert "hosts" not in Plan(checked).specification(names[2]), "run.json on one host says nothing new"
    here = Plan(checked, max_hosts=1)
    assert [run.name for run in here.experiments["hosts"]] == [names[0], names[2]]
    left_out = here.left_out["a second host"]
    assert set(left_out) >= {names[1], names[3], names[4]}
    assert not set(left_out) & (set(here.runs) | here.profiled | set(here.traced))
    assert ("tiny", "metis-4") not in here.partitions


def test_without_a_cluster_the_test_study_is_complete_without_the_ranks_that_need_one():
    checked = check_configuration(copy.deepcopy(TEST), "mine.yaml")
    needs_hosts = {f"tiny.metis-2.{strategy}.sage.h2.s0" for strategy in ("minibatch", "fullgraph", "distdgl")}
    assert {run.name for run in Plan(checked).experiments["hosts"]} == needs_hosts
    here = Plan(checked, max_hosts=1, sets_links=False)
    assert needs_hosts < set(here.left_out["a second host"])
    assert here.runs.keys() == {name for name, run in Plan(checked).runs.items() if run.hosts == 1}


def test_links_of_another_bandwidth_make_another_run():
    checked = check_configuration(TEST, "mine.yaml")
    plan = Plan(checked)
    names = [run.name for run in plan.experiments["bandwidth"]]
    as_they_are, slow = "tiny.metis-2.fullgraph.sage.h2.s0", "tiny.metis-2.fullgraph.sage.h2.l500.s0"
    assert names == [as_they_are, slow]
    assert as_they_are in [run.name for run in plan.experiments["hosts"]], "run once for both"
    assert plan.specification(slow) == plan.specification(as_they_are) | {"run": slow, "link_mbit": 500}


SLOW = {"slow": {"rank": 1, "factor": 2}}
CONDITIONS = {
    "slow": SLOW,
    "half": {"cpu_share": {"rank": 0, "share": 0.5}},
    "late": {"slow": SLOW["slow"] | {"from_step": 99}},
}


def under_conditions(*names: str | None, **experiment) -> dict:
    """The test study with an experiment under these conditions."""
    config = copy.deepcopy(TEST) | {"conditions": copy.deepcopy(CONDITIONS)}
    config["experiments"]["disturbed"] = {
        "question": "Who waits?",
        "graphs": ["tiny"],
        "ranks": [2],
        "partitioners": ["metis"],
        "strategies": ["fullgraph"],
        "models": ["sage"],
        "seeds": [0],
        "conditions": list(names),
    } | experiment
    return config


def test_a_condition_makes_another_run():
    plan = Plan(check_configuration(under_conditions(None, "slow"), "mine.yaml"))
    as_it_is, slow = "tiny.metis-2.fullgraph.sage.s0", "tiny.metis-2.fullgraph.sage.c-slow.s0"
    assert [run.name for run in plan.experiments["disturbed"]] == [as_it_is, slow]
    condition = {"name": "slow", "slow": {"rank": 1, "factor": 2, "from_step": 0}}
    assert plan.specification(slow) == plan.specification(as_it_is) | {"run": slow, "condition": condition}


def test_a_share_of_a_processor_is_left_out_where_no_process_can_be_given_one():
    checked = check_configuration(under_conditions("slow", "half"), "mine.yaml")
    half = "tiny.metis-2.fullgraph.sage.c-half.s0"
    assert half in Plan(checked).runs
    here = Plan(checked, limits_cpu=False)
    assert half not in here.runs
    assert here.left_out == {"processes that can be given a share of a processor": [half]}


@pytest.mark.parametrize(
    ("names", "experiment", "training", "problem"),
    [
        (["slow"], {"ranks": [1, 2]}, {}, "slow: found rank 1 disturbed in a run of 1 rank(s)"),
        (["slow"], {}, {"device": "cuda"}, "slow: found a slow rank with device 'cuda'"),
        (["late"], {"profile": True}, {}, "late: found a rank slow from step 99 on, but a profile ends after"),
    ],
)
def test_conditions_that_a_run_cannot_be_under_are_mistakes(names, experiment, training, problem):
    config = under_conditions(*names, **experiment)
    config["training"] |= training
    with pytest.raises(StudyError, match=re.escape(f"experiments.disturbed.conditions: {problem}")):
        check_configuration(config, "mine.yaml")
    if not training:
        check_configuration(under_conditions(*names), "mine.yaml")


def test_what_needs_hosts_or_links_that_are_not_there_is_left_out_and_said():
    checked = check_configuration(TEST, "mine.yaml")
    slow = ["tiny.metis-2.fullgraph.sage.h2.l500.s0"]
    links, hosts = "links that can be given a bandwidth", "a second host"
    assert Plan(checked).left_out == {}
    on_plain_cluster = Plan(checked, sets_links=False)
    assert on_plain_cluster.left_out == on_plain_cluster.left_out_of_table("bandwidth") == {links: slow}
    assert len(on_plain_cluster.experiments["bandwidth"]) == 1
    assert on_plain_cluster.left_out_of_table("volume") == {}
    on_one_host = Plan(checked, max_hosts=1, sets_links=False)
    assert on_one_host.left_out[links] == slow, "they need both"
    assert set(slow) < set(on_one_host.left_out[hosts])
    assert on_one_host.experiments["bandwidth"] == on_one_host.of_table("bandwidth") == []


RECORDED = {
    "traces": {"mine": {"path": "tests/data/traces"}},
    "experiments": {"recorded": {"question": "Where does the time go?", "traces": ["mine"]}},
    "tables": {"phases": {"experiments": ["recorded"]}},
    "figures": ["phases"],
}


def test_a_study_of_recorded_traces_alone_needs_no_graph_and_trains_nothing():
    plan = Plan(check_configuration(RECORDED, "mine.yaml"))
    assert (plan.runs, plan.profiled, plan.partitions) == ({}, set(), set())
    assert plan.traced == ["mine"]
    assert plan.of_table("phases") == [("recorded", "mine")]


def test_all_traces_are_read_by_the_same_options_and_recorded_ones_by_their_own():
    rule = {"category": "sparse", "pattern": "my_kernel"}
    own = {"ranks": {"rank1.json": 1}, "ignore": ["*.txt.json"], "expected_ranks": 2}
    config = copy.deepcopy(TEST) | {"parsing": {"operator_rules": [rule]}}
    config["traces"]["gpus"] |= own
    plan = Plan(check_configuration(config, "mine.yaml"))
    shared = {"max_dropped_share": 0.05, "operator_rules": [rule]}
    assert plan.parse_options("gpus") == shared | own
    assert plan.parse_options("tiny.metis-2.minibatch.sage.s0") == shared | {"expected_ranks": 2}
    assert plan.traced == sorted([*plan.profiled, "gpus"])
    assert not plan.recorded & set(plan.runs)


def test_traces_that_no_experiment_takes_need_not_be_there():
    config = copy.deepcopy(TEST)
    config["traces"]["elsewhere"] = {"path": "/no/such/folder"}
    assert Plan(check_configuration(config, "mine.yaml")).recorded == {"gpus"}


def test_the_files_of_a_folder_are_found_anew_each_time(tmp_path):
    for name in ("rank1.json.gz", "rank0.json", "notes.txt", "rank0.config.json"):
        (tmp_path / name).touch()
    found = [str(tmp_path / name) for name in ("rank0.json", "rank1.json.gz")]
    assert trace_files({"path": str(tmp_path), "ignore": ["*.config.json"]}) == found
    assert trace_files({"path": found[1]}) == found[1:]

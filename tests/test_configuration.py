"""A mistake in a configuration ends before any job starts, in one message with file, key, value and remedy."""

import copy
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from anatomy.configuration import check_configuration
from anatomy.errors import StudyError
from anatomy.plan import Plan

CONFIGS = sorted((Path(__file__).parents[1] / "config").glob("*.yaml"))
TEST = yaml.safe_load((Path(__file__).parents[1] / "config" / "test.yaml").read_text())


def changed(path, value):
    """The test study with one entry changed; `path` is a dotted key, a value of ... deletes it."""
    config = copy.deepcopy(TEST)
    *parents, last = path.split(".")
    place = config
    for key in parents:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return config


def message(config):
    with pytest.raises(StudyError) as caught:
        check_configuration(config, "config/mine.yaml")
    return str(caught.value)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_configurations_we_ship_are_valid(path):
    plan = Plan(check_configuration(yaml.safe_load(path.read_text()), path.name))
    assert plan.runs or plan.recorded


@pytest.mark.parametrize(
    ("path", "value", "key", "found", "remedy"),
    [
        ("graps", {}, "(top level)", "unknown key 'graps', did you mean 'graphs'?", "known keys"),
        ("graphs.tiny.num_node", 7, "graphs.tiny", "unknown key 'num_node', did you mean 'num_nodes'?", "known keys"),
        ("partitioners.metis.sed", 0, "partitioners.metis", "unknown key 'sed', did you mean 'seed'?", "known keys"),
        ("strategies.minibatch.batchsize", 3, "strategies.minibatch", "unknown key 'batchsize'", "known keys"),
        ("models.sage.layers", 2, "models.sage", "unknown key 'layers'", "known keys"),
        ("training.lr", 0.1, "training", "unknown key 'lr'", "known keys"),
        ("profile.activ", 2, "profile", "unknown key 'activ', did you mean 'active'?", "known keys"),
        ("experiments.all.rank", [2], "experiments.all", "unknown key 'rank', did you mean 'ranks'?", "known keys"),
        ("tables.phases.experiment", [], "tables.phases", "unknown key 'experiment'", "known keys"),
        (
            "observations.preparation_dominates",
            {"treshold": 1},
            "observations.preparation_dominates",
            "'treshold'",
            "known",
        ),
        ("graphs.tiny.source", "powrlaw", "graphs.tiny.source", "'powrlaw' does not exist, did you mean", "there are"),
        ("partitioners.metis.method", "mettis", "partitioners.metis.method", "'mettis' does not exist", "there are"),
        ("strategies.minibatch.method", "sync", "strategies.minibatch.method", "'sync' does not exist", "there are"),
        ("strategies.minibatch.method", ..., "strategies.minibatch", "'method' is missing", "add it"),
        ("models.sage.layer", "gatt", "models.sage.layer", "found 'gatt', did you mean 'gat'?", "choose one of"),
        ("figures", ["phasis"], "figures", "'phasis' does not exist, did you mean 'phases'?", "there are"),
        ("figures", ["scaling"], "figures", "'scaling' reads the table 'scaling', for which no experiment", "add"),
        ("observations.scaling_efficency", None, "observations.scaling_efficency", "does not exist", "there are"),
        ("tables.phase", {"experiments": ["all"]}, "tables.phase", "'phase' does not exist", "there are"),
        (
            "tables.phases.experiments",
            ["al"],
            "tables.phases.experiments",
            "'al' does not exist, did you mean",
            "there are",
        ),
        ("experiments.all.graphs", ["tinny"], "experiments.all.graphs", "'tinny' does not exist", "there are"),
        ("experiments.all.partitioners", ["x"], "experiments.all.partitioners", "'x' does not exist", "there are"),
        ("experiments.all.strategies", ["x"], "experiments.all.strategies", "'x' does not exist", "there are"),
        ("experiments.all.models", ["x"], "experiments.all.models", "'x' does not exist", "there are"),
        ("experiments.all.parts", 3, "experiments.all.parts", "found 3 parts for 2 ranks", "leave `parts` out"),
        (
            "experiments.all.ranks",
            [601],
            "experiments.all.ranks",
            "found 601 parts, but graphs.tiny has only 600",
            "fewer",
        ),
        (
            "experiments.hosts",
            TEST["experiments"]["hosts"] | {"ranks": [3], "ranks_per_host": [2], "strategies": ["minibatch"]},
            "experiments.hosts.ranks_per_host",
            "found 2 for 3 ranks",
            "use a divisor",
        ),
        (
            "experiments.all.link_mbit",
            [None, 100],
            "experiments.all.link_mbit",
            "found [None, 100], but a run of tiny with 2 rank(s) takes one host",
            "leave `link_mbit` out",
        ),
        (
            "experiments.bandwidth.ranks",
            [1, 2],
            "experiments.bandwidth.link_mbit",
            "a run of tiny with 1 rank(s) takes one host",
            "spread it",
        ),
        ("experiments.bandwidth.link_mbit", [0], "experiments.bandwidth.link_mbit.0", "found 0", "raise it"),
        ("experiments.all.conditions", ["x"], "experiments.all.conditions", "'x' does not exist", "there are: none"),
        ("conditions", {"x": {}}, "conditions.x", "{}", "change it"),
        ("conditions", {"x": {"slow": {"rank": 0}}}, "conditions.x.slow", "the key 'factor'", "add it"),
        (
            "conditions",
            {"x": {"slow": {"rank": 0, "factor": 0.5}}},
            "conditions.x.slow.factor",
            "found 0.5",
            "raise it",
        ),
        ("experiments.hosts.ranks_per_host", 1, "experiments.hosts.ranks_per_host", "found 1", "expected array"),
        (
            "strategies.minibatch.method",
            "distdgl",
            "experiments.all.ranks_per_host",
            "found nothing, but each rank of minibatch needs a host of its own",
            "add `ranks_per_host: [1]`",
        ),
        ("experiments.all.ranks", [0], "experiments.all.ranks.0", "found 0, expected at least 1", "raise it"),
        ("experiments.all.ranks", ..., "experiments.all", "found graphs", "give either"),
        (
            "strategies.minibatch.fanouts",
            [4],
            "strategies.minibatch.fanouts",
            "1 fan-outs [4]",
            "one fan-out per layer",
        ),
        (
            "strategies.minibatch.batch_size",
            0,
            "strategies.minibatch.batch_size",
            "found 0, expected at least 1",
            "raise",
        ),
        ("graphs.tiny.train_fraction", 0.9, "graphs.tiny", "train_fraction", "at most 1"),
        ("models.sage.heads", 2, "models.sage.heads", "layer 'sage' has no heads", "give 1"),
        ("models.sage", {"layer": "gat", "hidden": 9, "heads": 2}, "models.sage.hidden", "found 9", "multiple of"),
        ("training.communication", "nccl", "training.communication", "'nccl' with device 'cpu'", "needs device"),
        ("graphs", {"a/b": TEST["graphs"]["tiny"]}, "graphs", "the name 'a/b' may not be used", "use letters"),
        ("graphs", {"a b": TEST["graphs"]["tiny"]}, "graphs", "the name 'a b' may not be used", "use letters"),
        ("graphs", {"a'b": TEST["graphs"]["tiny"]}, "graphs", "may not be used", "use letters"),
        ("models", {'a"b': TEST["models"]["sage"]}, "models", "may not be used", "use letters"),
        ("experiments", {"../up": TEST["experiments"]["all"]}, "experiments", "may not be used", "use letters"),
        ("traces", {"a.b": TEST["traces"]["gpus"]}, "traces", "the name 'a.b' may not be used", "use letters"),
        ("traces.gpus.pth", "x", "traces.gpus", "unknown key 'pth', did you mean 'path'?", "known keys"),
        ("traces.gpus", {}, "traces.gpus", "'path' (Folder with one trace per rank, or one trace.) is missing", "add"),
        ("traces.gpus.path", "no/where", "traces.gpus.path", "no/where does not exist", "give a folder"),
        ("traces.gpus.path", "tests/data", "traces.gpus", "tests/data: found no *.json or *.json.gz", "expected one"),
        ("traces.gpus.ignore", ["rank*"], "traces.gpus", "found no *.json or *.json.gz that are not", "expected one"),
        ("traces.gpus.ranks", {"rank2.json": 1}, "traces.gpus", "a rank is stated for rank2.json", "correct `ranks`"),
        ("traces.gpus.ranks", {"rank0.json": -1}, "traces.gpus.ranks.rank0.json", "found -1", "raise it"),
        ("traces.gpus.expected_ranks", 0, "traces.gpus.expected_ranks", "found 0, expected at least 1", "raise it"),
        ("parsing", {"max_droped_share": 0}, "parsing", "unknown key 'max_droped_share', did you mean", "known keys"),
        ("parsing", {"max_dropped_share": 2}, "parsing.max_dropped_share", "found 2, expected at most 1", "lower it"),
        (
            "parsing",
            {"operator_rules": [{"category": "sparce", "pattern": "x"}]},
            "parsing.operator_rules.0.category",
            "'sparce' does not exist, did you mean 'sparse'?",
            "there are",
        ),
        (
            "parsing",
            {"operator_rules": [{"category": "sparse", "pattern": "x("}]},
            "parsing.operator_rules.0.pattern",
            "found 'x(', expected a regular expression",
            "correct it",
        ),
        ("experiments.recorded.traces", ["gpu"], "experiments.recorded.traces", "'gpu' does not exist", "there are"),
        ("experiments.recorded.traces", ..., "experiments.recorded", "'strategies', 'models'", "add it"),
        (
            "experiments.recorded.graphs",
            ["tiny"],
            "experiments.recorded",
            "found traces and graphs; an experiment trains runs or takes traces",
            "make two of it",
        ),
        ("experiments.all.traces", ["gpus"], "experiments.all", "found traces and graphs, ranks", "make two of it"),
        (
            "tables.volume.experiments",
            ["all", "recorded"],
            "tables.volume.experiments",
            "'recorded' has traces alone, and this table needs runs",
            "take it out (traces are enough for bandwidth, collectives, imbalance",
        ),
        ("results", "/somewhere", "results", "found '/somewhere'", "change it"),
        ("partitioners.single", {"method": "metis"}, "partitioners.single", "built in", "rename"),
    ],
)
def test_bad_input(path, value, key, found, remedy):
    text = message(changed(path, value))
    assert text.startswith("config/mine.yaml: ")
    line = next(line for line in text.splitlines() if f"{key}: " in line)
    assert found in line
    assert remedy in line


def test_ranks_that_own_layers_are_no_more_than_these():
    config = changed("strategies.fullgraph.method", "pipeline")
    check_configuration(config, "config/mine.yaml")  # 2 ranks, 2 layers
    config["experiments"]["all"]["ranks"] = [1, 2, 3]
    text = message(config)
    assert "models.sage.num_layers: found 2 layers for 3 ranks" in text
    assert "at least 3 layers, or fewer ranks (in experiments.all)" in text
    config["strategies"]["fullgraph"] |= {"method": "decoupled", "modules": 1}
    check_configuration(config, "config/mine.yaml")


def test_all_mistakes_come_at_once():
    config = changed("strategies.minibatch.batch_size", 0)
    config["models"]["sage"]["hiden"] = 3
    config["graphs"]["tiny"]["source"] = "nowhere"
    text = message(config)
    assert "3 mistake(s)" in text
    assert all(word in text for word in ("batch_size", "hiden", "nowhere"))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.sampled_from(sorted(TEST)),
)
def test_nonsense_is_refused_and_never_a_traceback(value, key):
    config = copy.deepcopy(TEST) | {key: value}
    try:
        check_configuration(config, "mine.yaml")
    except StudyError:
        return
    may_be_empty = {"tables", "observations", "training", "profile", "traces"}
    assert key in may_be_empty | {"results", "figures", "experiments"}


def test_a_model_that_a_strategy_cannot_train_is_named_with_the_experiment():
    config = changed("strategies.fullgraph.method", "chunked")
    config["models"]["gat"] = {"layer": "gat", "hidden": 16}
    assert check_configuration(config, "config/mine.yaml"), "nothing trains it"
    config["experiments"]["all"]["models"] = ["gat"]
    said = message(config)
    assert "models.gat.layer: found 'gat', which strategy 'chunked' cannot train; use one of: gcn, sage," in said
    assert "(in experiments.all)" in said


def test_a_strategy_that_trains_on_a_vertex_cut_is_given_one():
    config = copy.deepcopy(TEST)
    config["strategies"]["late"] = {"method": "delayed", "epochs": 3}
    config["partitioners"]["edges"] = {"method": "libra"}
    config["experiments"]["all"]["strategies"] = ["fullgraph", "late"]
    text = message(config)
    assert "1 mistake(s)" in text
    assert "experiments.all.partitioners: found metis, random, but late trains on a vertex cut" in text
    assert text.endswith("give it an experiment with partitioners by: libra")
    config["experiments"]["all"]["ranks"] = [1]
    check_configuration(config, "mine.yaml")
    config["experiments"]["all"] |= {"ranks": [1, 2], "partitioners": ["edges"]}
    checked = check_configuration(config, "mine.yaml")
    assert checked["strategies"]["late"]["delay"] == 5


@pytest.mark.parametrize(
    ("ranks", "ranks_per_host", "cut_for", "found"),
    [
        ([1, 2, 4], [1], 1, None),
        ([2, 4], [2], 2, None),
        ([2], [4], 2, None),  # a host that is not full
        ([1, 2], None, 2, None),
        ([1, 2], None, 7, None),  # all on one host is what METIS cuts for
        ([2, 4], [1], 2, "found 2, but in experiments.hosts 1 of 2 ranks share a host; give the partitioner 1"),
        ([4], [2, 4], 2, "found 2, but in experiments.hosts 4 of 4 ranks share a host; give the partitioner 4"),
        ([4], None, 2, "found 2, but in experiments.hosts 4 of 4 ranks share a host"),
    ],
)
def test_a_partitioner_cuts_for_the_hosts_that_runs_have(ranks, ranks_per_host, cut_for, found):
    config = copy.deepcopy(TEST)
    config["partitioners"]["levels"] = {"method": "hierarchical", "ranks_per_host": cut_for}
    config["experiments"]["hosts"] |= {"ranks": ranks, "partitioners": ["levels"], "strategies": ["fullgraph"]}
    del config["experiments"]["hosts"]["ranks_per_host"]
    config["experiments"]["hosts"] |= {} if ranks_per_host is None else {"ranks_per_host": ranks_per_host}
    config["experiments"]["hosts"].pop("link_mbit", None)
    if found is None:
        check_configuration(config, "mine.yaml")
    else:
        text = message(config)
        assert f"partitioners.levels.ranks_per_host: {found}" in text
        assert f"`ranks_per_host: [{cut_for}]`" in text


def test_stages_are_checked_against_every_number_of_ranks():
    config = changed("strategies.fullgraph", {"method": "pipeline", "epochs": 3, "stages": 2})
    config["experiments"]["all"]["ranks"] = [2, 3]
    assert "strategies.fullgraph.stages: found 2 for 3 rank(s)" in message(config)
    config["experiments"]["all"]["ranks"] = [2, 4]
    assert "experiments.all" not in message(config)


def test_the_input_is_not_changed_and_defaults_are_filled_in():
    config = copy.deepcopy(TEST)
    checked = check_configuration(config, "mine.yaml")
    assert config == TEST
    assert checked["training"]["learning_rate"] > 0
    assert checked["experiments"]["all"]["profile"] is True
    assert checked["observations"]["preparation_dominates"]["confidence"] == 0.95

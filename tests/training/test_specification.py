"""Wrong settings and inputs that do not belong together end before training, in one message."""

import json
import shutil

import pytest
from training_cases import changed, job_for, specification, write_partition

from anatomy.errors import StudyError
from anatomy.training.options import LAYERS, MODEL_OPTIONS, STRATEGIES, gradient_policy
from anatomy.training.run import open_inputs
from anatomy.training.specification import read_specification


def read(tmp_path, spec):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(spec))
    return read_specification(path)


def test_defaults_are_filled_in(tmp_path):
    found = read(tmp_path, specification())
    assert found.training.learning_rate == 0.01
    assert found.model.dropout == 0.0
    assert found.training.threads_per_rank == 1


@pytest.mark.parametrize("gradients", [None, {"policy": "sparse", "density": 0.5}])
def test_a_policy_of_gradients_has_its_defaults(tmp_path, gradients):
    strategy = {"gradients": gradients} if gradients else {}
    name, options = gradient_policy(read(tmp_path, specification(strategy=strategy)).strategy)
    if gradients is None:
        assert (name, options) == ("dense", {})
    else:
        assert (name, options["density"], options["warmup_steps"]) == ("sparse", 0.5, 0)


@pytest.mark.parametrize(
    ("method", "operators", "expected"),
    [
        ("minibatch", "torch", {"torch", "numpy", "numba"}),
        ("minibatch", "dgl", {"torch", "numpy", "numba", "dgl"}),
        ("distdgl", "torch", {"torch", "numpy", "dgl"}),
        ("distdgl", "dgl", {"torch", "numpy", "dgl"}),
    ],
)
def test_the_packages_that_decide_what_is_measured_are_known(tmp_path, method, operators, expected):
    strategy = {"fanouts": [3, 2, 2], "batch_size": 4}
    found = read(tmp_path, specification(method, operators=operators, strategy=strategy)).packages
    assert set(found) == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize(
    ("method", "place", "value", "words"),
    [
        ("fullgraph", "epocs", 3, ["unknown key", "epocs"]),
        ("fullgraph", "training.learningrate", 0.1, ["training", "learningrate"]),
        ("fullgraph", "training.learning_rate", 0, ["training.learning_rate", "0"]),
        ("fullgraph", "training.operators", "pyg", ["training.operators", "pyg"]),
        ("fullgraph", "strategy.method", "magic", ["strategy.method", "magic", "minibatch"]),
        ("fullgraph", "strategy.fanouts", [1], ["strategy", "fanouts"]),
        ("fullgraph", "model.layer", "gin", ["model.layer", "gin", "sage"]),
        ("fullgraph", "model.heads", 2, ["model.heads", "sage"]),
        ("fullgraph", "model.initial_residual", 0.2, ["model.initial_residual", "found 0.2", "sage", "leave it out"]),
        ("fullgraph", "model.initial_residual", 1.5, ["model.initial_residual", "1.5"]),
        ("fullgraph", "model.identity_mapping", 1, ["model.identity_mapping", "found 1", "sage", "leave it out"]),
        ("broadcast", "model.layer", "gat", ["model.layer: found 'gat'", "'broadcast' cannot", "gcn, sage, gcnii"]),
        ("fullgraph", "strategy.gradients", 3, ["strategy.gradients", "found 3", "expected object"]),
        ("fullgraph", "strategy.gradients", {}, ["strategy.gradients", "'policy'", "missing"]),
        (
            "fullgraph",
            "strategy.gradients",
            {"policy": "bukets"},
            ["strategy.gradients.policy", "did you mean 'buckets'"],
        ),
        (
            "fullgraph",
            "strategy.gradients",
            {"policy": "dense", "size": 1},
            ["strategy.gradients", "unknown key 'size'"],
        ),
        (
            "fullgraph",
            "strategy.gradients",
            {"policy": "buckets", "bucket_mb": 0},
            ["strategy.gradients.bucket_mb", "found 0", "more than 0", "raise it"],
        ),
        (
            "fullgraph",
            "strategy.gradients",
            {"policy": "elastic"},
            ["strategy.gradients.policy: found 'elastic'", "'fullgraph'", "same weights", "buckets, dense, merged"],
        ),
        (
            "pipeline",
            "strategy.gradients",
            {"policy": "dense"},
            ["'pipeline'", "takes no policy", "leave `gradients` out"],
        ),
        ("fullgraph", "ranks", 2, ["ranks", "2 ranks", "1 parts"]),
        ("fullgraph", "training.communication", "nccl", ["training.communication", "cuda"]),
        ("minibatch", "strategy.batch_size", 0, ["strategy.batch_size", "0"]),
        ("minibatch", "strategy.fanouts", [2, 2], ["strategy.fanouts", "2 fan-outs", "3 layers"]),
        ("minibatch", "strategy.fanouts", [2, 0, 2], ["strategy.fanouts", "0"]),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, method, place, value, words):
    with pytest.raises(StudyError) as error:
        read(tmp_path, changed(specification(method), place, value))
    for word in [str(tmp_path / "run.json"), *words]:
        assert word in str(error.value)


def test_gcnii_has_options_of_its_own(tmp_path):
    found = read(tmp_path, specification(layer="gcnii", model={"initial_residual": 0.5, "identity_mapping": 1.5}))
    assert (found.model.initial_residual, found.model.identity_mapping) == (0.5, 1.5)


def test_a_missing_key_is_named(tmp_path):
    spec = specification()
    del spec["strategy"]["epochs"]
    with pytest.raises(StudyError, match="epochs"):
        read(tmp_path, spec)


def test_strategies_and_layers_are_the_files_of_their_folders():
    assert set(STRATEGIES) >= {"minibatch", "fullgraph"}
    assert MODEL_OPTIONS["properties"]["layer"]["enum"] == list(LAYERS)
    for plugin in STRATEGIES.values():
        options = plugin.constants["OPTIONS"]
        assert set(options["required"]) <= set(options["properties"])
        assert all(option["description"] for option in options["properties"].values())


def test_a_partition_for_another_graph_is_refused(small, tmp_path):
    shutil.copytree(small.folder, tmp_path / "other")
    manifest = tmp_path / "other" / "parts-1" / "partition.json"
    manifest.write_text(manifest.read_text().replace(small.graph.identity, "0" * 64))
    job = job_for(small, tmp_path / "run", partition=tmp_path / "other" / "parts-1")
    with pytest.raises(StudyError, match="a partition for another graph"):
        open_inputs(job.spec, job.graph, job.partition)


def test_as_many_ranks_as_parts(small, tmp_path):
    job = job_for(small, tmp_path / "run", partition=small.partition_path(2))
    with pytest.raises(StudyError, match="has 2 parts"):
        open_inputs(job.spec, job.graph, job.partition)


def test_as_many_processes_as_ranks(small, tmp_path, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    job = job_for(small, tmp_path / "run", ranks=2)
    with pytest.raises(StudyError, match="--nproc-per-node 2"):
        open_inputs(job.spec, job.graph, job.partition).check_ranks()


def test_another_graph_than_the_specification_names_is_refused(small, tmp_path):
    job = job_for(small, tmp_path / "run")
    job.spec.write_text(json.dumps(changed(specification(), "graph", "big")))
    with pytest.raises(StudyError, match="holds 'small'"):
        open_inputs(job.spec, job.graph, job.partition)


def test_a_backend_that_does_not_load_is_one_message(monkeypatch):
    from anatomy.training.operators import dgl_backend

    monkeypatch.setattr(dgl_backend.sys, "modules", {})
    monkeypatch.setattr(dgl_backend.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StudyError, match=r"training.operators: found 'dgl'.*set training.operators to 'torch'"):
        dgl_backend.load()


def test_a_graph_without_training_nodes_is_refused(small, tmp_path):
    shutil.copytree(small.graph_path, tmp_path / "graph")
    manifest = tmp_path / "graph" / "graph.json"
    content = json.loads(manifest.read_text())
    content["split"]["train"] = 0
    manifest.write_text(json.dumps(content))
    job = job_for(small, tmp_path / "run")
    with pytest.raises(StudyError, match="no training node"):
        open_inputs(job.spec, tmp_path / "graph", job.partition)


def test_partitions_written_for_tests_are_whole(small, tmp_path):
    """The helper's halo lists pass the store's own checks."""
    from anatomy.partitions.store import open_partition

    write_partition(tmp_path / "p", small.graph, open_partition(small.partition_path(2)).assignment)
    assert open_partition(tmp_path / "p", small.graph).num_parts == 2

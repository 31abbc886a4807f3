"""Training on several ranks is training in one process: the same losses and the same weights, to float tolerance."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from dense_layers import adjacency, dense_scores
from torch.nn import functional
from training_cases import Case, Job, job_for

from anatomy.training.model import Model
from anatomy.training.operators.torch_backend import TorchOperators
from anatomy.training.sampling import NeighbourSampler, generator_for
from anatomy.training.specification import read_specification

LAYERS = ("gcn", "sage", "gat", "gcnii", "ressage")
BATCHED = (
    ("gcn", "torch"),
    ("sage", "torch"),
    ("sage", "dgl"),
    ("gat", "dgl"),
    ("gcnii", "torch"),
    ("gcnii", "dgl"),
    ("ressage", "torch"),
)
RANKS = (1, 2, 3)
TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}
WEIGHT_TOLERANCE = {"rtol": 1e-3, "atol": 5e-4}
"""Adam divides a gradient by its own size, so that rounding decides the step where it is nearly 0; a step is 0.01."""


def train_densely(case: Case, job: Job) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of full-graph training in this process: dense matrices and torch's own Adam."""
    specification, graph = read_specification(job.spec), case.graph
    layer, num_layers = specification.model.layer, specification.model.num_layers
    linked = adjacency(graph)
    features, labels = torch.from_numpy(graph.features.copy()), torch.from_numpy(graph.labels.copy())
    chosen = torch.from_numpy(graph.split == 0)
    initial = Model(specification.model, graph.num_features, graph.num_classes, specification.seed).state_dict()
    weights = {name: value.clone().requires_grad_() for name, value in initial.items()}
    optimizer = torch.optim.Adam(weights.values(), lr=0.01)
    losses = []
    for _ in range(specification.strategy["epochs"]):
        scores = dense_scores(layer, weights, linked, features, num_layers)
        loss = functional.cross_entropy(scores[chosen], labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.detach() for name, value in weights.items()}


@pytest.fixture(scope="module")
def full_graph_jobs(small, run_ranks, tmp_path_factory) -> dict[tuple[str, str, int], Job]:
    """Every layer and backend on 1, 2 and 3 ranks, trained."""
    folder = tmp_path_factory.mktemp("fullgraph")
    jobs = {
        (layer, operators, ranks): job_for(
            small, folder / f"{layer}-{operators}-{ranks}", layer=layer, operators=operators, ranks=ranks
        )
        for layer, operators, ranks in product(LAYERS, ("dgl", "torch"), RANKS)
    }
    for ranks in RANKS:
        run_ranks(ranks, [job for key, job in jobs.items() if key[2] == ranks])
    return jobs


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("operators", ["dgl", "torch"])
@pytest.mark.parametrize("ranks", RANKS)
def test_full_graph_equals_one_process_without_distribution(small, full_graph_jobs, layer, operators, ranks):
    job = full_graph_jobs[layer, operators, ranks]
    losses, weights = train_densely(small, job)
    epochs = pd.read_parquet(job.out / "epochs.parquet")
    for rank in range(ranks):
        np.testing.assert_allclose(epochs.loss[epochs["rank"] == rank], losses, **TOLERANCE)
        for name, value in job.weights(rank).items():
            torch.testing.assert_close(
                value, weights[name], **WEIGHT_TOLERANCE, msg=lambda text, name=name: f"{name}: {text}"
            )


@pytest.mark.parametrize("ranks", [2, 3])
def test_bytes_measured_are_those_predicted_from_the_partition(full_graph_jobs, ranks):
    for layer in LAYERS:
        job = full_graph_jobs[layer, "torch", ranks]
        metrics = job.metrics()
        predicted = metrics["predicted"]
        volume = len(np.load(job.partition / "halo_nodes.npy"))
        # Features of width 5 once; before each of two layers, activations of width 8 and as many gradients; float32.
        assert predicted["sent_features_bytes_once"] == metrics["setup_sent_bytes"]["features"] == volume * 5 * 4
        assert predicted["sent_activations_bytes_per_epoch"] == volume * 2 * 8 * 4
        # A ring moves 2 (P - 1) payloads: every weight's gradient, the loss and the number of seed nodes.
        assert predicted["sent_weights_bytes_per_epoch"] == 2 * (ranks - 1) * (metrics["model_parameters"] + 2) * 4
        measured = pd.read_parquet(job.out / "epochs.parquet").groupby("epoch").sum()
        for kind in ("activations", "gradients", "weights"):
            assert (measured[f"sent_{kind}_bytes"] == predicted[f"sent_{kind}_bytes_per_epoch"]).all(), kind
        assert (measured.sent_features_bytes == 0).all()


def test_one_rank_sends_nothing(full_graph_jobs):
    epochs = pd.read_parquet(full_graph_jobs["sage", "torch", 1].out / "epochs.parquet")
    assert epochs.filter(regex="^sent_.*_bytes$").to_numpy().sum() == 0


@pytest.mark.parametrize("ranks", RANKS)
def test_accuracies_at_own_nodes_make_up_the_one_over_all(small, full_graph_jobs, ranks):
    """Each rank's, weighed by its nodes in the split; a rank without any has none."""
    job = full_graph_jobs["sage", "torch", ranks]
    epochs = pd.read_parquet(job.out / "epochs.parquet").set_index(["epoch", "rank"])
    parts, split = np.load(job.partition / "assignment.npy"), small.graph.split
    for place, name in enumerate(("train", "val", "test")):
        counts = np.bincount(parts[split == place], minlength=ranks)
        own = epochs[f"own_{name}_accuracy"].unstack()
        assert own.isna().all().tolist() == (counts == 0).tolist()
        hits = (own.fillna(0) * counts).sum(axis=1) / counts.sum()
        np.testing.assert_allclose(hits, epochs[f"{name}_accuracy"].unstack()[0])


@pytest.mark.parametrize("layer", ["sage", "gcnii", "ressage"])
def test_all_ranks_report_one_accuracy_which_is_the_predictions(small, full_graph_jobs, layer):
    """The accuracy after the last epoch, from the dense forward pass with the final weights."""
    job, graph = full_graph_jobs[layer, "torch", 3], small.graph
    features = torch.from_numpy(graph.features.copy())
    scores = dense_scores(layer, job.weights(), adjacency(graph), features, 3)
    right = scores.argmax(1).numpy() == graph.labels
    epochs = pd.read_parquet(job.out / "epochs.parquet")
    for split, name in enumerate(("train", "val", "test")):
        expected = right[graph.split == split].mean()
        assert epochs[f"{name}_accuracy"][epochs.epoch == 3].tolist() == pytest.approx([expected] * 3)


def see_all_batches(case: Case, job: Job) -> tuple[list[float], dict[str, torch.Tensor]]:
    """One process that, in each step, takes the batches of all ranks together."""
    specification, graph = read_specification(job.spec), case.graph
    options, operators = specification.strategy, TorchOperators()
    assignment = np.load(job.partition / "assignment.npy")
    features, labels = torch.from_numpy(graph.features.copy()), torch.from_numpy(graph.labels.copy())
    structure = torch.from_numpy(graph.indptr.copy()), torch.from_numpy(graph.indices.copy())
    sampler = NeighbourSampler(*structure, options["fanouts"])
    model = Model(specification.model, graph.num_features, graph.num_classes, specification.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for epoch in range(options["epochs"]):
        batches = []
        for rank in range(specification.ranks):
            generator = generator_for(specification.seed, rank, epoch)
            nodes = torch.from_numpy(np.flatnonzero((graph.split == 0) & (assignment == rank)))
            shuffled = nodes[torch.randperm(len(nodes), generator=generator)].split(options["batch_size"])
            batches.append([sampler.sample(seeds, generator) for seeds in shuffled if len(seeds)])
        total = 0.0
        for step in range(max(map(len, batches))):
            together = [mine[step] for mine in batches if step < len(mine)]
            loss_sum = torch.zeros(())
            for batch in together:
                scores = model(operators, batch.blocks, features[batch.input_nodes])
                loss_sum = loss_sum + functional.cross_entropy(scores, labels[batch.seed_nodes], reduction="sum")
            optimizer.zero_grad()
            (loss_sum / sum(len(batch.seed_nodes) for batch in together)).backward()
            optimizer.step()
            total += loss_sum.item()
        losses.append(total / np.count_nonzero(graph.split == 0))
    return losses, model.state_dict()


@pytest.fixture(scope="module")
def minibatch_jobs(small, run_ranks, tmp_path_factory) -> dict[tuple[str, str, int], Job]:
    """Every layer on 1, 2 and 3 ranks, two with both backends; the third rank has no training node."""
    folder = tmp_path_factory.mktemp("minibatch")
    jobs = {
        (layer, operators, ranks): job_for(
            small, folder / f"{layer}-{operators}-{ranks}", "timed", None, method="minibatch", layer=layer, ranks=ranks,
            operators=operators,
        )
        for (layer, operators), ranks in product(BATCHED, RANKS)
    }  # fmt: skip
    for ranks in RANKS:
        run_ranks(ranks, [job for key, job in jobs.items() if key[2] == ranks])
    return jobs


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("layer", "operators"), BATCHED)
def test_minibatch_equals_one_process_that_sees_all_batches(small, minibatch_jobs, layer, operators, ranks):
    """Of gat's destination attention, which softmax all but cancels, float32 and float64 differ by 0.002 already."""
    job = minibatch_jobs[layer, operators, ranks]
    losses, weights = see_all_batches(small, job)
    epochs = pd.read_parquet(job.out / "epochs.parquet")
    for rank in range(ranks):
        np.testing.assert_allclose(epochs.loss[epochs["rank"] == rank], losses, **TOLERANCE)
        for name, value in job.weights(rank).items():
            tolerance = WEIGHT_TOLERANCE | ({"atol": 4e-3} if "destination_attention" in name else {})
            torch.testing.assert_close(value, weights[name], **tolerance)


def test_ranks_with_fewer_batches_take_as_many_steps(small, minibatch_jobs):
    job = minibatch_jobs["sage", "torch", 3]
    epochs = pd.read_parquet(job.out / "epochs.parquet")
    assignment = np.load(job.partition / "assignment.npy")
    sizes = [np.count_nonzero((small.graph.split == 0) & (assignment == rank)) for rank in range(3)]
    assert sizes[2] == 0
    assert epochs.groupby("rank").train_nodes.first().tolist() == sizes
    assert set(epochs.steps) == {-(-max(sizes) // 4)}
    assert epochs.groupby("rank").epoch.apply(list).tolist() == [[0, 1, 2, 3]] * 3


def test_every_remote_row_is_asked_for_sent_and_recorded(minibatch_jobs):
    job = minibatch_jobs["sage", "torch", 3]
    epochs = pd.read_parquet(job.out / "epochs.parquet")
    accesses = pd.read_parquet(job.out / "accesses.parquet")
    each = epochs.groupby("epoch").sum()
    assert (each.remote_nodes > 0).all()
    assert (each.sent_features_bytes == each.remote_nodes * 5 * 4).all()
    # A request is one int32 per row, and per step and pair of ranks one int64 says how many follow.
    steps = epochs.steps.iloc[0]
    assert (each.sent_requests_bytes == each.remote_nodes * 4 + steps * 3 * 2 * 8).all()
    assert set(accesses.epoch) == {2, 3}
    recorded = accesses.groupby(["rank", "epoch"])["count"].sum()
    counted = epochs.set_index(["rank", "epoch"]).remote_nodes
    assert (recorded == counted.loc[recorded.index]).all()
    assignment = np.load(job.partition / "assignment.npy")
    assert (assignment[accesses.node] != accesses["rank"]).all()


def test_weight_bytes_of_minibatch_are_those_predicted(minibatch_jobs):
    job = minibatch_jobs["sage", "torch", 2]
    measured = pd.read_parquet(job.out / "epochs.parquet").groupby("epoch").sent_weights_bytes.sum()
    predicted = job.metrics()["predicted"]
    assert (measured == predicted["sent_weights_bytes_per_epoch"]).all()
    assert predicted["sent_activations_bytes_per_epoch"] is None


def test_equal_configuration_and_seed_give_equal_runs(small, run_ranks, minibatch_jobs, tmp_path):
    again = job_for(small, tmp_path / "again", method="minibatch", ranks=2)
    other = job_for(small, tmp_path / "other", method="minibatch", ranks=2, seed=1)
    run_ranks(2, [again, other])
    first = minibatch_jobs["sage", "torch", 2]
    losses = [pd.read_parquet(job.out / "epochs.parquet").loss.tolist() for job in (first, again, other)]
    assert losses[0] == losses[1] != losses[2]
    assert first.metrics()["weights_sha256"] == again.metrics()["weights_sha256"] != other.metrics()["weights_sha256"]


def test_dropout_and_weight_decay_train_alike_on_all_ranks(small, run_ranks, tmp_path):
    settings = {"model": {"dropout": 0.5}, "training": {"weight_decay": 0.01, "evaluate_every": 0}}
    job = job_for(small, tmp_path / "run", ranks=2, **settings)
    run_ranks(2, [job])
    for name, value in job.weights(0).items():
        assert torch.equal(value, job.weights(1)[name])
    evaluated = pd.read_parquet(job.out / "epochs.parquet").val_accuracy.notna()
    assert evaluated.tolist() == [False, False, False, True] * 2

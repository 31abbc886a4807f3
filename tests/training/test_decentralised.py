"""Training with a model for each rank, mixed with the neighbours', against a simulation in one process."""

import numpy as np
import pandas as pd
import pytest
import torch
from dense_layers import adjacency, dense_scores, gcn, sage
from hypothesis import given
from hypothesis import strategies as some
from interruptions import be_often_interrupted, numbers, settings
from test_exact_settings import TOLERANCE, WEIGHT_TOLERANCE, assert_bytes_are_predicted
from torch.nn import functional
from training_cases import Case, Job, job_for, write_partition

from anatomy.training.mixing import complete, metropolis_weights, ring
from anatomy.training.model import Model
from anatomy.training.specification import read_specification

LAYERS = {"gcn": gcn, "sage": sage}
RANKS = 4
THIRD = 1 / 3
DECAY = 0.05
"""Adam alone would not see whether gradients are scaled as the weights are."""
MIXING = {
    "ring": np.array(
        [[THIRD, THIRD, 0, THIRD], [THIRD, THIRD, THIRD, 0], [0, THIRD, THIRD, THIRD], [THIRD, 0, THIRD, THIRD]]
    ),
    # Part 3 has only nodes without an edge; the others share edges, each with both.
    "metropolis": np.array(
        [[THIRD, THIRD, THIRD, 0], [THIRD, THIRD, THIRD, 0], [THIRD, THIRD, THIRD, 0], [0, 0, 0, 1]]
    ),
}
MESSAGES = {"ring": 8, "metropolis": 6}


def simulate(case: Case, job: Job) -> tuple[list[float], list[dict[str, torch.Tensor]]]:
    """Losses, and the weights of each rank before they are averaged."""
    specification, graph = read_specification(job.spec), case.graph
    mixing = MIXING[specification.strategy["topology"]]
    layer = LAYERS[specification.model.layer]
    linked, features = adjacency(graph), torch.from_numpy(graph.features.copy())
    chosen, labels = torch.from_numpy(graph.split == 0), torch.from_numpy(graph.labels.copy())
    owners = torch.from_numpy(np.load(job.partition / "assignment.npy").astype(np.int64))
    initial = Model(specification.model, graph.num_features, graph.num_classes, specification.seed).state_dict()
    models = [{name: value.clone().requires_grad_() for name, value in initial.items()} for _ in range(RANKS)]
    optimizers = [torch.optim.Adam(model.values(), lr=0.01, weight_decay=DECAY) for model in models]
    losses = []
    for _ in range(specification.strategy["epochs"]):
        rows = features
        for index in range(3):
            outputs = []
            for model in models:
                own = {name.split(".", 2)[2]: value for name, value in model.items() if name[7] == str(index)}
                outputs.append(layer(own, linked, rows))
            rows = torch.stack(outputs)[owners, torch.arange(graph.num_nodes)]
            rows = rows.relu() if index < 2 else rows
        loss = functional.cross_entropy(rows[chosen], labels[chosen])
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        for name in initial:
            weights = torch.stack([model[name].detach() for model in models]).double()
            gradients = torch.stack([model[name].grad for model in models]).double()
            for row, model in zip(torch.from_numpy(mixing), models, strict=True):
                model[name].data = torch.tensordot(row, weights, 1).float()
                # The mean over the ranks of what each has is the mean loss's gradient, which is the sum of theirs.
                model[name].grad = RANKS * torch.tensordot(row, gradients, 1).float()
        for optimizer in optimizers:
            optimizer.step()
    return losses, [{name: value.detach() for name, value in model.items()} for model in models]


@pytest.fixture(scope="module")
def jobs(small, run_ranks, tmp_path_factory) -> dict[tuple[str, str], Job]:
    folder = tmp_path_factory.mktemp("decentralised")
    assignment = np.load(small.partition_path(3) / "assignment.npy").astype(np.int64)
    assignment[57:] = 3
    write_partition(folder / "parts", small.graph, assignment)
    made = {
        (topology, layer): job_for(
            small,
            folder / f"{topology}-{layer}",
            partition=folder / "parts",
            method="decentralised",
            layer=layer,
            ranks=RANKS,
            strategy={"epochs": 6, "topology": topology},
            training={"evaluate_every": 2, "weight_decay": DECAY},
        )
        for topology in MIXING
        for layer in LAYERS
    }
    run_ranks(RANKS, list(made.values()))
    return made


@pytest.mark.parametrize("topology", MIXING)
@pytest.mark.parametrize("layer", LAYERS)
def test_ranks_train_as_the_simulation_does_and_end_with_the_mean(small, jobs, topology, layer):
    job = jobs[topology, layer]
    losses, models = simulate(small, job)
    epochs = pd.read_parquet(job.out / "epochs.parquet")
    for rank in range(RANKS):
        np.testing.assert_allclose(epochs.loss[epochs["rank"] == rank], losses, **TOLERANCE)
        for name, value in job.weights(rank).items():
            mean = sum(model[name] for model in models) / RANKS
            torch.testing.assert_close(value, mean, **WEIGHT_TOLERANCE)
            assert torch.equal(value, job.weights(0)[name])
    apart = max(torch.stack([model[name] for model in models]).std(0).max() for name in models[0])
    assert apart > 10 * WEIGHT_TOLERANCE["atol"]


@pytest.mark.parametrize("topology", MIXING)
def test_the_accuracy_is_the_mean_models(small, jobs, topology):
    job, graph = jobs[topology, "sage"], small.graph
    features = torch.from_numpy(graph.features.copy())
    right = dense_scores("sage", job.weights(), adjacency(graph), features, 3).argmax(1).numpy() == graph.labels
    assert job.metrics()["final"]["train_accuracy"] == pytest.approx(right[graph.split == 0].mean())


@pytest.mark.parametrize("topology", MIXING)
@pytest.mark.parametrize("layer", LAYERS)
def test_bytes_are_those_predicted(jobs, topology, layer):
    job = jobs[topology, layer]
    assert_bytes_are_predicted(job)
    metrics = job.metrics()
    # Every message holds the weights and as many gradients, float32.
    expected = MESSAGES[topology] * 2 * 4 * metrics["model_parameters"]
    assert metrics["predicted"]["sent_weights_bytes_per_epoch"] == expected


def test_a_resumed_run_is_an_uninterrupted_one(small, tmp_path, run_ranks, jobs):
    def job(name: str, every: int) -> Job:
        made = settings("decentralised", RANKS, every=every) | {"strategy": {"epochs": 4, "topology": "ring"}}
        return job_for(small, tmp_path / name, partition=jobs["ring", "sage"].partition, **made)

    often, never = job("often", 1), job("never", 0)
    run_ranks(RANKS, [often], be_often_interrupted)
    run_ranks(RANKS, [never])
    assert often.metrics()["resumed_at"] == [1, 2, 3]
    assert numbers(often) == numbers(never)


@given(some.integers(1, 12), some.floats(0, 1), some.integers(0, 2**32 - 1))
def test_weights_mix_to_the_mean(num_ranks, density, seed):
    """Doubly stochastic, not negative, nothing between strangers; mixed often enough, connected ranks agree."""
    linked = np.triu(np.random.default_rng(seed).random((num_ranks, num_ranks)) < density, 1)
    neighbours = linked | linked.T
    weights = metropolis_weights(neighbours)
    np.testing.assert_allclose(weights.sum(0), 1)
    np.testing.assert_allclose(weights.sum(1), 1)
    assert (weights >= 0).all()
    assert (np.diag(weights) > 0).all()
    assert ((weights > 0) == (neighbours | np.eye(num_ranks, dtype=bool))).all()
    reached = np.linalg.matrix_power(neighbours + np.eye(num_ranks), num_ranks) > 0
    expected = reached / reached.sum(1, keepdims=True)
    np.testing.assert_allclose(np.linalg.matrix_power(weights, 4096), expected, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_rings_and_complete_graphs(size):
    np.testing.assert_allclose(metropolis_weights(complete(size)), 1 / size)
    for rank, beside in enumerate(ring(size)):
        assert set(np.flatnonzero(beside)) == {(rank - 1) % size, (rank + 1) % size} - {rank}

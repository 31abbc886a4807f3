"""Policies of gradient synchronisation: exact where they can be, else against a simulation in one process.

A policy's module states its exact settings (`EXACT`), so that a new policy is tested by being there.
"""

import numpy as np
import pandas as pd
import pytest
import torch
from dense_layers import adjacency, dense_scores
from interruptions import be_often_interrupted, numbers, settings
from simulated_policies import SIMULATIONS, Ranks
from test_exact_settings import TOLERANCE, WEIGHT_TOLERANCE, assert_bytes_are_predicted
from torch.nn import functional
from training_cases import Case, Job, job_for

from anatomy.training.model import Model
from anatomy.training.options import GRADIENT_POLICIES, STRATEGIES
from anatomy.training.sampling import generator_for
from anatomy.training.specification import read_specification

EXACT = {
    f"{name}-{number}": {"policy": name, **options}
    for name, plugin in GRADIENT_POLICIES.items()
    for number, options in enumerate(plugin.constants.get("EXACT", ()))
}
APPROXIMATE = {
    "local": {"policy": "local_steps", "steps": 3},
    "elastic": {"policy": "elastic", "period": 2, "beta": 0.8},
    "stale-1": {"policy": "stale", "staleness": 1},
    "stale-3": {"policy": "stale", "staleness": 3},
    "sparse": {"policy": "sparse", "density": 0.3, "chunk_values": 16, "momentum": 0.9},
    "sparse-warm": {"policy": "sparse", "density": 0.1, "chunk_values": 50, "momentum": 0.0, "warmup_steps": 3},
}
RANKS = (1, 2, 3)
FEW_RANKS = (1, 3)
TRAINED = {"epochs": 3, "fanouts": [-1, -1, -1], "batch_size": 8}
"""Mini-batches with all neighbours, which a simulation need not sample."""
DECAY = {"weight_decay": 0.05}
"""Adam alone would not see by what gradients are scaled."""


def whole_graph(name: str) -> bool:
    """Whether full-graph training takes the policy of an exact setting."""
    return not GRADIENT_POLICIES[EXACT[name]["policy"]].constants.get("NEEDS")


EXACT_CASES = [("minibatch", name, ranks) for name in EXACT for ranks in RANKS]
EXACT_CASES += [("fullgraph", name, 3) for name in EXACT if whole_graph(name)]
APPROXIMATE_CASES = [("minibatch", name, ranks) for name in APPROXIMATE for ranks in FEW_RANKS]


@pytest.fixture(scope="module")
def jobs(small, run_ranks, tmp_path_factory) -> dict[tuple[str, str, int], Job]:
    """Every exact and every approximate setting, and no policy at all."""
    folder = tmp_path_factory.mktemp("policies")

    def job(method: str, name: str, ranks: int) -> Job:
        strategy = {} if name == "none" else {"gradients": (EXACT | APPROXIMATE)[name]}
        strategy |= TRAINED if method == "minibatch" else {}
        place = folder / f"{method}-{name}-{ranks}"
        return job_for(small, place, method=method, ranks=ranks, strategy=strategy, training=DECAY)

    plain = [("fullgraph", "none", 3), *(("minibatch", "none", ranks) for ranks in RANKS)]
    made = {case: job(*case) for case in (*plain, *EXACT_CASES, *APPROXIMATE_CASES)}
    for ranks in RANKS:
        run_ranks(ranks, [job for case, job in made.items() if case[2] == ranks])
    return made


def losses(job: Job) -> list[float]:
    epochs = pd.read_parquet(job.out / "epochs.parquet")
    return epochs.sort_values(["rank", "epoch"]).loss.tolist()


def assert_equal_weights(job: Job, expected: dict[str, torch.Tensor], ranks: int) -> None:
    for rank in range(ranks):
        for key, value in job.weights(rank).items():
            torch.testing.assert_close(value, expected[key], **WEIGHT_TOLERANCE)


@pytest.mark.parametrize(("method", "name", "ranks"), EXACT_CASES)
def test_exact_settings_train_as_without_a_policy(jobs, method, name, ranks):
    job, plain = jobs[method, name, ranks], jobs[method, "none", ranks]
    np.testing.assert_allclose(losses(job), losses(plain), **TOLERANCE)
    assert_equal_weights(job, plain.weights(), ranks)
    assert_bytes_are_predicted(job)


@pytest.mark.parametrize(("method", "name", "ranks"), APPROXIMATE_CASES)
def test_approximate_settings_train_as_the_simulation_does(small, jobs, method, name, ranks):
    job = jobs[method, name, ranks]
    expected_losses, expected = simulate(small, job, ranks)
    np.testing.assert_allclose(losses(job), expected_losses * ranks, **TOLERANCE)
    assert_equal_weights(job, expected, ranks)
    assert_bytes_are_predicted(job)
    if ranks > 1 or "local" not in name:
        plain = jobs[method, "none", ranks].weights()
        assert max((expected[key] - plain[key]).abs().max() for key in plain) > 10 * WEIGHT_TOLERANCE["atol"]


def simulate(case: Case, job: Job, ranks: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses by epoch and the weights at the end, of mini-batches with all neighbours."""
    specification, graph = read_specification(job.spec), case.graph
    linked, features = adjacency(graph), torch.from_numpy(graph.features.copy())
    labels = torch.from_numpy(graph.labels.copy())
    owners = np.load(job.partition / "assignment.npy")
    seeds = [torch.from_numpy(np.flatnonzero((graph.split == 0) & (owners == rank))) for rank in range(ranks)]
    model = Model(specification.model, graph.num_features, graph.num_classes, specification.seed)
    shapes = {name: weight.shape for name, weight in model.named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]

    def named(flat: torch.Tensor) -> dict[str, torch.Tensor]:
        parts = zip(shapes.items(), flat.split(sizes), strict=True)
        return {name: part.view(shape) for (name, shape), part in parts}

    def gradient(flat: torch.Tensor, nodes: torch.Tensor) -> tuple[torch.Tensor, float]:
        flat = flat.clone().requires_grad_()
        scores = dense_scores("sage", named(flat), linked, features, specification.model.num_layers)
        loss = functional.cross_entropy(scores[nodes], labels[nodes], reduction="sum")
        loss.backward()
        return flat.grad, loss.item()

    start = torch.cat([weight.detach().reshape(-1) for weight in model.parameters()])
    options = dict(specification.strategy["gradients"])
    simulated = SIMULATIONS[options.pop("policy")](Ranks(start, ranks, **DECAY), **options)
    size, found = specification.strategy["batch_size"], []
    for epoch in range(specification.strategy["epochs"]):
        generators = [generator_for(specification.seed, rank, epoch) for rank in range(ranks)]
        order = [own[torch.randperm(len(own), generator=generators[rank])] for rank, own in enumerate(seeds)]
        total = 0.0
        for step in range(-(-max(map(len, seeds)) // size)):
            batches = [own[step * size : (step + 1) * size] for own in order]
            parts = [gradient(simulated.ranks.weights[rank], batch) for rank, batch in enumerate(batches)]
            total += sum(loss for _, loss in parts)
            simulated.step([part for part, _ in parts], [len(batch) for batch in batches])
        found.append(total / sum(map(len, seeds)))
    return found, named(simulated.model())


TAKING = [
    name
    for name, plugin in STRATEGIES.items()
    if plugin.constants.get("GRADIENTS", ()) is not None
    and not plugin.constants.get("ONE_RANK_PER_HOST")
    and (name == "minibatch" or plugin.constants["OPTIONS"]["required"] == ["epochs"])
]


def test_every_strategy_that_takes_a_policy_is_trained_by_it(small, tmp_path, run_ranks):
    """In tiny buckets, begun within whatever the strategy's backward pass does."""
    made = {
        (name, number): job_for(small, tmp_path / f"{name}-{number}", method=name, ranks=2, strategy=strategy)
        for name in TAKING
        for number, strategy in enumerate([{}, {"gradients": {"policy": "buckets", "bucket_mb": 0.0003}}])
    }
    run_ranks(2, list(made.values()))
    for name in TAKING:
        plain, bucketed = made[name, 0], made[name, 1]
        np.testing.assert_allclose(losses(bucketed), losses(plain), **TOLERANCE, err_msg=name)
        assert_equal_weights(bucketed, plain.weights(), 2)


RESUMED = {"buckets": {"policy": "buckets", "bucket_mb": 0.0003}, "merged": {"policy": "merged"}} | APPROXIMATE


def test_a_resumed_run_is_an_uninterrupted_one(small, tmp_path, run_ranks):
    def job(name: str, every: int) -> Job:
        made = settings("minibatch", 2, every=every, epochs=2)
        made["strategy"] |= {"gradients": RESUMED[name], "batch_size": 8}
        return job_for(small, tmp_path / f"{name}-{every}", **made)

    often, never = ({name: job(name, every) for name in RESUMED} for every in (1, 0))
    run_ranks(2, list(often.values()), be_often_interrupted)
    run_ranks(2, list(never.values()))
    for name in RESUMED:
        assert often[name].metrics()["resumed_at"] == [1]
        assert numbers(often[name]) == numbers(never[name]), name

"""Mini-batches with unequal shares, measured before or while training: only who trains a seed node changes."""

import numpy as np
import pandas as pd
import pytest
import torch
from interruptions import numbers, settings
from test_exact_settings import TOLERANCE, WEIGHT_TOLERANCE, assert_bytes_are_predicted
from torch.nn import functional
from training_cases import Case, Job, job_for
from unequal_ranks import (
    be_adjusted_rank,
    be_equal_rank,
    be_often_interrupted_and_adjusted,
    be_often_interrupted_and_measured,
    be_unequal_rank,
)

from anatomy.errors import StudyError
from anatomy.training.model import Model
from anatomy.training.operators.torch_backend import TorchOperators
from anatomy.training.run import _trains_on_cpu
from anatomy.training.sampling import NeighbourSampler, generator_for
from anatomy.training.shares import apportioned
from anatomy.training.specification import read_specification

ALL_NEIGHBOURS = {"fanouts": [-1, -1, -1]}
SHARES = {1: [1], 2: [1, 3], 3: [5, 1e-6, 2]}
"""Of three ranks one has next to nothing, and no seed node at all."""


def epochs_of(job: Job) -> pd.DataFrame:
    return pd.read_parquet(job.out / "epochs.parquet").sort_values(["epoch", "rank"])


def assert_same(job: Job, expected: Job) -> None:
    """Losses and weights to float tolerance."""
    np.testing.assert_allclose(epochs_of(job).loss, epochs_of(expected).loss, **TOLERANCE)
    for key, value in job.weights().items():
        torch.testing.assert_close(value, expected.weights()[key], **WEIGHT_TOLERANCE)


@pytest.mark.parametrize("ranks", [2, 3])
def test_with_all_neighbours_no_share_changes_losses_or_weights(small, tmp_path, run_ranks, ranks):
    """Fixed, measured and moving ones: every rank's gradients weigh as its share of the batch."""
    chosen = {
        "minibatch": {},
        "balanced": {"shares": SHARES[ranks]},
        "balanced-measured": {"measurements": 1},
        "mixed": {"shares": SHARES[ranks]},
        "mixed-often": {"damping": 0, "rebalance_every": 2},
    }
    jobs = {
        name: job_for(small, tmp_path / name, method=name.split("-")[0], ranks=ranks, strategy=ALL_NEIGHBOURS | options)
        for name, options in chosen.items()
    }
    run_ranks(ranks, list(jobs.values()))
    for name in chosen:
        assert_same(jobs[name], jobs["minibatch"])
        assert_bytes_are_predicted(jobs[name])
        epochs = epochs_of(jobs[name])
        num_training = np.count_nonzero(small.graph.split == 0)
        assert (epochs.groupby("epoch").train_nodes.sum() == num_training).all()
        assert epochs.steps.tolist() == epochs_of(jobs["minibatch"]).steps.tolist()
        if name != "minibatch":
            np.testing.assert_allclose(epochs.groupby("epoch").batch_share.sum(), 1)
    assert epochs_of(jobs["minibatch"]).batch_share.isna().all()
    if ranks == 3:
        idle = epochs_of(jobs["balanced"])
        assert (idle[idle["rank"] == 1].train_nodes == 0).all()


def simulate(case: Case, job: Job) -> tuple[list[float], dict[str, torch.Tensor]]:
    """One process that trains what the definition says, with sampled neighbours and the option's shares."""
    specification, graph = read_specification(job.spec), case.graph
    options, operators, ranks = specification.strategy, TorchOperators(), specification.ranks
    assignment = np.load(job.partition / "assignment.npy")
    features, labels = torch.from_numpy(graph.features.copy()), torch.from_numpy(graph.labels.copy())
    indptr, indices = torch.from_numpy(graph.indptr.copy()), torch.from_numpy(graph.indices.copy())
    sampler = NeighbourSampler(indptr, indices, options["fanouts"])
    model = Model(specification.model, graph.num_features, graph.num_classes, specification.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    size, losses = options["batch_size"], []
    sizes = apportioned(size * ranks, options["shares"])
    for epoch in range(options["epochs"]):
        generators = [generator_for(specification.seed, rank, epoch) for rank in range(ranks)]
        orders = []
        for rank in range(ranks):
            nodes = np.flatnonzero((graph.split == 0) & (assignment == rank))
            orders.append(nodes[torch.randperm(len(nodes), generator=generators[rank]).numpy()].tolist())
        total = 0.0
        for start in range(0, max(map(len, orders)), size):
            step = [order[start : start + size] for order in orders]
            over = [node for nodes, limit in zip(step, sizes, strict=True) for node in nodes[limit:]]
            mine = [nodes[:limit] for nodes, limit in zip(step, sizes, strict=True)]
            if over:
                room = [limit - len(nodes) for nodes, limit in zip(mine, sizes, strict=True)]
                for nodes, count in zip(mine, apportioned(len(over), room), strict=True):
                    nodes += [over.pop(0) for _ in range(count)]
            loss_sum = torch.zeros(())
            for nodes, generator in zip(mine, generators, strict=True):
                if nodes:
                    batch = sampler.sample(torch.tensor(nodes), generator)
                    scores = model(operators, batch.blocks, features[batch.input_nodes])
                    loss_sum = loss_sum + functional.cross_entropy(scores, labels[batch.seed_nodes], reduction="sum")
            optimizer.zero_grad()
            (loss_sum / sum(map(len, step))).backward()
            optimizer.step()
            total += loss_sum.item()
        losses.append(total / np.count_nonzero(graph.split == 0))
    return losses, model.state_dict()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_sampled_neighbours_are_those_of_a_simulation_in_one_process(small, tmp_path, run_ranks, ranks):
    job = job_for(small, tmp_path / "job", method="balanced", ranks=ranks, strategy={"shares": SHARES[ranks]})
    run_ranks(ranks, [job])
    losses, weights = simulate(small, job)
    epochs = epochs_of(job)
    np.testing.assert_allclose(epochs[epochs["rank"] == 0].loss, losses, **TOLERANCE)
    for key, value in job.weights(ranks - 1).items():
        torch.testing.assert_close(value, weights[key], **WEIGHT_TOLERANCE)


# Measured before training


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_measured_to_be_equally_fast_train_as_plain_mini_batches(small, tmp_path, run_ranks, ranks):
    """To the bit, dropout in: measuring leaves no trace in weights or generators."""
    jobs = [
        job_for(small, tmp_path / method, method=method, ranks=ranks, model={"dropout": 0.5})
        for method in ("balanced", "minibatch")
    ]
    run_ranks(ranks, jobs, be_equal_rank)
    found, expected = map(numbers, jobs)
    assert found["setup"] != expected["setup"]  # the measurement was sent
    assert found | {"setup": None} == expected | {"setup": None}


def test_a_rank_measured_to_be_slow_trains_as_much_less(small, tmp_path, run_ranks):
    job = job_for(small, tmp_path / "job", method="balanced", ranks=3, strategy={"batch_size": 7})
    run_ranks(3, [job], be_unequal_rank)
    epochs = epochs_of(job)
    assert epochs.batch_share.tolist() == [12 / 21, 6 / 21, 3 / 21] * 4


# A slow rank


@pytest.mark.parametrize("method", ["balanced", "mixed"])
def test_an_emulated_slow_rank_gets_less_to_train(small, tmp_path, run_ranks, method):
    condition = {"name": "slow", "slow": {"rank": 1, "factor": 6}}
    options = {"batch_size": 12, "epochs": 6}
    job = job_for(small, tmp_path / "job", method=method, ranks=2, strategy=options, condition=condition)
    run_ranks(2, [job])
    epochs = epochs_of(job)
    last = epochs[epochs.epoch == 5].batch_share.tolist()
    assert last[0] > 0.6 > 0.4 > last[1]
    if method == "mixed":
        assert epochs[epochs.epoch == 0].batch_share.tolist() == [0.5, 0.5]


# Carried on


def test_a_resumed_run_has_the_shares_that_were_measured_at_first(small, tmp_path, run_ranks):
    job = job_for(small, tmp_path / "job", **settings("balanced", ranks=2))
    run_ranks(2, [job], be_often_interrupted_and_measured)
    assert job.metrics()["resumed_at"] == [1, 2, 3, 4]
    shares = epochs_of(job).groupby("rank").batch_share
    assert shares.nunique().tolist() == [1, 1]
    assert shares.first()[1] > shares.first()[0]


def test_a_resumed_run_goes_on_with_shares_as_adjusted(small, tmp_path, run_ranks):
    often = job_for(small, tmp_path / "often", **settings("mixed", ranks=2))
    never = job_for(small, tmp_path / "never", **settings("mixed", ranks=2, every=0))
    run_ranks(2, [often], be_often_interrupted_and_adjusted)
    run_ranks(2, [never], be_adjusted_rank)
    assert numbers(often) == numbers(never)
    shares = epochs_of(never)
    shares = shares[shares["rank"] == 0].batch_share.tolist()
    assert shares == sorted(set(shares))  # they moved in every epoch
    assert epochs_of(often).batch_share.tolist() == epochs_of(never).batch_share.tolist()


# Options


@pytest.mark.parametrize("local_rank", [0, 1, 2])
def test_the_last_ranks_of_a_host_train_on_the_cpu(small, tmp_path, monkeypatch, local_rank):
    job = job_for(small, tmp_path / "job", method="mixed", ranks=3, strategy={"cpu_ranks": 1})
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    assert _trains_on_cpu(read_specification(job.spec)) == (local_rank == 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "balanced", "strategy": {"shares": [1, 2, 3]}}, "3 shares .* for 2 ranks; give one share per rank"),
        ({"method": "balanced", "strategy": {"shares": [1, 0]}}, "shares"),
        (
            {"method": "mixed", "training": {"device": "cuda", "communication": "nccl"}},
            "training.communication: found 'nccl', which strategy 'mixed' cannot use; use one of: gloo",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(small, tmp_path, changes, message):
    job = job_for(small, tmp_path / "job", ranks=2, **changes)
    with pytest.raises(StudyError, match=message):
        read_specification(job.spec)

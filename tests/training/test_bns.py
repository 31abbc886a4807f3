"""Boundary-node sampling against its definition: dense matrices in one process, and averages over all samples."""

from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest
import torch
from dense_layers import adjacency, dense_scores
from hypothesis import given, settings
from hypothesis import strategies as st
from interruptions import be_often_interrupted, numbers
from interruptions import settings as checkpointed
from test_exact_settings import TOLERANCE, WEIGHT_TOLERANCE, assert_bytes_are_predicted
from test_operators import BACKENDS, random_block
from torch.nn import functional
from training_cases import Case, Job, job_for

from anatomy.partitions.store import open_partition
from anatomy.training.layers._normalised import propagate
from anatomy.training.model import Model
from anatomy.training.operators import load_operators
from anatomy.training.options import LAYERS
from anatomy.training.sampling import generator_for
from anatomy.training.specification import read_specification
from anatomy.training.strategies.bns import thinned

SWEEP = (1.0, 0.1, 0.01, 0.0)
CASES = [
    *[(layer, ranks, 0.5, "sent", "torch") for layer, ranks in product(LAYERS, (2, 3))],
    *[("sage", 3, 0.3, first_layer, "dgl") for first_layer in ("sent", "kept", "whole")],
    *[("gcn", ranks, rate, "sent", "torch") for ranks, rate in product((1, 2, 3), SWEEP)],
]


@pytest.fixture(scope="module")
def jobs(small, run_ranks, tmp_path_factory) -> dict[tuple, Job]:
    """Every case, trained."""
    folder = tmp_path_factory.mktemp("bns")
    made = {
        case: job_for(
            small,
            folder / "-".join(map(str, case)),
            method="bns",
            layer=case[0],
            ranks=case[1],
            operators=case[4],
            strategy={"rate": case[2], "first_layer": case[3]},
        )
        for case in CASES
    }
    for ranks in (1, 2, 3):
        run_ranks(ranks, [job for case, job in made.items() if case[1] == ranks])
    return made


def drawn_scale(case: Case, job: Job, epoch: int) -> torch.Tensor:
    """What each node's row counts for at each other node, [nodes, nodes]: 1 within a part, else B over those drawn."""
    specification, graph = read_specification(job.spec), case.graph
    partition = open_partition(job.partition, graph)
    assignment = torch.from_numpy(np.array(partition.assignment))
    scale = (assignment[:, None] == assignment[None, :]).float()
    for owner, consumer in product(range(specification.ranks), repeat=2):
        halo = torch.from_numpy(np.array(partition.halo(owner, consumer)))
        num_drawn = int(specification.strategy["rate"] * len(halo))
        order = torch.randperm(len(halo), generator=generator_for(specification.seed, epoch, owner, consumer))
        readers = torch.nonzero(assignment == consumer)
        scale[readers, halo[order[:num_drawn]]] = len(halo) / max(num_drawn, 1)
    return scale


def simulate(case: Case, job: Job) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of the definition, by dense matrices in this process."""
    specification, graph = read_specification(job.spec), case.graph
    linked, num_layers = adjacency(graph), specification.model.num_layers
    features, labels = torch.from_numpy(graph.features.copy()), torch.from_numpy(graph.labels.copy())
    chosen = torch.from_numpy(graph.split == 0)
    initial = Model(specification.model, graph.num_features, graph.num_classes, specification.seed).state_dict()
    weights = {name: value.clone().requires_grad_() for name, value in initial.items()}
    optimizer = torch.optim.Adam(weights.values(), lr=0.01)
    losses = []
    for epoch in range(specification.strategy["epochs"]):
        scales = [drawn_scale(case, job, epoch)] * num_layers
        if specification.strategy["first_layer"] == "whole":
            scales[0] = torch.ones_like(linked)
        scores = dense_scores(specification.model.layer, weights, linked, features, num_layers, scales)
        loss = functional.cross_entropy(scores[chosen], labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.detach() for name, value in weights.items()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_training_is_that_of_the_definition(small, jobs, case):
    job = jobs[case]
    losses, weights = simulate(small, job)
    epochs = pd.read_parquet(job.out / "epochs.parquet")
    for rank in range(case[1]):
        np.testing.assert_allclose(epochs.loss[epochs["rank"] == rank], losses, **TOLERANCE)
        for name, value in job.weights(rank).items():
            torch.testing.assert_close(
                value, weights[name], **WEIGHT_TOLERANCE, msg=lambda text, name=name: f"{name}: {text}"
            )


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_bytes_are_those_of_the_nodes_drawn(small, jobs, case):
    """Rows of int(rate x B) nodes for each pair: features of width 5 if sent, activations of two layers of width 8."""
    _, ranks, rate, first_layer, _ = case
    assert_bytes_are_predicted(jobs[case])
    partition = open_partition(jobs[case].partition, small.graph)
    rows = sum(int(rate * len(partition.halo(owner, other))) for owner, other in product(range(ranks), repeat=2))
    predicted = jobs[case].metrics()["predicted"]
    assert predicted["sent_features_bytes_per_epoch"] == (rows * 5 * 4 if first_layer == "sent" else 0)
    for kind in ("activations", "gradients"):
        assert predicted[f"sent_{kind}_bytes_per_epoch"] == rows * 2 * 8 * 4
    epochs = pd.read_parquet(jobs[case].out / "epochs.parquet")
    assert (epochs.sent_requests_bytes == 0).all()  # nobody tells which nodes were drawn


def test_features_kept_are_those_that_would_be_sent(jobs):
    sent, kept = (jobs["sage", 3, 0.3, first_layer, "dgl"] for first_layer in ("sent", "kept"))
    assert sent.metrics()["weights_sha256"] == kept.metrics()["weights_sha256"]


def test_epochs_draw_other_nodes(small, jobs):
    job = jobs["sage", 2, 0.5, "sent", "torch"]
    assert not torch.equal(drawn_scale(small, job, 0), drawn_scale(small, job, 1))


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_destinations=st.integers(1, 6),
    num_others=st.integers(1, 5),
    density=st.sampled_from([0.1, 0.5, 1.0]),
    data=st.data(),
)
def test_sums_over_a_sample_are_unbiased(backend, seed, num_destinations, num_others, density, data):
    """Averaged over all samples of a size, each as likely, sums and means are those of the whole block."""
    block, operators = random_block(seed, num_destinations, num_others, density), load_operators(backend)
    block.degrees[:num_destinations] = block.counts
    features = torch.randn(block.num_sources, 3)
    size = data.draw(st.integers(1, num_others))
    ways = {
        "sum": lambda block, rows: operators.aggregate(block, rows, "sum"),
        "mean": lambda block, rows: operators.aggregate(block, rows, "mean"),
        "normalised": lambda block, rows: propagate(operators, block, rows),
    }
    samples = list(combinations(range(num_others), size))
    for way, aggregate in ways.items():
        total = torch.zeros(num_destinations, 3)
        for sample in samples:
            sources = torch.tensor([*range(num_destinations), *(num_destinations + other for other in sample)])
            scale = torch.ones(len(sources))
            scale[num_destinations:] = num_others / size
            total += aggregate(thinned(block, sources, scale), features[sources])
        torch.testing.assert_close(
            total / len(samples), aggregate(block, features), rtol=1e-4, atol=1e-5, msg=lambda text, way=way: way + text
        )


def test_an_interrupted_run_ends_as_an_uninterrupted_one(small, tmp_path, run_ranks):
    often = job_for(small, tmp_path / "often", **checkpointed("bns", 2))
    never = job_for(small, tmp_path / "never", **checkpointed("bns", 2, every=0))
    run_ranks(2, [often], be_often_interrupted)
    run_ranks(2, [never])
    assert numbers(often) == numbers(never)

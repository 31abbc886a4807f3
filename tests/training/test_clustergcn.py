"""Mini-batches of clusters, against full-graph training on a graph without the edges between batches."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from dense_layers import adjacency, dense_scores
from hypothesis import given
from hypothesis import strategies as some
from interruptions import be_often_interrupted, numbers, settings
from test_exact_settings import TOLERANCE, WEIGHT_TOLERANCE, assert_bytes_are_predicted
from torch.nn import functional
from training_cases import Case, Job, job_for

from anatomy.errors import StudyError
from anatomy.partitions.methods import metis
from anatomy.partitions.options import complete_options
from anatomy.training.clusters import ClusterBatches, induced_block
from anatomy.training.model import Model
from anatomy.training.run import open_inputs, train
from anatomy.training.specification import read_specification

CLUSTERS, PER_BATCH = 7, 2
LAYERS = ("gcn", "sage")
RANKS = (1, 2, 3)


def clusters_of(case: Case, seed: int = 0) -> np.ndarray:
    return metis.assign(case.graph, CLUSTERS, complete_options({"method": "metis", "seed": seed, "attempts": 1}))


def simulate(case: Case, job: Job, ranks: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of one process that masks the edges between batches in a dense matrix."""
    specification, graph = read_specification(job.spec), case.graph
    linked, features = adjacency(graph), torch.from_numpy(graph.features.copy())
    chosen, labels = torch.from_numpy(graph.split == 0), torch.from_numpy(graph.labels.copy())
    weights = Model(specification.model, graph.num_features, graph.num_classes, specification.seed).state_dict()
    weights = {name: value.clone().requires_grad_() for name, value in weights.items()}
    optimizer = torch.optim.Adam(weights.values(), lr=0.01)
    batches = ClusterBatches(clusters_of(case), PER_BATCH)
    losses = []
    for epoch in range(specification.strategy["epochs"]):
        listed, loss_sum, count = batches.of_epoch(specification.seed, epoch), 0.0, 0
        for start in range(0, len(listed), ranks):
            batch_of = torch.full((graph.num_nodes,), -1)
            for number, nodes in enumerate(listed[start : start + ranks]):
                batch_of[nodes] = number
            kept = linked * (batch_of[:, None] == batch_of[None, :])
            seeds = chosen & (batch_of >= 0)
            scores = dense_scores(specification.model.layer, weights, kept, features, 3)
            summed = functional.cross_entropy(scores[seeds], labels[seeds], reduction="sum")
            optimizer.zero_grad()
            (summed / max(1, int(seeds.sum()))).backward()
            optimizer.step()
            loss_sum, count = loss_sum + summed.item(), count + int(seeds.sum())
        losses.append(loss_sum / count)
    return losses, {name: value.detach() for name, value in weights.items()}


@pytest.fixture(scope="module")
def jobs(small, run_ranks, tmp_path_factory) -> dict[tuple[str, int], Job]:
    folder = tmp_path_factory.mktemp("clustergcn")
    options = {"clusters": CLUSTERS, "clusters_per_batch": PER_BATCH}
    made = {
        (layer, ranks): job_for(
            small,
            folder / f"{layer}-{ranks}",
            method="clustergcn",
            layer=layer,
            ranks=ranks,
            strategy=options,
        )
        for layer in LAYERS
        for ranks in RANKS
    }
    for ranks in RANKS:
        run_ranks(ranks, [job for key, job in made.items() if key[1] == ranks])
    return made


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_step_is_one_on_the_graph_without_edges_between_batches(small, jobs, layer, ranks):
    job = jobs[layer, ranks]
    losses, weights = simulate(small, job, ranks)
    epochs = pd.read_parquet(job.out / "epochs.parquet")
    for rank in range(ranks):
        np.testing.assert_allclose(epochs.loss[epochs["rank"] == rank], losses, **TOLERANCE)
        for name, value in job.weights(rank).items():
            torch.testing.assert_close(value, weights[name], **WEIGHT_TOLERANCE)
    assert (epochs.groupby("epoch")["train_nodes"].sum() == (small.graph.split == 0).sum()).all()
    assert (epochs["steps"] == math.ceil(4 / ranks)).all()


@pytest.mark.parametrize("ranks", RANKS)
def test_bytes_are_those_predicted(jobs, ranks):
    assert_bytes_are_predicted(jobs["sage", ranks])


def test_a_resumed_run_is_an_uninterrupted_one(small, tmp_path, run_ranks):
    def job(name: str, every: int) -> Job:
        options = {"epochs": 4, "clusters": CLUSTERS, "clusters_per_batch": PER_BATCH}
        return job_for(small, tmp_path / name, **settings("clustergcn", 2, every=every) | {"strategy": options})

    often, never = job("often", 1), job("never", 0)
    run_ranks(2, [often], be_often_interrupted)
    run_ranks(2, [never])
    assert often.metrics()["resumed_at"] == [1, 2, 3]
    assert numbers(often) == numbers(never)


@given(some.integers(0, 2**32 - 1), some.integers(1, 30), some.integers(1, 8), some.integers(1, 12))
def test_batches_are_clusters_and_cover_the_graph_once(seed, num_nodes, num_clusters, per_batch):
    rng = np.random.default_rng(seed)
    num_clusters = min(num_clusters, num_nodes)
    clusters = rng.permutation(np.concatenate([np.arange(num_clusters), rng.integers(0, num_clusters, num_nodes)]))
    batches = ClusterBatches(clusters, per_batch)
    listed = batches.of_epoch(seed % 1000, 0)
    assert len(listed) == len(batches)
    assert sorted(np.concatenate(listed)) == list(range(len(clusters)))
    sizes = [len(np.unique(clusters[nodes])) for nodes in listed]
    assert sum(sizes) == num_clusters
    assert all(size == min(per_batch, num_clusters) for size in sizes[:-1])
    for nodes, again in zip(listed, batches.of_epoch(seed % 1000, 0), strict=True):
        assert (nodes == again).all()


@given(some.sets(some.integers(0, 59), min_size=1))
def test_a_batchs_block_is_its_induced_subgraph(small, chosen):
    graph, nodes = small.graph, np.array(sorted(chosen))
    row_of = np.full(graph.num_nodes, -1, np.int64)
    block = induced_block(graph, nodes, row_of)
    assert (row_of == -1).all()
    found = torch.zeros(len(nodes), len(nodes))
    found[block.edge_destinations, block.indices] = 1
    expected = adjacency(graph)[nodes][:, nodes]
    assert torch.equal(found, expected)
    assert torch.equal(block.degrees, expected.sum(1))


def test_more_clusters_than_nodes_are_refused(small, tmp_path, alone):
    job = job_for(small, tmp_path, method="clustergcn", strategy={"clusters": 61})
    with pytest.raises(StudyError, match=r"strategy\.clusters: found 61 for 60 nodes"):
        train(open_inputs(job.spec, job.graph, job.partition), job.out, "timed", "env://")

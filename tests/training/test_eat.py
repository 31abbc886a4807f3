"""Class-balanced mini-batches in two phases, against a simulation of all ranks in one process."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from dense_layers import adjacency, dense_scores
from hypothesis import given
from hypothesis import strategies as st
from interruptions import be_often_interrupted, numbers
from interruptions import settings as checkpointed
from test_exact_settings import TOLERANCE, WEIGHT_TOLERANCE, assert_bytes_are_predicted
from torch.nn import functional
from training_cases import Case, Job, job_for

from anatomy.partitions.store import open_partition
from anatomy.training.communication import ring_bytes
from anatomy.training.gradients import EXTRA_VALUES
from anatomy.training.model import Model
from anatomy.training.sampling import generator_for
from anatomy.training.specification import read_specification
from anatomy.training.strategies.eat import inverse_to_frequency, num_drawn

ALL_NEIGHBOURS = {"fanouts": [-1, -1, -1], "batch_size": 3}
CASES = {
    "both": (3, {"shared": 0.5, "pull": 0.3}),
    "all-nodes": (2, {"shared": 0.25, "pull": 1e-5, "sampler": "all"}),
    "never-shared": (2, {"shared": 0, "pull": 0.3}),
    "always-shared": (3, {"shared": 1}),
    "alone": (1, {"shared": 0.5, "pull": 0.3}),
}


@pytest.fixture(scope="module")
def jobs(small, run_ranks, tmp_path_factory) -> dict[str, Job]:
    """Every case, trained."""
    folder = tmp_path_factory.mktemp("eat")
    made = {
        name: job_for(small, folder / name, method="eat", ranks=ranks, strategy=ALL_NEIGHBOURS | options)
        for name, (ranks, options) in CASES.items()
    }
    for ranks in (1, 2, 3):
        run_ranks(ranks, [made[name] for name, (wanted, _) in CASES.items() if wanted == ranks])
    return made


class Simulation:
    """All ranks of a job: their weights, one copy while they are shared, and their mean loss in each epoch."""

    def __init__(self, case: Case, job: Job) -> None:
        self.specification, graph = read_specification(job.spec), case.graph
        self.options = self.specification.strategy
        self.assignment = np.array(open_partition(job.partition, graph).assignment)
        self.graph, self.linked = graph, adjacency(graph)
        self.features, self.labels = (torch.from_numpy(array.copy()) for array in (graph.features, graph.labels))
        specification = self.specification
        initial = Model(specification.model, graph.num_features, graph.num_classes, specification.seed).state_dict()
        self._copies = [_leaves(initial)]
        self._optimizers = [torch.optim.Adam(self._copies[0].values(), lr=0.01)]
        self.losses = [self._epoch(epoch) for epoch in range(self.options["epochs"])]

    def weights(self, rank: int) -> dict[str, torch.Tensor]:
        return {name: value.detach() for name, value in self._copies[rank % len(self._copies)].items()}

    def right(self, rank: int) -> np.ndarray:
        """Which nodes a rank's model classifies right, bool [nodes]."""
        return (self._scores(self.weights(rank)).argmax(1) == self.labels).numpy()

    def _scores(self, weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return dense_scores("sage", weights, self.linked, self.features, 3)

    def _epoch(self, epoch: int) -> float:
        ranks = range(self.specification.ranks)
        if epoch == int(self.options["epochs"] * self.options["shared"]):
            self._shared = self.weights(0)
            self._copies = [_leaves(self._shared) for _ in ranks]
            self._optimizers = [torch.optim.Adam(copy.values(), lr=0.01) for copy in self._copies]
        batches = [self._batches(rank, epoch) for rank in ranks]
        total = 0.0
        for step in range(max(map(len, batches))):
            seeds = [own[step] if step < len(own) else torch.empty(0, dtype=torch.int64) for own in batches]
            total += self._step(seeds, shared=epoch < int(self.options["epochs"] * self.options["shared"]))
        return total / sum(len(seeds) for own in batches for seeds in own)

    def _batches(self, rank: int, epoch: int) -> tuple[torch.Tensor, ...]:
        nodes = torch.from_numpy(np.flatnonzero((self.graph.split == 0) & (self.assignment == rank)))
        generator = generator_for(self.specification.seed, rank, epoch)
        if self.options["sampler"] == "balanced" and len(nodes):
            counts = torch.tensor([(self.labels[nodes] == self.labels[node]).sum() for node in nodes])
            weights = 1 / counts.to(torch.float64)
            drawn = torch.multinomial(weights / weights.sum(), math.ceil(len(nodes) / 3), generator=generator)
            nodes = nodes[drawn]
        return nodes[torch.randperm(len(nodes), generator=generator)].split(self.options["batch_size"])

    def _step(self, seeds: list[torch.Tensor], shared: bool) -> float:
        """One step of all ranks; the sum of their losses."""
        if shared:
            return self._update(0, torch.cat(seeds), pulled=False)
        return sum(self._update(rank, own, pulled=True) for rank, own in enumerate(seeds) if len(own))

    def _update(self, rank: int, seeds: torch.Tensor, pulled: bool) -> float:
        weights, optimizer = self._copies[rank], self._optimizers[rank]
        loss = functional.cross_entropy(self._scores(weights)[seeds], self.labels[seeds])
        pull = sum((value - self._shared[name]).square().sum() for name, value in weights.items()) if pulled else 0.0
        optimizer.zero_grad()
        (loss + self.options["pull"] * pull).backward()
        optimizer.step()
        return loss.item() * len(seeds)


def _leaves(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.clone().requires_grad_() for name, value in weights.items()}


@pytest.mark.parametrize("name", CASES)
def test_training_and_evaluation_are_those_of_the_definition(small, jobs, name):
    job, expected = jobs[name], Simulation(small, jobs[name])
    epochs = pd.read_parquet(job.out / "epochs.parquet")
    ranks, split = range(CASES[name][0]), small.graph.split
    for rank in ranks:
        np.testing.assert_allclose(epochs.loss[epochs["rank"] == rank], expected.losses, **TOLERANCE)
        for key, value in job.weights(rank).items():
            torch.testing.assert_close(
                value, expected.weights(rank)[key], **WEIGHT_TOLERANCE, msg=lambda text, key=key: f"{key}: {text}"
            )
    last = epochs[epochs["epoch"] == epochs["epoch"].max()].set_index("rank")
    own = [expected.assignment == rank for rank in ranks]
    right = [expected.right(rank) for rank in ranks]
    for place, part in enumerate(("train", "val", "test")):
        counted = [nodes & (split == place) for nodes in own]
        for rank in ranks:
            of_rank = right[rank][counted[rank]].mean() if counted[rank].any() else np.nan
            assert last[f"own_{part}_accuracy"][rank] == pytest.approx(of_rank, nan_ok=True)
        hits = sum(hit[nodes].sum() for hit, nodes in zip(right, counted, strict=True))
        np.testing.assert_allclose(last[f"{part}_accuracy"], hits / (split == place).sum())


@pytest.mark.parametrize("name", CASES)
def test_weights_are_sent_in_shared_epochs_alone(jobs, name):
    assert_bytes_are_predicted(jobs[name])
    ranks, options = CASES[name]
    epochs = pd.read_parquet(jobs[name].out / "epochs.parquet")
    payload = 4 * (jobs[name].metrics()["model_parameters"] + EXTRA_VALUES)
    for _, row in epochs.iterrows():
        shared = row["epoch"] < int(4 * options["shared"])
        assert row["sent_weights_bytes"] == shared * row["steps"] * ring_bytes(payload, int(row["rank"]), ranks)
    predicted = jobs[name].metrics()["predicted"]["sent_weights_bytes_per_epoch"]
    assert (predicted is None) == (options["shared"] not in (0, 1))


def test_ranks_part_ways_and_one_without_training_nodes_stays(jobs):
    first, second, idle = (jobs["both"].weights(rank)["layers.0.own.weight"] for rank in range(3))
    assert not torch.equal(first, second)
    assert not torch.equal(first, idle)
    together = [jobs["always-shared"].weights(rank)["layers.0.own.weight"] for rank in range(3)]
    assert torch.equal(together[0], together[1])
    assert torch.equal(together[0], together[2])


def test_an_interrupted_run_ends_as_an_uninterrupted_one(small, tmp_path, run_ranks):
    often, never = (
        job_for(
            small,
            tmp_path / str(every),
            **checkpointed("eat", 2, every) | {"strategy": {"epochs": 5, "shared": 0.5, "pull": 0.3}},
        )
        for every in (1, 0)
    )
    run_ranks(2, [often], be_often_interrupted)
    run_ranks(2, [never])
    assert numbers(often) == numbers(never)
    assert often.metrics()["resumed_at"] == [1, 2, 3, 4]


@given(labels=st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_every_class_is_drawn_as_likely(labels):
    probabilities = inverse_to_frequency(torch.tensor(labels))
    assert probabilities.sum() == pytest.approx(1)
    present = sorted(set(labels))
    for label in present:
        assert probabilities[torch.tensor(labels) == label].sum() == pytest.approx(1 / len(present))
        assert probabilities[torch.tensor(labels) == label].unique().numel() == 1


@given(num_nodes=st.integers(0, 10_000))
def test_a_third_is_drawn_and_never_none(num_nodes):
    drawn = num_drawn(num_nodes)
    assert 3 * (drawn - 1) < num_nodes <= 3 * drawn

"""Training on what a rank holds against its definition: dense matrices of the whole graph in one process."""

from itertools import product

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
from torch.nn import functional
from training_cases import Case, Job, job_for

from anatomy.graphs.store import Graph
from anatomy.partitions.store import open_partition
from anatomy.training.isolation import coverage, hold
from anatomy.training.model import Model
from anatomy.training.options import LAYERS
from anatomy.training.specification import read_specification
from anatomy.training.strategies.grappa import factor, neighbour_chunks

HALF = {"correction": "shrinkage", "shrinkage": 0.25, "period": 2}
CASES = {
    **{f"{layer}-half": (layer, 3, HALF) for layer in LAYERS},
    **{
        f"sage-{correction}-{neighbours}": ("sage", 3, {"correction": correction, "neighbours": neighbours})
        for correction, neighbours in product(("none", "proportional", "inverse"), (0, 1))
    },
    "sage-two-ranks": ("sage", 2, {"correction": "inverse"}),
    "sage-two-ranks-alone": ("sage", 2, {"correction": "inverse", "neighbours": 0}),
}


@pytest.fixture(scope="module")
def jobs(small, run_ranks, tmp_path_factory) -> dict[str, Job]:
    """Every case, and full-graph training on as many ranks, trained."""
    folder = tmp_path_factory.mktemp("grappa")
    made = {
        name: job_for(small, folder / name, method="grappa", layer=layer, ranks=ranks, strategy=strategy)
        for name, (layer, ranks, strategy) in CASES.items()
    }
    made["fullgraph"] = job_for(small, folder / "fullgraph", ranks=2)
    for ranks in (2, 3):
        chosen = [job for name, job in made.items() if CASES.get(name, ("sage", 2))[1] == ranks]
        run_ranks(ranks, chosen)
    return made


def held_rows(assignment: np.ndarray, rank: int, neighbours: int, turn: int, size: int) -> torch.Tensor:
    """Which nodes have in-edges on a rank, bool: chunks after its own in turn, its own never among them."""
    others = [chunk % size for chunk in range(rank + 1, rank + size)]
    chosen = [others[(turn + place) % len(others)] for place in range(neighbours)]
    return torch.from_numpy(np.isin(assignment, [rank, *chosen]))


def covered_by_walks(linked: torch.Tensor, held: torch.Tensor, num_layers: int) -> torch.Tensor:
    """The chance that a walk over in-neighbours keeps to held nodes' in-edges; who has none stays where it is."""
    walk = linked.double() / linked.sum(1).clamp(min=1)[:, None] * held[:, None]
    walk += torch.diag((linked.sum(1) == 0).double())
    return torch.linalg.matrix_power(walk, num_layers).sum(1)


def weight_of(covered: torch.Tensor, options: dict) -> float:
    seen = covered[covered > 0]
    if options["correction"] == "none" or len(seen) == 0:
        return 1.0
    inverse = (1 / seen).mean().item()
    share = options["shrinkage"]
    return {
        "proportional": covered.mean().item(),
        "inverse": inverse,
        "shrinkage": (1 - share) + share * inverse,
    }[options["correction"]]


def simulate(case: Case, job: Job) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of the definition."""
    specification, graph = read_specification(job.spec), case.graph
    linked, num_layers, options = adjacency(graph), specification.model.num_layers, specification.strategy
    assignment = np.array(open_partition(job.partition, graph).assignment)
    features, labels = torch.from_numpy(graph.features.copy()), torch.from_numpy(graph.labels.copy())
    training = torch.from_numpy(graph.split == 0)
    initial = Model(specification.model, graph.num_features, graph.num_classes, specification.seed).state_dict()
    weights = {name: value.clone().requires_grad_() for name, value in initial.items()}
    optimizer = torch.optim.Adam(weights.values(), lr=0.01)
    losses = []
    for epoch in range(options["epochs"]):
        optimizer.zero_grad()
        total = 0.0
        for rank in range(specification.ranks):
            turn = epoch // options["period"]
            held = held_rows(assignment, rank, options["neighbours"], turn, specification.ranks)
            scale = torch.maximum(held[:, None].float().expand_as(linked), torch.eye(len(linked)))
            chosen = training & torch.from_numpy(assignment == rank)
            scores = dense_scores(
                specification.model.layer, weights, linked, features, num_layers, [scale] * num_layers
            )
            loss = functional.cross_entropy(scores[chosen], labels[chosen], reduction="sum") / training.sum()
            (loss * weight_of(covered_by_walks(linked, held, num_layers)[chosen], options)).backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses, {name: value.detach() for name, value in weights.items()}


@pytest.mark.parametrize("name", CASES)
def test_training_is_that_of_the_definition(small, jobs, name):
    job = jobs[name]
    losses, weights = simulate(small, job)
    epochs = pd.read_parquet(job.out / "epochs.parquet")
    for rank in range(CASES[name][1]):
        np.testing.assert_allclose(epochs.loss[epochs["rank"] == rank], losses, **TOLERANCE)
        for key, value in job.weights(rank).items():
            torch.testing.assert_close(
                value, weights[key], **WEIGHT_TOLERANCE, msg=lambda text, key=key: f"{key}: {text}"
            )


@pytest.mark.parametrize("name", CASES)
def test_nothing_but_gradients_is_sent(jobs, name):
    assert_bytes_are_predicted(jobs[name])
    epochs = pd.read_parquet(jobs[name].out / "epochs.parquet")
    others = [column for column in epochs.filter(regex="^sent_.*_bytes") if column != "sent_weights_bytes"]
    assert len(others) == 4
    assert (epochs[others] == 0).all(axis=None)
    assert (epochs["sent_weights_bytes"] > 0).all()
    assert set(jobs[name].metrics()["setup_sent_bytes"].values()) == {0}


def test_two_chunks_are_the_whole_graph_on_both_ranks(jobs):
    losses = [pd.read_parquet(jobs[name].out / "epochs.parquet").loss for name in ("sage-two-ranks", "fullgraph")]
    np.testing.assert_allclose(*losses, **TOLERANCE)
    alone = pd.read_parquet(jobs["sage-two-ranks-alone"].out / "epochs.parquet").loss
    assert not np.allclose(alone, losses[1], **TOLERANCE)


def test_corrections_differ(jobs):
    digests = [jobs[name].metrics()["weights_sha256"] for name in CASES if name.endswith(("-0", "-1"))]
    assert len(set(digests)) == len(digests)


def test_an_interrupted_run_ends_as_an_uninterrupted_one(small, tmp_path, run_ranks):
    often, never = (
        job_for(
            small,
            tmp_path / str(every),
            **checkpointed("grappa", 3, every) | {"strategy": {"epochs": 5, "period": 2, "correction": "inverse"}},
        )
        for every in (1, 0)
    )
    run_ranks(3, [often], be_often_interrupted)
    run_ranks(3, [never])
    assert numbers(often) == numbers(never)


class Stored:
    """As much of a graph as is held: a random one, with loops, with edges of one direction and nodes without any."""

    def __init__(self, seed: int, num_nodes: int, density: float) -> None:
        self.linked = np.random.default_rng(seed).random((num_nodes, num_nodes)) < density
        self.num_nodes = num_nodes
        self.indptr = np.concatenate([[0], np.cumsum(self.linked.sum(1))])
        self.indices = np.nonzero(self.linked)[1]


random_graphs = st.builds(Stored, st.integers(0, 2**32 - 1), st.integers(1, 25), st.sampled_from([0.02, 0.1, 0.4]))


@settings(max_examples=60)
@given(graph=random_graphs, num_parts=st.integers(1, 4), num_layers=st.integers(1, 4), data=st.data())
def test_what_is_held_is_all_in_edges_of_some_parts(graph: Graph, num_parts, num_layers, data):
    assignment = np.array(data.draw(st.lists(st.integers(0, num_parts - 1), min_size=25, max_size=25)))
    assignment = assignment[: graph.num_nodes]
    rank = data.draw(st.integers(0, num_parts - 1))
    others = (
        data.draw(st.sets(st.integers(0, num_parts - 1).filter(lambda part: part != rank))) if num_parts > 1 else ()
    )
    held = hold(graph, assignment, rank, sorted(others))
    assert held.nodes[: held.num_own].tolist() == np.flatnonzero(assignment == rank).tolist()
    whole = np.isin(assignment, [rank, *others])
    expected = graph.linked & whole[:, None]
    assert sorted(held.nodes) == np.flatnonzero(whole | expected.any(0)).tolist()
    for block, count in ((held.block, len(held.nodes)), (held.last, held.num_own)):
        assert (block.num_destinations, block.num_sources) == (count, len(held.nodes))
        found = np.zeros_like(graph.linked)
        found[held.nodes[block.edge_destinations], held.nodes[block.indices]] = True
        shown = np.isin(np.arange(graph.num_nodes), held.nodes[:count])
        assert np.array_equal(found, expected & shown[:, None])
        assert block.num_edges == found.sum()
        assert block.degrees.tolist() == np.diff(graph.indptr)[held.nodes].tolist()
    walks = covered_by_walks(torch.from_numpy(graph.linked).float(), torch.from_numpy(whole), num_layers)
    torch.testing.assert_close(coverage(held.block, num_layers), walks[held.nodes], rtol=1e-6, atol=1e-9)


@given(size=st.integers(1, 9), count=st.integers(-1, 9), turn=st.integers(0, 30), data=st.data())
def test_neighbours_take_turns(size, count, turn, data):
    rank = data.draw(st.integers(0, size - 1))
    held = neighbour_chunks(rank, size, count, turn)
    assert rank not in held
    assert len(set(held)) == len(held) == (size - 1 if count < 0 else min(count, size - 1))
    turns = [neighbour_chunks(rank, size, 1, number) for number in range(turn, turn + size - 1)]
    assert sorted(chunk for chunks in turns for chunk in chunks) == [other for other in range(size) if other != rank]


@given(covered=st.lists(st.floats(0.01, 1), min_size=1, max_size=8), other=st.floats(0.1, 200))
def test_the_inverse_factor_is_the_closest_to_the_weights_of_nodes(covered, other):
    covered = torch.tensor(covered, dtype=torch.float64)

    def deviation(value: float) -> float:
        return float((value - 1 / covered).square().sum())

    chosen = factor(covered, "inverse", 0.5)
    assert deviation(chosen) <= deviation(other) + 1e-6
    assert factor(covered, "shrinkage", 0.0) == 1
    assert factor(covered, "shrinkage", 1.0) == chosen


def test_nodes_that_nothing_is_known_of_have_no_inverse():
    assert factor(torch.tensor([0.0, 0.5], dtype=torch.float64), "inverse", 0.5) == 2
    assert factor(torch.tensor([0.0, 0.5], dtype=torch.float64), "proportional", 0.5) == 0.25
    for covered in ([], [0.0]):
        assert factor(torch.tensor(covered, dtype=torch.float64), "inverse", 0.5) == 1

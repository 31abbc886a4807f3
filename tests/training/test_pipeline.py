"""The pipeline's approximation is the one it states: chunks in random order, history, weighted gradients."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from dense_layers import adjacency, normalised, sage
from hypothesis import given, settings
from hypothesis import strategies as some
from interruptions import be_often_interrupted, numbers
from interruptions import settings as interrupted_settings
from test_exact_settings import TOLERANCE, WEIGHT_TOLERANCE, assert_bytes_are_predicted
from torch.nn import functional
from training_cases import Case, Job, job_for, specification, write_small_graph

from anatomy.errors import StudyError
from anatomy.graphs.store import open_graph
from anatomy.traces.parsing import parse_traces
from anatomy.training.chunks import cut_into_chunks
from anatomy.training.model import Model
from anatomy.training.sampling import generator_for
from anatomy.training.specification import read_specification
from anatomy.training.stages import layer_spans

CASES = {
    "sage-2": {"layer": "sage", "ranks": 2},
    "sage-3-refreshed": {"layer": "sage", "ranks": 3, "strategy": {"refresh_every": 2, "chunks": 5}},
    "sage-1": {"layer": "sage", "ranks": 1, "strategy": {"refresh_every": 1}},
    "gcnii-2": {"layer": "gcnii", "ranks": 2, "model": {"num_layers": 5}, "strategy": {"refresh_every": 2}},
    "gcnii-3-newest": {"layer": "gcnii", "ranks": 3, "strategy": {"refresh_every": 1}},
    "sage-2-empty-chunks": {"layer": "sage", "ranks": 2, "strategy": {"chunks": 70}},
}


@dataclass(frozen=True)
class Dense:
    """A model's layers on all nodes, from their formulas."""

    layer: str
    weights: dict[str, torch.Tensor]
    linked: torch.Tensor
    features: torch.Tensor
    num_layers: int

    def output(self, index: int, rows: torch.Tensor) -> torch.Tensor:
        own = {
            name.split(".", 2)[2]: value for name, value in self.weights.items() if name.startswith(f"layers.{index}.")
        }
        last = index == self.num_layers - 1
        if self.layer == "sage":
            rows = sage(own, self.linked, rows)
            return rows if last else rows.relu()
        initial = (self.features @ self.weights["layers.0.input.weight"].T + self.weights["layers.0.input.bias"]).relu()
        beta = math.log(0.5 / (index + 1) + 1)
        support = 0.9 * normalised(self.linked) @ (rows if index else initial) + 0.1 * initial
        rows = ((1 - beta) * support + beta * support @ own["linear.weight"].T).relu()
        return rows @ own["output.weight"].T + own["output.bias"] if last else rows


def train_in_chunks(case: Case, job: Job) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of the algorithm in one process, with one graph of operations per epoch."""
    spec, graph = read_specification(job.spec), case.graph
    num_layers, options = spec.model.num_layers, spec.strategy
    features, labels = torch.from_numpy(graph.features.copy()), torch.from_numpy(graph.labels.copy())
    chosen = torch.from_numpy(graph.split == 0)
    initial = Model(spec.model, graph.num_features, graph.num_classes, spec.seed).state_dict()
    weights = {name: value.clone().requires_grad_() for name, value in initial.items()}
    dense = Dense(spec.model.layer, weights, adjacency(graph), features, num_layers)
    optimizer = torch.optim.Adam(weights.values(), lr=0.01)
    num_chunks = options["chunks"] or 4 * spec.ranks
    order, _ = cut_into_chunks(graph, np.load(job.partition / "assignment.npy"), num_chunks)
    chunks = [
        order[number * graph.num_nodes // num_chunks : (number + 1) * graph.num_nodes // num_chunks]
        for number in range(num_chunks)
    ]
    widths = [spec.model.hidden] * (num_layers - 1) + [graph.num_classes]
    history = [torch.zeros(graph.num_nodes, width) for width in widths]
    losses = []
    for epoch in range(options["epochs"]):
        outputs = list(history)
        for number in torch.randperm(num_chunks, generator=generator_for(spec.seed, 0, epoch)).tolist():
            nodes = torch.from_numpy(chunks[number])
            inside = torch.zeros(graph.num_nodes, 1, dtype=torch.bool)
            inside[nodes] = True
            for index in range(num_layers):
                rows = features if index == 0 else outputs[index - 1]
                twice = 2 * rows - rows.detach()  # the rows themselves, but gradients through them are doubled
                rows = dense.output(index, torch.where(inside, rows, twice))
                outputs[index] = outputs[index].index_copy(0, nodes, rows[nodes])
        loss = functional.cross_entropy(outputs[-1][chosen], labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if epoch % options["refresh_every"] == 0:
            history = [rows.detach() for rows in outputs]
    return losses, {name: value.detach() for name, value in weights.items()}


@pytest.fixture(scope="module")
def jobs(small, run_ranks, tmp_path_factory) -> dict[str, Job]:
    folder = tmp_path_factory.mktemp("pipeline")
    made = {
        name: job_for(
            small, folder / name, method="pipeline", **given | {"strategy": {"epochs": 6} | given.get("strategy", {})}
        )
        for name, given in CASES.items()
    }
    for ranks in (1, 2, 3):
        run_ranks(ranks, [made[name] for name, given in CASES.items() if given["ranks"] == ranks])
    return made


@pytest.mark.parametrize("name", CASES)
def test_all_ranks_have_the_losses_and_weights_of_the_algorithm_in_one_process(small, jobs, name):
    losses, weights = train_in_chunks(small, jobs[name])
    epochs = pd.read_parquet(jobs[name].out / "epochs.parquet")
    for rank in range(CASES[name]["ranks"]):
        np.testing.assert_allclose(epochs.loss[epochs["rank"] == rank], losses, **TOLERANCE)
        for key, value in jobs[name].weights(rank).items():
            torch.testing.assert_close(
                value, weights[key], **WEIGHT_TOLERANCE, msg=lambda text, key=key: f"{key}: {text}"
            )


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_one_row_per_node_and_stage(small, jobs, name):
    assert_bytes_are_predicted(jobs[name])
    ranks, metrics = CASES[name]["ranks"], jobs[name].metrics()
    width = 8 + 8 if CASES[name]["layer"] == "gcnii" else 8  # gcnii carries H_0 along
    assert metrics["predicted"]["sent_activations_bytes_per_epoch"] == (ranks - 1) * small.graph.num_nodes * width * 4
    assert metrics["predicted"]["sent_weights_bytes_per_epoch"] == 2 * (ranks - 1) * 4  # the loss
    # Every stage's weights go to all other ranks before each evaluation.
    gathered = (ranks - 1) * metrics["model_parameters"] * 4
    assert metrics["evaluation_sent_bytes"]["weights"] == 6 * gathered


def test_training_nodes_are_the_last_stages(small, jobs):
    epochs = pd.read_parquet(jobs["sage-3-refreshed"].out / "epochs.parquet")
    expected = np.count_nonzero(small.graph.split == 0)
    assert epochs.groupby("rank").train_nodes.first().tolist() == [0, 0, expected]


@pytest.mark.usefixtures("alone")
def test_a_run_interrupted_after_every_epoch_ends_as_an_uninterrupted_one(small, tmp_path, run_ranks):
    often, never = (
        job_for(small, tmp_path / str(every), **interrupted_settings("pipeline", ranks=2, every=every))
        for every in (1, 0)
    )
    run_ranks(2, [often], be_often_interrupted)
    run_ranks(2, [never])
    assert numbers(often) == numbers(never)
    assert often.metrics()["resumed_at"] == [1, 2, 3, 4]


def test_a_trace_shows_every_message_and_where_a_stage_waits(small, tmp_path, run_ranks):
    job = job_for(small, tmp_path / "job", mode="profiled", method="pipeline", ranks=2)
    run_ranks(2, [job])
    job.spec.unlink()  # is no trace
    assert parse_traces(job.out, tmp_path / "tables")["unmatched_share"] == 0
    collectives = pd.read_parquet(tmp_path / "tables" / "collectives.parquet").query("kind == 'send_recv'")
    # 8 chunks there, and their gradients back, each seen by both ranks
    assert collectives.groupby(["rank", "step"]).size().tolist() == [2 * 8] * 4
    assert set(collectives.phase) == {"exchange"}
    phases = pd.read_parquet(tmp_path / "tables" / "phases.parquet").query("phase == 'exchange'")
    assert (phases.comm_ns > 0).all()


@settings(deadline=None, max_examples=50)
@given(num_chunks=some.integers(1, 80), seed=some.integers(0, 1000))
def test_chunks_hold_every_node_once_with_all_its_in_neighbours(small, num_chunks, seed):
    graph = small.graph
    assignment = np.random.default_rng(seed).integers(0, 3, graph.num_nodes)
    order, chunks = cut_into_chunks(graph, assignment, num_chunks)
    assert sorted(order) == list(range(graph.num_nodes))
    assert (np.diff(assignment[order]) >= 0).all()
    sizes = [chunk.num_nodes for chunk in chunks]
    assert sum(sizes) == graph.num_nodes
    assert max(sizes) - min(sizes) <= 1
    owner = np.repeat(np.arange(num_chunks), sizes)
    for number, chunk in enumerate(chunks):
        sources = order[chunk.sources.numpy()]
        assert (owner[chunk.sources.numpy()[chunk.num_nodes :]] == chunk.source_chunks.numpy()).all()
        assert number not in chunk.source_chunks
        assert (chunk.block.degrees.numpy() == np.diff(graph.indptr)[sources]).all()
        for row, node in enumerate(order[chunk.nodes]):
            edges = slice(chunk.block.indptr[row], chunk.block.indptr[row + 1])
            expected = graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
            assert sources[chunk.block.indices[edges].numpy()].tolist() == expected.tolist()


@pytest.mark.parametrize("num_chunks", [2, 7])
def test_few_edges_leave_chunks_that_do_not_have_to(tmp_path, num_chunks):
    """A ring whose nodes are numbered at random. In an order by nearness, neighbours are at most 2 places apart."""
    rng = np.random.default_rng(3)
    ring = rng.permutation(60)
    linked = np.zeros((60, 60), dtype=bool)
    linked[ring, np.roll(ring, 1)] = linked[np.roll(ring, 1), ring] = True
    write_small_graph(tmp_path / "ring", linked, np.zeros(60, np.int8), rng)
    _, chunks = cut_into_chunks(open_graph(tmp_path / "ring"), np.zeros(60, np.int32), num_chunks)
    crossing = sum((chunk.block.indices >= chunk.num_nodes).sum().item() for chunk in chunks)
    # Places i < cut <= j with j - i <= 2 are 3 pairs, each an edge in both directions.
    assert 0 < crossing <= (num_chunks - 1) * 3 * 2


@given(some.integers(1, 64).flatmap(lambda layers: some.tuples(some.just(layers), some.integers(1, layers))))
def test_every_layer_has_one_stage_and_every_stage_as_many(sizes):
    num_layers, num_stages = sizes
    spans = layer_spans(num_layers, num_stages)
    assert [layer for span in spans for layer in span] == list(range(num_layers))
    lengths = [len(span) for span in spans]
    assert min(lengths) >= 1
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(("method", "options"), [("pipeline", {}), ("decoupled", {})])
def test_more_ranks_than_layers_are_refused(tmp_path, method, options):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(specification(method, ranks=4, strategy=options)))
    with pytest.raises(StudyError, match=r"model\.num_layers: found 3 layers for 4 ranks.*at least 4 layers"):
        read_specification(path)
    path.write_text(json.dumps(specification(method, ranks=3, strategy=options)))
    assert read_specification(path).ranks == 3


def test_one_module_may_have_fewer_layers_than_ranks(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(specification("decoupled", ranks=4, strategy={"modules": 1})))
    assert read_specification(path).ranks == 4

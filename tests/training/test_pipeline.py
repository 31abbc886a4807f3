"""The pipeline's approximation is the one it states: chunks in random order, history, weighted gradients."""

import json
import math
from dataclasses import dataclass
from itertools import product

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
from anatomy.training.chunks import chunks_of, cut_into_chunks
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
    "sage-2-of-2": {"layer": "sage", "ranks": 4, "strategy": {"stages": 2}},
    "sage-2-of-2-whole": {"layer": "sage", "ranks": 4, "strategy": {"stages": 2, "chunks": 1}},
    "sage-1-of-3-refreshed": {"layer": "sage", "ranks": 3, "strategy": {"stages": 1, "chunks": 5, "refresh_every": 2}},
    "gcnii-2-of-2": {
        "layer": "gcnii",
        "ranks": 4,
        "model": {"num_layers": 5},
        "strategy": {"stages": 2, "refresh_every": 3},
    },
    "gcnii-2-of-2-newest": {"layer": "gcnii", "ranks": 4, "strategy": {"stages": 2, "chunks": 3, "refresh_every": 1}},
    "sage-2-of-2-empty-pieces": {"layer": "sage", "ranks": 4, "strategy": {"stages": 2, "chunks": 30}},
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
    num_stages = options["stages"] or spec.ranks
    num_chunks = options["chunks"] or 4 * num_stages
    assignment, owners = np.load(job.partition / "assignment.npy"), np.arange(spec.ranks) // num_stages
    cut = cut_into_chunks(graph, assignment, owners.tolist(), num_chunks)
    chunks = [np.flatnonzero(cut.chunk == number) for number in range(num_chunks)]
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
    for ranks in (1, 2, 3, 4):
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
def test_bytes_are_one_row_per_node_and_stage_and_per_halo_node_and_layer_within(small, jobs, name):
    assert_bytes_are_predicted(jobs[name])
    ranks, metrics = CASES[name]["ranks"], jobs[name].metrics()
    stages = CASES[name].get("strategy", {}).get("stages") or ranks
    width = 8 + 8 if CASES[name]["layer"] == "gcnii" else 8  # gcnii carries H_0 along
    num_layers = CASES[name].get("model", {}).get("num_layers", 3)
    passed = (stages - 1) * small.graph.num_nodes * width
    exchanged = (num_layers - 1) * 8 * volume_of_unions(small, ranks, stages)
    assert metrics["predicted"]["sent_activations_bytes_per_epoch"] == 4 * (passed + exchanged)
    assert (exchanged > 0) == (stages < ranks)
    # The loss, and every stage's gradients in a ring over its ranks.
    parameters = 4 * metrics["model_parameters"]
    rings = 2 * (ranks - 1) * 4 + 2 * (ranks // stages - 1) * parameters
    assert metrics["predicted"]["sent_weights_bytes_per_epoch"] == rings
    # Every stage's weights go to the ranks of all others before each evaluation.
    assert metrics["evaluation_sent_bytes"]["weights"] == 6 * (stages - 1) * parameters * (ranks // stages)


def volume_of_unions(small, ranks, stages) -> int:
    """Rows that the parts of a stage, unions of the run's, need from each other, by their edges."""
    graph = small.graph
    owner = np.load(small.partition_path(ranks) / "assignment.npy") // stages
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    return len(
        {
            (node, owner[target])
            for node, target in zip(graph.indices, targets, strict=True)
            if owner[node] != owner[target]
        }
    )


def test_training_nodes_are_the_last_stages(small, jobs):
    chosen = small.graph.split == 0
    trained = {
        name: pd.read_parquet(jobs[name].out / "epochs.parquet").groupby("rank").train_nodes.first().tolist()
        for name in ("sage-3-refreshed", "sage-2-of-2")
    }
    assert trained["sage-3-refreshed"] == [0, 0, chosen.sum()]
    second = chosen[np.load(small.partition_path(4) / "assignment.npy") >= 2].sum()
    assert trained["sage-2-of-2"] == [0, 0, chosen.sum() - second, second]


def test_two_stages_of_two_ranks_and_one_chunk_are_full_graph_training(small, tmp_path, run_ranks):
    methods, layers = {"pipeline": {"stages": 2, "chunks": 1}, "fullgraph": {}}, ("sage", "gat")
    made = {
        (method, layer): job_for(
            small, tmp_path / f"{method}-{layer}", method=method, layer=layer, ranks=4, strategy=options
        )
        for (method, options), layer in product(methods.items(), layers)
    }
    run_ranks(4, list(made.values()))
    for layer in layers:
        hybrid, plain = (made[method, layer] for method in methods)
        losses, expected = (pd.read_parquet(job.out / "epochs.parquet").loss for job in (hybrid, plain))
        np.testing.assert_allclose(losses, expected, **TOLERANCE)
        for rank, (key, value) in product(range(4), plain.weights().items()):
            torch.testing.assert_close(hybrid.weights(rank)[key], value, **WEIGHT_TOLERANCE)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("ranks", "stages"), [(2, None), (2, 1)])
def test_a_run_interrupted_after_every_epoch_ends_as_an_uninterrupted_one(small, tmp_path, run_ranks, ranks, stages):
    common = {"method": "pipeline", "ranks": ranks}
    often, never = (interrupted_settings(every=every, **common) for every in (1, 0))
    often, never = (
        job_for(small, tmp_path / name, **given | {"strategy": given["strategy"] | {"stages": stages}})
        for name, given in (("often", often), ("never", never))
    )
    run_ranks(ranks, [often], be_often_interrupted)
    run_ranks(ranks, [never])
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


def test_a_trace_shows_who_exchanges_within_a_stage(small, tmp_path, run_ranks):
    options = {"strategy": {"stages": 2, "chunks": 2}, "model": {"num_layers": 5}}
    job = job_for(small, tmp_path / "job", mode="profiled", method="pipeline", ranks=4, **options)
    run_ranks(4, [job])
    job.spec.unlink()  # is no trace
    assert parse_traces(job.out, tmp_path / "tables")["unmatched_share"] == 0
    collectives = pd.read_parquet(tmp_path / "tables" / "collectives.parquet").query("kind == 'all_to_all_v'")
    assert set(collectives.group_size) == {2}
    # Of 5 layers, the stages have 2 and 3; all but the first exchange 2 chunks forward and back, and gradients are
    # summed by 2 exchanges.
    assert collectives.groupby(["rank", "step"]).size().tolist() == [2 * 2 * 1 + 2] * 4 + [2 * 2 * 3 + 2] * 4


@settings(max_examples=50)
@given(num_chunks=some.integers(1, 80), seed=some.integers(0, 1000), num_parts=some.integers(1, 4))
def test_chunks_hold_every_node_once_with_all_its_in_neighbours(small, num_chunks, seed, num_parts):
    graph, num_stages = small.graph, 2
    assignment = np.random.default_rng(seed).integers(0, num_parts * num_stages, graph.num_nodes)
    owners = np.arange(num_parts * num_stages) // num_stages
    cut = cut_into_chunks(graph, assignment, owners.tolist(), num_chunks)
    assert (cut.owner == owners[assignment]).all()
    made = [chunks_of(graph, cut, part) for part in range(num_parts)]
    for part, (table, chunks) in enumerate(made):
        num_own = len(cut.order[part])
        assert sorted(table[:num_own]) == np.flatnonzero(cut.owner == part).tolist()
        assert (np.diff(assignment[table[:num_own]]) >= 0).all()
        sizes = [chunk.num_nodes for chunk in chunks]
        assert sum(sizes) == num_own
        assert max(sizes) - min(sizes) <= 1
        for number, chunk in enumerate(chunks):
            assert (cut.chunk[table[chunk.nodes]] == number).all()
            sources = table[chunk.sources.numpy()]
            assert (cut.chunk[sources[chunk.num_nodes :]] == chunk.source_chunks.numpy()).all()
            assert (chunk.block.degrees.numpy() == np.diff(graph.indptr)[sources]).all()
            for row, node in enumerate(table[chunk.nodes]):
                edges = slice(chunk.block.indptr[row], chunk.block.indptr[row + 1])
                expected = graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
                assert sources[chunk.block.indices[edges].numpy()].tolist() == expected.tolist()
            assert_halo_is_sent(made, part, number)


def assert_halo_is_sent(made, part, number):
    """What a part has of a chunk's halo is what the others send of their piece, in that order."""
    table, chunks = made[part]
    sent = []
    for owner, (other_table, others) in enumerate(made):
        chunk, ends = others[number], np.cumsum([0, *others[number].send_counts])
        rows = chunk.send_rows.numpy()[ends[part] : ends[part + 1]]
        assert len(rows) == chunks[number].receive_counts[owner]
        assert ((rows >= chunk.nodes.start) & (rows < chunk.nodes.stop)).all()
        sent += other_table[rows].tolist()
    assert sent == table[chunks[number].halo].tolist()


@pytest.mark.parametrize("num_chunks", [2, 7])
def test_few_edges_leave_chunks_that_do_not_have_to(tmp_path, num_chunks):
    """A ring whose nodes are numbered at random. In an order by nearness, neighbours are at most 2 places apart."""
    rng = np.random.default_rng(3)
    ring = rng.permutation(60)
    linked = np.zeros((60, 60), dtype=bool)
    linked[ring, np.roll(ring, 1)] = linked[np.roll(ring, 1), ring] = True
    write_small_graph(tmp_path / "ring", linked, np.zeros(60, np.int8), rng)
    graph = open_graph(tmp_path / "ring")
    _, chunks = chunks_of(graph, cut_into_chunks(graph, np.zeros(60, np.int32), [0], num_chunks), 0)
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


@pytest.mark.parametrize(
    ("method", "options", "ranks", "message"),
    [
        ("pipeline", {}, 4, r"model\.num_layers: found 3 layers for 4 ranks.*at least 4 layers"),
        ("decoupled", {}, 4, r"model\.num_layers: found 3 layers for 4 ranks.*at least 4 layers"),
        ("pipeline", {"stages": 4}, 8, r"model\.num_layers: found 3 layers for 4 stages.*at least 4 layers"),
        ("pipeline", {"stages": 2}, 3, r"strategy\.stages: found 2 for 3 rank.*divisor of the ranks"),
        ("pipeline", {"stages": 2}, 1, r"strategy\.stages: found 2 for 1 rank"),
    ],
)
def test_more_stages_than_layers_and_ranks_that_do_not_fill_them_are_refused(tmp_path, method, options, ranks, message):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(specification(method, ranks=ranks, strategy=options)))
    with pytest.raises(StudyError, match=message):
        read_specification(path)


@pytest.mark.parametrize(
    ("method", "options", "ranks"),
    [
        ("pipeline", {}, 3),
        ("decoupled", {}, 3),
        ("decoupled", {"modules": 1}, 4),
        ("pipeline", {"stages": 2}, 8),
        ("pipeline", {"stages": 1}, 5),
    ],
)
def test_as_many_layers_as_stages_are_enough(tmp_path, method, options, ranks):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(specification(method, ranks=ranks, strategy=options)))
    assert read_specification(path).ranks == ranks

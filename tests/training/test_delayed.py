"""DistGNN's delayed sums against their definition, simulated in one process, and what a rank knows of a vertex cut."""

from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from dense_layers import adjacency
from interruptions import be_often_interrupted, numbers
from interruptions import settings as checkpointed
from test_exact_settings import TOLERANCE, WEIGHT_TOLERANCE
from torch.nn import functional
from training_cases import Case, Job, job_for, write_partition

from anatomy.errors import StudyError
from anatomy.partitions.build import partition_graph
from anatomy.partitions.store import open_partition
from anatomy.training.communication import Communicator, Exchange, Kind
from anatomy.training.model import Model
from anatomy.training.replicas import PartialSums, local_replicas
from anatomy.training.specification import read_specification

CUTS = {"two": 2, "three": 3, "bare": 3}
"""Ranks by cut; in `bare` the third has the isolated nodes' roots and no edge."""
CASES = [(layer, cut, delay) for layer, cut in (*product(["sage"], CUTS), ("gcn", "three")) for delay in (1, 2, None)]
EPOCHS = 7


@pytest.fixture(scope="module")
def cuts(small, tmp_path_factory) -> dict[str, Path]:
    """Vertex cuts of the small graph."""
    graph, rng = small.graph, np.random.default_rng(3)
    bare = tmp_path_factory.mktemp("cuts") / "bare"
    roots = np.where(np.diff(graph.indptr) == 0, 2, rng.integers(0, 2, graph.num_nodes))
    write_partition(bare, graph, roots, rng.integers(0, 2, graph.num_edges))
    return {name: small.partition_path(CUTS[name], "delayed") for name in ("two", "three")} | {"bare": bare}


@pytest.fixture(scope="module")
def jobs(small, cuts, run_ranks, tmp_path_factory) -> dict[tuple, Job]:
    """Every case, trained."""
    folder = tmp_path_factory.mktemp("delayed")
    made = {
        (layer, cut, delay): job_for(
            small,
            folder / f"{layer}-{cut}-{delay}",
            partition=cuts[cut],
            method="delayed",
            layer=layer,
            ranks=CUTS[cut],
            strategy={"epochs": EPOCHS, "delay": delay},
        )
        for layer, cut, delay in CASES
    }
    for ranks in (2, 3):
        run_ranks(ranks, [job for case, job in made.items() if CUTS[case[1]] == ranks])
    return made


class Late:
    """What all parts hold [parts, nodes, width] at one place in the model, with what has come, epoch by epoch."""

    def __init__(self, held: torch.Tensor, roots: list[int], delay: int | None) -> None:
        self._parts_of = [torch.nonzero(parts).flatten().tolist() for parts in held.T]
        self._shared = [node for node, root in enumerate(roots) if set(self._parts_of[node]) - {root}]
        self._roots, self._delay = roots, delay
        self._partial: list[torch.Tensor] = []
        self._result: list[torch.Tensor] = []

    def __call__(self, partial: torch.Tensor) -> torch.Tensor:
        epoch, delay = len(self._partial), self._delay
        result = partial.clone()
        for node in [] if delay is None else self._shared[epoch % delay :: delay]:
            root = self._roots[node]
            for leaf in set(self._parts_of[node]) - {root}:
                if epoch >= delay:
                    result[root, node] += self._partial[epoch - delay][leaf, node]
                if epoch >= 2 * delay:
                    result[leaf, node] = self._result[epoch - delay][root, node]
        self._partial.append(partial.clone())
        self._result.append(result)
        return result.clone()


class Combined(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial, late, late_gradient):
        ctx.late_gradient = late_gradient
        return late(partial)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.late_gradient(gradient), None, None


def simulate(case: Case, job: Job) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of the definition, with a dense matrix of each part's edges [parts, nodes, nodes]."""
    specification, graph = read_specification(job.spec), case.graph
    partition = open_partition(job.partition, graph)
    linked = adjacency(graph)
    matrices = torch.zeros(specification.ranks, graph.num_nodes, graph.num_nodes)
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    matrices[partition.edge_assignment.tolist(), targets.tolist(), graph.indices.tolist()] = 1
    assert torch.equal(matrices.sum(0), linked)
    roots = partition.assignment.tolist()
    held = (matrices.sum(1) + matrices.sum(2)) > 0
    late = [[Late(held, roots, specification.strategy["delay"]) for _ in range(3)] for _ in range(3)]
    features, labels = torch.from_numpy(graph.features.copy()), torch.from_numpy(graph.labels.copy())
    chosen = np.flatnonzero(graph.split == 0).tolist()
    model = Model(specification.model, graph.num_features, graph.num_classes, specification.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(specification.strategy["epochs"]):
        rows = features.expand(specification.ranks, -1, -1)
        for index, (sums, gradients, edges) in enumerate(late):
            counts = edges(matrices.sum(2, keepdim=True))
            formula = {"sage": sage, "gcn": gcn}[specification.model.layer]
            rows = formula(
                model.layers[index],
                rows,
                lambda rows, both=(sums, gradients): Combined.apply(matrices @ rows, *both),
                counts,
                linked.sum(1, keepdim=True),
            )
            rows = rows.relu() if index < 2 else rows
        loss = functional.cross_entropy(rows[[roots[node] for node in chosen], chosen], labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def sage(layer, rows, summed, counts, degrees):
    """The mean of the edges that are in the sum; a last layer, from 8 to 3, projects first."""
    if layer.place.last:
        neighbours = summed(layer.neighbours(rows)) / counts.clamp(min=1)
    else:
        neighbours = layer.neighbours(summed(rows) / counts.clamp(min=1))
    return layer.own(rows) + neighbours


def gcn(layer, rows, summed, counts, degrees):
    """Normalised by full degrees, the sum scaled up from the edges that are in it."""
    scaled = (layer.linear(rows) if layer.place.last else rows) / (degrees + 1).sqrt()
    up = torch.where(counts > 0, degrees / counts, torch.ones_like(counts))
    gathered = (summed(scaled) * up + scaled) / (degrees + 1).sqrt()
    return (gathered if layer.place.last else layer.linear(gathered)) + layer.bias


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_training_is_that_of_the_definition(small, jobs, case):
    job = jobs[case]
    losses, weights = simulate(small, job)
    epochs = pd.read_parquet(job.out / "epochs.parquet")
    for rank in range(CUTS[case[1]]):
        np.testing.assert_allclose(epochs.loss[epochs["rank"] == rank], losses, **TOLERANCE)
        for name, value in job.weights(rank).items():
            torch.testing.assert_close(
                value, weights[name], **WEIGHT_TOLERANCE, msg=lambda text, name=name: f"{name}: {text}"
            )


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_bytes_are_those_of_the_epochs_bin(small, jobs, case):
    """Widths that `sage` and `gcn` aggregate: 5, 8 and, projected, 3; the first asks for no gradient. float32."""
    delay, job = case[2], jobs[case]
    mirrors = np.sort(open_partition(job.partition, small.graph).mirror_nodes)
    assert len(mirrors)
    bin_of = {node: place % (delay or 1) for place, node in enumerate(np.unique(mirrors).tolist())}
    in_bin = Counter(bin_of[node] for node in mirrors.tolist())
    sent = pd.read_parquet(job.out / "epochs.parquet").groupby("epoch").sum(numeric_only=True)
    predicted = job.metrics()["predicted"]
    for kind, width in (("activations", 5 + 8 + 3), ("gradients", 8 + 3)):
        measured = sent[f"sent_{kind}_bytes"].tolist()
        if delay is None:
            assert predicted[f"sent_{kind}_bytes_per_epoch"] == 0
            assert measured == [0] * EPOCHS
            continue
        legs = [1 if epoch < delay else 2 for epoch in range(EPOCHS)]
        assert measured == [legs[epoch] * in_bin[epoch % delay] * width * 4 for epoch in range(EPOCHS)]
        assert sum(measured[delay : 2 * delay]) == 2 * len(mirrors) * width * 4, "all bins once"
        assert predicted[f"sent_{kind}_bytes_per_epoch"] is None
    assert predicted["sent_features_bytes_once"] == job.metrics()["setup_sent_bytes"]["features"]
    assert predicted["sent_features_bytes_once"] == len(mirrors) * 5 * 4


def test_delays_make_a_difference(jobs):
    """Or the tests above would show nothing."""
    losses = [jobs["sage", "three", delay].metrics()["final"]["loss"] for delay in (1, 2, None)]
    assert len({round(loss, 3) for loss in losses}) == 3


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(small, tmp_path, run_ranks, ranks):
    jobs = []
    for name, every in (("often", 1), ("never", 0)):
        settings = checkpointed("delayed", ranks, every=every, epochs=6)
        settings["strategy"] |= {"delay": 2}
        jobs.append(job_for(small, tmp_path / name, **settings))
    often, never = jobs
    run_ranks(ranks, [often], be_often_interrupted)
    run_ranks(ranks, [never])
    assert numbers(often) == numbers(never)


def test_libras_parts_train_as_parts_of_nodes_do(small, run_ranks, tmp_path):
    partition_graph(small.graph_path, {"method": "libra"}, 2, tmp_path / "libra")
    cut = job_for(
        small, tmp_path / "cut", partition=tmp_path / "libra", method="delayed", ranks=2, strategy={"delay": 0}
    )
    exact = job_for(small, tmp_path / "exact", ranks=2)
    run_ranks(2, [cut, exact])
    found, expected = (pd.read_parquet(job.out / "epochs.parquet") for job in (cut, exact))
    np.testing.assert_allclose(found["loss"], expected["loss"], **TOLERANCE)
    assert found["test_accuracy"].iloc[-1] == pytest.approx(expected["test_accuracy"].iloc[-1], abs=0.06)


def test_a_profiled_run_ends_with_sums_on_their_way(small, run_ranks, tmp_path):
    job = job_for(small, tmp_path / "profiled", mode="profiled", method="delayed", ranks=2, strategy={"delay": 5})
    run_ranks(2, [job])
    assert {path.name for path in job.out.glob("*.json*")} >= {"manifest.json", "rank0.json.gz", "rank1.json.gz"}


# A rank's part


@pytest.mark.parametrize(("cut", "num_bins"), list(product(CUTS, (1, 2, 5, 100))))
def test_ranks_have_every_edge_once_and_agree_on_what_they_share(small, cuts, cut, num_bins):
    graph = small.graph
    partition = open_partition(cuts[cut], graph)
    parts = [local_replicas(graph, partition, rank, num_bins) for rank in range(CUTS[cut])]
    found = Counter()
    for part in parts:
        targets, sources = part.nodes[part.edges.edge_destinations], part.nodes[part.edges.indices]
        found.update(zip(targets.tolist(), sources.tolist(), strict=True))
        assert part.edges.degrees.tolist() == np.diff(graph.indptr)[part.nodes].tolist()
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    assert found == Counter(zip(targets.tolist(), graph.indices.tolist(), strict=True))
    bins_of = {}
    for root, leaf, number in product(range(CUTS[cut]), range(CUTS[cut]), range(num_bins)):
        here, there = parts[root].bins[number], parts[leaf].bins[number]
        nodes = parts[root].nodes[here.root_rows].split(here.root_counts)[leaf].tolist()
        assert nodes == parts[leaf].nodes[there.leaf_rows].split(there.leaf_counts)[root].tolist()
        for node in nodes:
            bins_of.setdefault(node, set()).add(number)
    assert all(len(numbers) == 1 for numbers in bins_of.values()), "a node is in one bin"
    sizes = Counter(min(numbers) for numbers in bins_of.values())
    assert max(sizes.values()) - min(sizes[number] for number in range(num_bins)) <= 1
    assert set(bins_of) == set(partition.mirror_nodes.tolist())


def test_parts_of_nodes_are_refused(small):
    graph = small.graph
    partition = open_partition(small.partition_path(2), graph)
    with pytest.raises(StudyError, match=r"partition\.json: found no edge_assignment.*such as libra"):
        local_replicas(graph, partition, 0, 1)


class Recorder(Communicator):
    """A rank of two, whose messages go nowhere; `events` tells what was begun and what was waited for."""

    def __init__(self) -> None:
        super().__init__(rank=0, size=2)
        self.events: list[tuple[str, int]] = []

    def start_exchange(self, send, send_counts, receive, receive_counts, kind) -> Exchange:
        events, number = self.events, sum(name == "start" for name, _ in self.events)
        events.append(("start", number))
        intact = send.clone()

        class OnItsWay(Exchange):
            def wait(self) -> None:
                assert torch.equal(send, intact), "what is on its way was changed"
                events.append(("wait", number))

        return OnItsWay()


def test_sums_are_on_their_way_until_their_bin_has_its_turn_again(small):
    """With delay 2, epochs begin exchanges 0 | 1 | 2, 3 | 4, 5 | 6, 7 | 8, 9; each ends two epochs later."""
    replicas = local_replicas(small.graph, open_partition(small.partition_path(2, "delayed"), small.graph), 0, 2)
    communicator = Recorder()
    sums = PartialSums(replicas.bins, 2, 4, communicator, Kind.ACTIVATIONS, torch.device("cpu"))
    waited = []
    for epoch in range(6):
        before = len(communicator.events)
        sums.total(torch.randn(len(replicas.nodes), 4), epoch)
        waited.append([number for name, number in communicator.events[before:] if name == "wait"])
    assert waited == [[], [], [0], [1], [2, 3], [4, 5]]

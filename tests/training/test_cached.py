"""Caching of halo rows and of their gradients, against a simulation in one process that follows its definition."""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pytest
import torch
from dense_layers import adjacency, gcn, sage
from hypothesis import given
from hypothesis import strategies as some
from interruptions import be_often_interrupted, numbers, settings
from test_exact_settings import TOLERANCE, WEIGHT_TOLERANCE, assert_bytes_are_predicted
from torch.nn import functional
from training_cases import Case, Job, job_for

from anatomy.training.model import Model
from anatomy.training.quantisation import HEADER_BYTES, decode_int8, encode_int8
from anatomy.training.row_cache import RowBits
from anatomy.training.specification import read_specification

LAYERS = {"gcn": gcn, "sage": sage}
HIDDEN = 8
SETTINGS = {
    "stays": {"epochs": 8, "epsilon": 0.1, "shrink": 1},
    "shrinks": {"epochs": 8, "epsilon": 0.4, "patience": 1, "shrink": 0.25},
    "int8": {"epochs": 6, "epsilon": 0.1, "quantise": "int8"},
}


@dataclass
class Simulation:
    """What consumers keep, `[place][consumer]` float32 [nodes, width], and how many rows were sent by place."""

    halo: dict[int, set[int]]
    epsilon: float
    quantised: bool
    kept: dict[str, dict[int, np.ndarray]] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)

    def renew(self, place: str, consumer: int, rows: np.ndarray) -> np.ndarray:
        """What is kept of the consumer's halo after those of `rows` were sent that moved."""
        kept = self.kept.setdefault(place, {}).setdefault(consumer, np.full_like(rows, np.inf))
        for node in self.halo[consumer]:
            away = np.linalg.norm(rows[node] - kept[node])
            if self.epsilon == 0 or away > self.epsilon * np.linalg.norm(rows[node]):
                kept[node] = through_8_bits(rows[node]) if self.quantised else rows[node]
                self.sent[place] = self.sent.get(place, 0) + 1
        return kept


def through_8_bits(row: np.ndarray) -> np.ndarray:
    low, step = row.min(), (row.max() - row.min()) / np.float32(255)
    return low + np.rint((row - low) / step) * step if step > 0 else row


class View(torch.autograd.Function):
    """All nodes' rows as one consumer sees them: its own as they are, its halo's as it keeps them."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor, simulation: Simulation, consumer: int, index: int) -> torch.Tensor:
        ctx.simulation, ctx.consumer, ctx.index = simulation, consumer, index
        return View.seen(simulation, f"activations {index}", consumer, rows)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        return View.seen(ctx.simulation, f"gradients {ctx.index}", ctx.consumer, gradient), None, None, None

    @staticmethod
    def seen(simulation: Simulation, place: str, consumer: int, rows: torch.Tensor) -> torch.Tensor:
        kept = simulation.renew(place, consumer, rows.detach().numpy())
        halo = sorted(simulation.halo[consumer])
        seen = rows.detach().clone()
        seen[halo] = torch.from_numpy(kept[halo])
        return seen


def simulate(case: Case, job: Job) -> tuple[list[float], dict[str, torch.Tensor], list[dict[str, int]]]:
    """Losses, weights, and the rows sent in each epoch, by place."""
    specification, graph = read_specification(job.spec), case.graph
    options, ranks, layer = specification.strategy, specification.ranks, LAYERS[specification.model.layer]
    linked, features = adjacency(graph), torch.from_numpy(graph.features.copy())
    chosen, labels = torch.from_numpy(graph.split == 0), torch.from_numpy(graph.labels.copy())
    assignment = np.load(job.partition / "assignment.npy")
    halo = {rank: set() for rank in range(ranks)}
    for node, neighbour in linked.nonzero().tolist():
        if assignment[node] != assignment[neighbour]:
            halo[int(assignment[node])].add(neighbour)
    simulation = Simulation(halo, options["epsilon"], options["quantise"] == "int8")
    model = Model(specification.model, graph.num_features, graph.num_classes, specification.seed)
    weights = {name: value.clone().requires_grad_() for name, value in model.state_dict().items()}
    optimizer = torch.optim.Adam(weights.values(), lr=0.01)
    losses, sent, best, waited = [], [], -1, 0
    for _ in range(options["epochs"]):
        simulation.sent = {}
        rows = features
        for index in range(3):
            own = {name.split(".", 2)[2]: value for name, value in weights.items() if name[7] == str(index)}
            after = torch.zeros(graph.num_nodes, own["bias" if "bias" in own else "own.bias"].shape[0])
            for rank in range(ranks):
                seen = View.apply(rows, simulation, rank, index) if index else rows
                mask = torch.from_numpy(assignment == rank)[:, None]
                after = torch.where(mask, layer(own, linked, seen), after)
            rows = after.relu() if index < 2 else after
        loss = functional.cross_entropy(rows[chosen], labels[chosen], reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        for weight in weights.values():
            weight.grad /= chosen.sum()
        optimizer.step()
        losses.append(loss.item() / int(chosen.sum()))
        sent.append(simulation.sent)
        right = int((rows.argmax(1) == labels)[chosen].sum())
        best, waited = (right, 0) if right > best else (best, waited + 1)
        if waited == options["patience"]:
            simulation.epsilon, waited = simulation.epsilon * options["shrink"], 0
    return losses, {name: value.detach() for name, value in weights.items()}, sent


CASES = [(name, layer, ranks) for name in SETTINGS for layer in LAYERS for ranks in (2, 3)]


@pytest.fixture(scope="module")
def jobs(small, run_ranks, tmp_path_factory) -> dict[tuple[str, str, int], Job]:
    folder = tmp_path_factory.mktemp("cached")
    made = {
        (name, layer, ranks): job_for(
            small,
            folder / f"{name}-{layer}-{ranks}",
            method="cached",
            layer=layer,
            ranks=ranks,
            strategy=SETTINGS[name],
            training={"evaluate_every": 0},
        )
        for name, layer, ranks in CASES
    }
    for ranks in (2, 3):
        run_ranks(ranks, [job for key, job in made.items() if key[2] == ranks])
    return made


@pytest.mark.parametrize(("name", "layer", "ranks"), CASES)
def test_ranks_train_as_the_simulation_does_and_send_the_same_rows(small, jobs, name, layer, ranks):
    job = jobs[name, layer, ranks]
    losses, weights, sent = simulate(small, job)
    epochs = pd.read_parquet(job.out / "epochs.parquet")
    for rank in range(ranks):
        np.testing.assert_allclose(epochs.loss[epochs["rank"] == rank], losses, **TOLERANCE)
        for key, value in job.weights(rank).items():
            torch.testing.assert_close(value, weights[key], **WEIGHT_TOLERANCE)
    measured = epochs.groupby("epoch").sum(numeric_only=True)
    row_bytes = HEADER_BYTES + HIDDEN if "quantise" in SETTINGS[name] else 4 * HIDDEN
    for kind in ("activations", "gradients"):
        rows = [sum(count for place, count in each.items() if place.startswith(kind)) for each in sent]
        assert (measured[f"sent_{kind}_bytes"] / row_bytes).tolist() == rows
    exact = len(np.load(job.partition / "halo_nodes.npy")) * 2 * 2
    shares = [sum(each.values()) / exact for each in sent]
    assert shares[0] == 1
    assert min(shares) < 0.8


@pytest.mark.parametrize(("name", "layer", "ranks"), CASES)
def test_bytes_that_have_a_closed_form_are_those_predicted(jobs, name, layer, ranks):
    job = jobs[name, layer, ranks]
    assert_bytes_are_predicted(job)
    assert job.metrics()["predicted"]["sent_activations_bytes_per_epoch"] is None
    # Before each of two layers and again backward, each pair of ranks sends a bit per row, in whole bytes.
    offsets = np.load(job.partition / "halo_offsets.npy")
    bits = 2 * 2 * sum(-(-int(rows) // 8) for rows in np.diff(offsets))
    measured = pd.read_parquet(job.out / "epochs.parquet").groupby("epoch").sum(numeric_only=True)
    assert (measured.sent_requests_bytes == bits).all()


def test_the_fraction_is_that_of_the_rows_of_each_rank(small, jobs, run_ranks, tmp_path):
    job = jobs["stays", "sage", 3]
    epochs = pd.read_parquet(job.out / "epochs.parquet")
    offsets = np.load(job.partition / "halo_offsets.npy")
    rows = np.diff(offsets).reshape(3, 3)
    for rank in range(3):
        own = epochs[epochs["rank"] == rank]
        exact = 2 * (rows[rank].sum() + rows[:, rank].sum())
        sent = (own.sent_activations_bytes + own.sent_gradients_bytes) / (4 * HIDDEN)
        np.testing.assert_allclose(own.sent_fraction, sent / exact, rtol=1e-12)
    plain = job_for(small, tmp_path / "plain", ranks=2)
    alone = job_for(small, tmp_path / "alone", method="cached", ranks=1)
    run_ranks(2, [plain])
    run_ranks(1, [alone])
    for other in (plain, alone):
        assert pd.read_parquet(other.out / "epochs.parquet").sent_fraction.isna().all()


def test_without_a_threshold_quantised_rows_have_a_closed_form(small, run_ranks, tmp_path):
    job = job_for(small, tmp_path / "job", method="cached", ranks=3, strategy={"epsilon": 0, "quantise": "int8"})
    run_ranks(3, [job])
    assert_bytes_are_predicted(job)
    volume = len(np.load(job.partition / "halo_nodes.npy"))
    assert job.metrics()["predicted"]["sent_gradients_bytes_per_epoch"] == volume * 2 * (8 + HIDDEN)
    losses, _, _ = simulate(small, job)
    epochs = pd.read_parquet(job.out / "epochs.parquet")
    np.testing.assert_allclose(epochs.loss[epochs["rank"] == 2], losses, **TOLERANCE)


def test_a_resumed_run_is_an_uninterrupted_one(small, tmp_path, run_ranks):
    options = {"strategy": SETTINGS["shrinks"] | {"epochs": 5}}
    plain = {"model": {"dropout": 0.0}}  # with dropout all rows are sent, whatever was kept
    often = job_for(small, tmp_path / "often", **settings("cached", 2) | options | plain)
    never = job_for(small, tmp_path / "never", **settings("cached", 2, every=0) | options | plain)
    run_ranks(2, [often], be_often_interrupted)
    run_ranks(2, [never])
    assert often.metrics()["resumed_at"] == [1, 2, 3, 4]
    assert numbers(often) == numbers(never)
    assert pd.read_parquet(never.out / "epochs.parquet").sent_fraction.min() < 0.8


@given(some.integers(0, 2**32 - 1), some.integers(0, 20), some.integers(1, 9))
def test_values_come_back_within_half_a_step_and_ends_as_they_were(seed, num_rows, width):
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy((rng.normal(size=(num_rows, width)) * 10.0 ** rng.integers(-6, 7)).astype(np.float32))
    rows[: num_rows // 3] = rows[: num_rows // 3, :1]  # of one value each
    encoded = encode_int8(rows)
    assert encoded.dtype == torch.uint8
    assert encoded.shape == (num_rows, HEADER_BYTES + width)
    decoded = decode_int8(encoded)
    spread = rows.amax(1, keepdim=True) - rows.amin(1, keepdim=True)
    rounding = 1e-6 * rows.abs().amax(1, keepdim=True)
    assert ((decoded - rows).abs() <= spread / 255 / 2 * (1 + 1e-4) + rounding).all()
    assert torch.equal(decoded.amin(1), rows.amin(1))
    assert torch.equal(decoded[: num_rows // 3], rows[: num_rows // 3])


@given(some.lists(some.integers(0, 20), min_size=1, max_size=5), some.integers(0, 2**32 - 1))
def test_bits_come_back_message_by_message(counts, seed):
    chosen = torch.from_numpy(np.random.default_rng(seed).random(sum(counts)) < 0.5)
    bits = RowBits(counts, torch.device("cpu"))
    messages = bits.pack(chosen).split(bits.num_bytes)
    for message, count, own in zip(messages, counts, chosen.split(counts), strict=True):
        alone = np.packbits(own.numpy(), bitorder="little")
        assert message.tolist() == alone.tolist()
        assert len(message) == -(-count // 8)
    assert torch.equal(bits.unpack(torch.cat(messages)), chosen)
    assert bits.count(chosen) == [int(own.sum()) for own in chosen.split(counts)]

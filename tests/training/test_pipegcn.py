"""PipeGCN against its definition, simulated in one process; what is on its way while a rank computes."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from interruptions import be_often_interrupted, numbers
from interruptions import settings as checkpointed
from test_exact_settings import TOLERANCE, WEIGHT_TOLERANCE, assert_bytes_are_predicted
from torch.nn import functional
from training_cases import Case, Job, job_for

from anatomy.partitions.store import open_partition
from anatomy.phases import Phase
from anatomy.traces.columns import take
from anatomy.traces.options import ParseOptions
from anatomy.traces.rank.annotations import PHASES, PhaseTimeline, find_phases, find_steps
from anatomy.traces.rank.communication import find_collectives
from anatomy.traces.reading.trace import read_trace
from anatomy.training.communication import Communicator, Exchange, Kind
from anatomy.training.model import Model
from anatomy.training.operators.block import Block
from anatomy.training.operators.torch_backend import TorchOperators
from anatomy.training.options import LAYERS
from anatomy.training.parts import local_part
from anatomy.training.specification import read_specification
from anatomy.training.strategies.pipegcn import PipelinedBoundary

CASES = [
    *[(layer, ranks, "plain", 0.95) for layer, ranks in product(LAYERS, (2, 3))],
    *[("sage", ranks, variant, 0.5) for variant, ranks in product(("f", "g", "gf"), (2, 3))],
    ("gcn", 3, "gf", 0.95),
    ("gcn", 2, "gf", 0.0),
]
EPOCHS = 6


@pytest.fixture(scope="module")
def jobs(small, run_ranks, tmp_path_factory) -> dict[tuple, Job]:
    """Every case, trained."""
    folder = tmp_path_factory.mktemp("pipegcn")
    made = {
        case: job_for(
            small,
            folder / "-".join(map(str, case)),
            method="pipegcn",
            layer=case[0],
            ranks=case[1],
            strategy={"epochs": EPOCHS, "variant": case[2], "decay": case[3]},
        )
        for case in CASES
    }
    for ranks in (2, 3):
        run_ranks(ranks, [job for case, job in made.items() if case[1] == ranks])
    return made


class Stale:
    """What one exchange delivers, [nodes, width] by layer: the last epoch's rows, or a moving average; 0 at first."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._sent: dict[int, torch.Tensor] = {}
        self._average: dict[int, torch.Tensor] = {}

    def take(self, layer: int, like: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros_like(like)
        before, sent = self._average.get(layer, zeros), self._sent.get(layer, zeros)
        self._average[layer] = self._decay * before + (1 - self._decay) * sent
        return self._average[layer]

    def send(self, layer: int, rows: torch.Tensor) -> None:
        self._sent[layer] = rows.detach().clone()


def simulate(case: Case, job: Job) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of the definition.

    Each part runs each layer on a table in which all rows but its own are stale. A stale gradient g of rows h comes
    into the backward pass as that of h · g, added to the loss.
    """
    specification, graph = read_specification(job.spec), case.graph
    assignment = torch.from_numpy(np.load(job.partition / "assignment.npy"))
    indptr = torch.from_numpy(graph.indptr.copy())
    block = Block(indptr, torch.from_numpy(graph.indices.copy()), graph.num_nodes, torch.diff(indptr).float())
    features, labels = torch.from_numpy(graph.features.copy()), torch.from_numpy(graph.labels.copy())
    chosen = torch.from_numpy(graph.split == 0)
    model, operators = (
        Model(specification.model, graph.num_features, graph.num_classes, specification.seed),
        TorchOperators(),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    variant, decay = specification.strategy["variant"], specification.strategy["decay"]
    stale_rows, stale_gradients = Stale(decay * (variant in ("f", "gf"))), Stale(decay * (variant in ("g", "gf")))
    losses = []
    for _ in range(specification.strategy["epochs"]):
        rows, carried = model.layer(0, operators, block, features)
        injected, tables = torch.zeros(()), {}
        for layer in range(1, len(model.layers)):
            injected = injected + (rows * stale_gradients.take(layer, rows)).sum()
            stale = stale_rows.take(layer, rows)
            stale_rows.send(layer, rows)
            tables[layer] = [stale.clone().requires_grad_() for _ in range(specification.ranks)]
            own = [(assignment == part).unsqueeze(1) for part in range(specification.ranks)]
            passed = [
                model.layer(layer, operators, block, torch.where(mask, rows, table), carried)
                for mask, table in zip(own, tables[layer], strict=True)
            ]
            rows = sum(output * mask for mask, (output, _) in zip(own, passed, strict=True))
            carried = passed[0][1]  # depends on a node alone
        loss = functional.cross_entropy(rows[chosen], labels[chosen], reduction="sum")
        optimizer.zero_grad()
        (loss + injected).backward()
        for layer, copies in tables.items():
            stale_gradients.send(layer, sum(table.grad for table in copies))
        for parameter in model.parameters():
            parameter.grad /= chosen.sum()
        optimizer.step()
        losses.append(loss.item() / int(chosen.sum()))
    return losses, model.state_dict()


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
def test_bytes_of_every_epoch_are_those_of_exact_training(small, jobs, case):
    """The halo's rows of width 8 before two layers, as float32, and their gradients."""
    assert_bytes_are_predicted(jobs[case])
    volume = len(open_partition(jobs[case].partition, small.graph).halo_nodes)
    predicted = jobs[case].metrics()["predicted"]
    assert predicted["sent_activations_bytes_per_epoch"] == volume * 2 * 8 * 4
    assert predicted["sent_gradients_bytes_per_epoch"] == volume * 2 * 8 * 4


def test_a_moving_average_of_decay_0_is_what_came_last(small, jobs, run_ranks, tmp_path):
    plain = job_for(small, tmp_path / "plain", method="pipegcn", layer="gcn", ranks=2, strategy={"epochs": EPOCHS})
    run_ranks(2, [plain])
    assert jobs["gcn", 2, "gf", 0.0].metrics()["weights_sha256"] == plain.metrics()["weights_sha256"]


@pytest.mark.parametrize("variant", ["plain", "gf"])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(small, tmp_path, run_ranks, variant):
    jobs = []
    for name, every in (("often", 1), ("never", 0)):
        settings = checkpointed("pipegcn", 2, every=every)
        settings["strategy"] |= {"variant": variant}
        jobs.append(job_for(small, tmp_path / name, **settings))
    often, never = jobs
    run_ranks(2, [often], be_often_interrupted)
    run_ranks(2, [never])
    assert numbers(often) == numbers(never)


def test_a_trace_shows_exchanges_that_last_into_the_next_step(small, tmp_path, run_ranks):
    """Those that began in one step and were waited for in the next; the profiler starts and stops between steps."""
    job = job_for(small, tmp_path / "traced", mode="profiled", method="pipegcn", ranks=2, profile={"active": 4})
    run_ranks(2, [job])
    for rank in range(2):
        events = read_trace(job.out / f"rank{rank}.json.gz", ParseOptions()).events
        steps = find_steps(events)
        rows = find_collectives(events, steps, PhaseTimeline(find_phases(events)))
        exchanges = take(rows, rows["phase"] == PHASES.index(Phase.EXCHANGE))
        assert sorted(exchanges["step"].tolist()) == sorted([*steps] * 4)  # two layers, forward and backward
        ends = np.array([steps[step][1] for step in exchanges["step"].tolist()])
        assert (exchanges["start_ns"] < ends).all()
        assert (exchanges["end_ns"] > ends).all()


class Recorder(Communicator):
    """A rank of two, whose messages go nowhere; `events` tells what was begun and what was waited for."""

    def __init__(self) -> None:
        super().__init__(rank=0, size=2)
        self.events: list[tuple[str, Kind, int]] = []

    def start_exchange(self, send, send_counts, receive, receive_counts, kind) -> Exchange:
        events, number = self.events, sum(event[:2] == ("start", kind) for event in self.events)
        events.append(("start", kind, number))
        intact = send.clone()

        class OnItsWay(Exchange):
            def wait(self) -> None:
                assert torch.equal(send, intact), "what is on its way was changed"
                events.append(("wait", kind, number))

        return OnItsWay()


def test_exchanges_are_on_their_way_until_the_same_layer_of_the_next_epoch(small):
    """Two exchanges each way and epoch: exchange n is waited for just before n + 2, its successor, is begun."""
    part = local_part(small.graph, open_partition(small.partition_path(2), small.graph), rank=0)
    communicator = Recorder()
    boundary = PipelinedBoundary(part, communicator, [4, 4], torch.device("cpu"), {})
    for _ in range(3):
        rows = torch.randn(part.num_own, 4, requires_grad=True)
        for slot in (1, 2):
            rows = boundary.exchange(rows, slot)[: part.num_own] * 2 + 1
        rows.square().sum().backward()
    expected = []
    for epoch in range(3):
        for kind in (Kind.ACTIVATIONS, Kind.GRADIENTS):
            for number in (2 * epoch, 2 * epoch + 1):
                expected += [("wait", kind, number - 2)] * (epoch > 0) + [("start", kind, number)]
    assert communicator.events == expected

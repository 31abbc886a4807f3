"""Strategies whose exchange is a part of aggregation: their sums are products with the whole graph's matrix."""

import os
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from dense_layers import adjacency
from training_cases import Case, Job, job_for, write_partition, write_small_graph

from anatomy.graphs.store import open_graph
from anatomy.traces.options import ParseOptions
from anatomy.traces.rank.annotations import PHASES, PhaseTimeline, find_phases, find_steps
from anatomy.traces.rank.communication import find_collectives
from anatomy.traces.reading.events import Kind
from anatomy.traces.reading.trace import read_trace
from anatomy.training.options import STRATEGIES
from anatomy.training.run import _context, join_ranks, open_inputs

STRATEGY_NAMES = ("broadcast", "chunked", "featuresplit")
RANKS = (3, 4)
WIDTHS = (1, 2, 3, 7)
"""Below and above the number of ranks, in multiples of it and not."""
GRAPHS = 3


@dataclass(frozen=True)
class Sums:
    """What all ranks made together: sums by (width, direction), and bytes sent by kind and width, and those predicted.

    `gathered` and `scattered` [nodes, width]; `sent` of all ranks; `predicted` for one direction.
    """

    graph: Path
    assignment: np.ndarray
    gathered: dict[int, torch.Tensor]
    scattered: dict[int, torch.Tensor]
    sent: dict[int, dict[str, int]]
    predicted: dict[int, int]


def rows_of(num_nodes: int, width: int) -> torch.Tensor:
    return torch.randn(num_nodes, width, generator=torch.Generator().manual_seed(width))


def sum_everywhere(rank: int, num_ranks: int, jobs: list[Job]) -> None:
    """Be one rank of strategies that are prepared and then sum given rows, of every width, forward and backward."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(num_ranks), "GLOO_SOCKET_IFNAME": "lo"}
    for job in jobs:
        inputs = open_inputs(job.spec, job.graph, job.partition)
        communicator, device = join_ranks(inputs.specification, f"file://{jobs[0].out}.rendezvous")
        context = _context(inputs, communicator, device)
        strategy = STRATEGIES[inputs.specification.strategy["method"]].load().Strategy(context)
        strategy.prepare()
        communicator.take_sent_bytes()
        found = {"nodes": strategy.part.nodes}
        for width in WIDTHS:
            own = rows_of(inputs.graph.num_nodes, width)[strategy.part.nodes]
            found["gathered", width] = strategy.sums.gather(own)
            found["scattered", width] = strategy.sums.scatter(own)
            found["sent", width] = communicator.take_sent_bytes()
            found["predicted", width] = strategy.exchanged_bytes(width)
        torch.save(found, job.out / f"sums-{rank}.pt")
    communicator.wait_for_all()
    os._exit(0)


def random_case(folder: Path, rng: np.random.Generator, ranks: int) -> Case:
    """A directed graph, some edges from a node to itself, in parts of which none is empty."""
    num_nodes = int(rng.integers(ranks, 30))
    linked = rng.random((num_nodes, num_nodes)) < rng.choice([0.02, 0.1, 0.4])
    write_small_graph(folder / "graph", linked, np.zeros(num_nodes, np.int8), rng)
    assignment = rng.permutation(np.concatenate([np.arange(ranks), rng.integers(0, ranks, num_nodes - ranks)]))
    write_partition(folder / f"parts-{ranks}", open_graph(folder / "graph"), assignment)
    return Case(folder)


@pytest.fixture(scope="module")
def summed(run_ranks, tmp_path_factory) -> dict[tuple[str, int, int], Sums]:
    """By strategy, ranks and number of a random graph."""
    rng = np.random.default_rng(3)
    folder = tmp_path_factory.mktemp("sums")
    jobs = {}
    for ranks, number in product(RANKS, range(GRAPHS)):
        case = random_case(folder / f"{ranks}-{number}", rng, ranks)
        for name in STRATEGY_NAMES:
            options = {"chunks": int(rng.integers(1, 9))} if name == "chunked" else {}
            settings = {"method": name, "ranks": ranks, "operators": "dgl" if ranks == 3 else "torch"}
            out = case.folder / name
            jobs[name, ranks, number] = job_for(case, out, strategy=options, **settings)
    for ranks in RANKS:
        run_ranks(ranks, [job for key, job in jobs.items() if key[1] == ranks], sum_everywhere)
    return {key: read_sums(job, key[1]) for key, job in jobs.items()}


def read_sums(job: Job, ranks: int) -> Sums:
    found = [torch.load(job.out / f"sums-{rank}.pt") for rank in range(ranks)]
    assignment = np.load(job.partition / "assignment.npy")

    def whole(name: str, width: int) -> torch.Tensor:
        table = torch.full((len(assignment), width), torch.nan)
        for one in found:
            table[one["nodes"]] = one[name, width]
        return table

    return Sums(
        job.graph,
        assignment,
        {width: whole("gathered", width) for width in WIDTHS},
        {width: whole("scattered", width) for width in WIDTHS},
        {
            width: {kind: sum(one["sent", width][kind] for one in found) for kind in found[0]["sent", width]}
            for width in WIDTHS
        },
        {width: found[0]["predicted", width] for width in WIDTHS},
    )


@pytest.mark.parametrize(("name", "ranks"), list(product(STRATEGY_NAMES, RANKS)))
def test_sums_are_products_with_the_matrix_and_its_transpose(summed, name, ranks):
    for number, width in product(range(GRAPHS), WIDTHS):
        sums = summed[name, ranks, number]
        linked = adjacency(open_graph(sums.graph))
        rows = rows_of(len(linked), width)
        torch.testing.assert_close(sums.gathered[width], linked @ rows)
        torch.testing.assert_close(sums.scattered[width], linked.T @ rows)


def numbers_sent(name: str, linked: np.ndarray, assignment: np.ndarray, ranks: int, width: int) -> int:
    """How many numbers travel for one sum, counted one by one from what each strategy is."""
    nodes = range(len(assignment))
    if name == "broadcast":
        return sum(width for _ in nodes for _ in range(ranks - 1))
    if name == "chunked":
        needed = {(u, assignment[v]) for v in nodes for u in nodes if linked[v, u] and assignment[u] != assignment[v]}
        return width * len(needed)
    columns = [owner for owner, share in enumerate(np.array_split(np.arange(width), ranks)) for _ in share]
    return sum(2 for node in nodes for owner in columns if owner != assignment[node])


@pytest.mark.parametrize(("name", "ranks"), list(product(STRATEGY_NAMES, RANKS)))
def test_bytes_of_a_sum_are_those_counted_by_hand_and_predicted(summed, name, ranks):
    for number, width in product(range(GRAPHS), WIDTHS):
        sums = summed[name, ranks, number]
        expected = 4 * numbers_sent(name, adjacency(open_graph(sums.graph)).numpy() > 0, sums.assignment, ranks, width)
        assert sums.predicted[width] == expected
        sent = {kind: count for kind, count in sums.sent[width].items() if count}
        assert sent == ({"activations": expected, "gradients": expected} if expected else {})


@pytest.fixture(scope="module")
def profiled(small, run_ranks, tmp_path_factory) -> dict[str, Job]:
    """Each strategy's traces of 2 ranks, `chunked` in 3 chunks; two of the model's three layers exchange."""
    folder = tmp_path_factory.mktemp("profiled")
    jobs = {
        name: job_for(
            small,
            folder / name,
            mode="profiled",
            method=name,
            ranks=2,
            strategy={"chunks": 3} if name == "chunked" else {},
        )
        for name in STRATEGY_NAMES
    }
    run_ranks(2, list(jobs.values()))
    return jobs


EXCHANGES = {"broadcast": ("broadcast", 2), "chunked": ("all_to_all_v", 3), "featuresplit": ("all_to_all_v", 2)}
"""What a trace of 2 ranks shows for one sum: the kind of its collectives, and how many there are."""


@pytest.mark.parametrize("name", STRATEGY_NAMES)
def test_traces_show_every_exchange_in_its_phase(profiled, name):
    kind, count = EXCHANGES[name]
    for rank in range(2):
        events = read_trace(profiled[name].out / f"rank{rank}.json.gz", ParseOptions()).events
        steps = find_steps(events)
        found = find_collectives(events, steps, PhaseTimeline(find_phases(events)))
        exchanged = found["kind"] == kind
        # A broadcast begins on a thread of Gloo's, by when the rank may have gone on to its sums.
        later = {"aggregate", "backward"} if name == "broadcast" else set()
        assert {PHASES[code] for code in found["phase"][exchanged]} - later == {"exchange"}
        assert exchanged.sum() == len(steps) * 2 * 2 * count, "steps, layers, directions"


def test_local_sums_run_while_chunks_are_under_way(profiled):
    """Sums between own nodes begin after the last chunk of a layer has been sent, and before one is waited for."""
    events = read_trace(profiled["chunked"].out / "rank0.json.gz", ParseOptions()).events
    found = find_collectives(events, find_steps(events), PhaseTimeline(find_phases(events)))
    chunks = found["kind"] == "all_to_all_v"
    starts, ends = (found[column][chunks].reshape(-1, 3) for column in ("start_ns", "end_ns"))
    sums = np.flatnonzero((events.kind == Kind.OP) & events.by_name(lambda text: text == "aten::embedding_bag"))
    for last_start, first_end in zip(starts.max(1), ends.min(1), strict=True):
        under_way = (events.start_ns[sums] > last_start) & (events.end_ns[sums] < first_end)
        assert under_way.sum() == 1

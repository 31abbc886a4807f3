"""Rows that cross the link between two hosts once: the same training, with fewer bytes between hosts."""

import json
from collections.abc import Callable
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from interruptions import be_often_interrupted, numbers, settings
from training_cases import Job, job_for, lists_of, write_partition

from anatomy.partitions.store import Partition
from anatomy.training.legs import Leg, by_hosts, counts_between_hosts, straight
from anatomy.training.parts import LocalPart

RANKS, HOSTS = 4, 2
OPTIONS = {
    "fullgraph": {},
    "fullgraph-by-hosts": {"hierarchical_exchange": True},
    "cached": {"epsilon": 0},
    "cached-by-hosts": {"epsilon": 0, "hierarchical_exchange": True},
    "cached-int8-by-hosts": {"epsilon": 0, "quantise": "int8", "hierarchical_exchange": True},
    "cached-saving": {"epsilon": 0.2},
    "cached-saving-by-hosts": {"epsilon": 0.2, "hierarchical_exchange": True},
}
EXACT = ("fullgraph-by-hosts", "cached", "cached-by-hosts")


def random_partition(seed: int, num_parts: int, num_nodes: int) -> Partition:
    """Random owners; every other rank needs a node or not, at random."""
    rng = np.random.default_rng(seed)
    assignment = rng.integers(0, num_parts, num_nodes)
    needed = rng.random((num_nodes, num_parts)) < rng.choice([0.1, 0.5, 0.9])
    entries = [(assignment[node], rank, node) for node, rank in np.argwhere(needed)]
    manifest = {"num_parts": num_parts, "num_nodes": num_nodes}
    return Partition("", manifest, assignment, *lists_of("halo", entries, num_parts).values())


def part_of(partition: Partition, rank: int) -> LocalPart:
    """What legs need of a rank's part."""
    ranks = range(partition.num_parts)
    received = [partition.halo(owner, rank) for owner in ranks]
    sent = [partition.halo(rank, consumer) for consumer in ranks]
    nodes = partition.nodes(rank)
    return LocalPart(
        nodes=torch.from_numpy(nodes),
        halo=torch.from_numpy(np.concatenate(received)),
        block=None,
        send_rows=torch.from_numpy(np.searchsorted(nodes, np.concatenate(sent))),
        send_counts=[len(part) for part in sent],
        receive_counts=[len(part) for part in received],
    )


def moved(tables: list[torch.Tensor], legs: list[Leg]) -> None:
    """One all-to-all of all ranks, in one process."""
    sent = [table[leg.send_rows].split(leg.send_counts) for table, leg in zip(tables, legs, strict=True)]
    for rank, (table, leg) in enumerate(zip(tables, legs, strict=True)):
        received = [rows[rank] for rows in sent]
        assert [len(rows) for rows in received] == leg.receive_counts
        table[leg.receive_rows] = torch.cat(received)


@examples(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), num_hosts=st.integers(1, 3), ranks_per_host=st.integers(1, 4))
def test_every_rank_has_its_halo_and_no_row_crosses_to_a_host_twice(seed, num_hosts, ranks_per_host):
    num_parts = num_hosts * ranks_per_host
    partition = random_partition(seed, num_parts, num_nodes=40)
    parts = [part_of(partition, rank) for rank in range(num_parts)]
    tables = [torch.cat([part.nodes, torch.full_like(part.halo, -1)]) for part in parts]
    ways = [by_hosts(part, partition, rank, ranks_per_host) for rank, part in enumerate(parts)]
    hosts = np.arange(num_parts) // ranks_per_host
    crossing, moves = [], 0
    for legs in zip(*ways, strict=True):
        for rank, leg in enumerate(legs):
            for other, rows in enumerate(tables[rank][leg.send_rows].split(leg.send_counts)):
                moves += len(rows)
                if hosts[rank] != hosts[other]:
                    crossing += [(int(node), int(hosts[other])) for node in rows]
        moved(tables, legs)
    for part, table in zip(parts, tables, strict=True):
        assert torch.equal(table, torch.cat([part.nodes, part.halo]))
    assert len(set(crossing)) == len(crossing) == sum(counts_between_hosts(partition, ranks_per_host, True))
    assert moves == len(partition.halo_nodes), "as many rows as straight"
    pairs = product(range(num_parts), repeat=2)
    flat = sum(len(partition.halo(one, other)) for one, other in pairs if hosts[one] != hosts[other])
    assert sum(counts_between_hosts(partition, ranks_per_host, False)) == flat >= len(crossing)


def test_on_one_host_or_with_one_rank_on_each_rows_go_straight():
    partition = random_partition(0, 4, 40)
    for rank, ranks_per_host in product(range(4), (1, 4)):
        part = part_of(partition, rank)
        (leg,), (plain,) = by_hosts(part, partition, rank, ranks_per_host), straight(part)
        assert torch.equal(leg.send_rows, plain.send_rows)
        assert torch.equal(leg.receive_rows, plain.receive_rows)


@pytest.fixture(scope="module")
def on_hosts(small, tmp_path_factory) -> Callable[..., Job]:
    """on_hosts(name, **settings): a job of four ranks on two hosts."""
    folder = tmp_path_factory.mktemp("hosts")
    write_partition(folder / "parts", small.graph, np.random.default_rng(1).integers(0, RANKS, small.graph.num_nodes))

    def make(name: str, **options) -> Job:
        job = job_for(small, folder / name, partition=folder / "parts", **{"ranks": RANKS} | options)
        job.spec.write_text(json.dumps(json.loads(job.spec.read_text()) | {"hosts": HOSTS}))
        return job

    return make


@pytest.fixture(scope="module")
def jobs(on_hosts, run_ranks) -> dict[str, Job]:
    """Every setting, trained."""
    made = {name: on_hosts(name, method=name.split("-")[0], strategy=options) for name, options in OPTIONS.items()}
    run_ranks(RANKS, list(made.values()))
    return made


def epochs_of(job: Job) -> pd.DataFrame:
    """Sums over ranks, by epoch."""
    return pd.read_parquet(job.out / "epochs.parquet").groupby("epoch").sum(numeric_only=True)


@pytest.mark.parametrize("name", EXACT)
def test_losses_and_weights_are_those_of_the_straight_exchange(jobs, name):
    plain, ours = jobs["fullgraph"], jobs[name]
    np.testing.assert_allclose(epochs_of(ours)["loss"], epochs_of(plain)["loss"], rtol=2e-4, atol=2e-5)
    for rank in range(RANKS):
        for key, value in ours.weights(rank).items():
            torch.testing.assert_close(value, plain.weights()[key], rtol=1e-3, atol=5e-4)


@pytest.mark.parametrize("name", [name for name in OPTIONS if "saving" not in name])
def test_bytes_between_hosts_are_those_predicted(jobs, name):
    predicted, epochs = jobs[name].metrics()["predicted"], epochs_of(jobs[name])
    assert (epochs["between_hosts_bytes"] == predicted["between_hosts_bytes_per_epoch"]).all()
    for kind in ("activations", "gradients"):
        assert (epochs[f"sent_{kind}_bytes"] == predicted[f"sent_{kind}_bytes_per_epoch"]).all()


@pytest.mark.parametrize("name", ["fullgraph", "cached", "cached-saving"])
def test_fewer_bytes_go_between_hosts_and_as_many_in_all(jobs, name):
    straight_on, by_host = epochs_of(jobs[name]), epochs_of(jobs[f"{name}-by-hosts"])
    assert (by_host["between_hosts_bytes"] > 0).all()
    assert (by_host["between_hosts_bytes"] < straight_on["between_hosts_bytes"]).all()
    if name != "cached-saving":
        assert by_host["sent_activations_bytes"].tolist() == straight_on["sent_activations_bytes"].tolist()
        assert by_host["sent_gradients_bytes"].tolist() == straight_on["sent_gradients_bytes"].tolist()


@pytest.mark.parametrize(
    ("name", "like"), [("cached-int8-by-hosts", "fullgraph"), ("cached-saving-by-hosts", "cached-saving")]
)
def test_saving_costs_what_it_costs_without_hosts(jobs, name, like):
    found, expected = (float(epochs_of(jobs[one])["loss"].iloc[-1]) for one in (name, like))
    assert found == pytest.approx(expected, rel=0.02)
    assert found != float(epochs_of(jobs["fullgraph"])["loss"].iloc[-1])


def test_a_run_that_was_interrupted_is_the_same(on_hosts, run_ranks):
    options = {"strategy": OPTIONS["cached-saving-by-hosts"] | {"epochs": 4}, "model": {"dropout": 0.0}}
    often = on_hosts("often", **settings("cached", RANKS) | options)
    never = on_hosts("never", **settings("cached", RANKS, every=0) | options)
    run_ranks(RANKS, [often], be_often_interrupted)
    run_ranks(RANKS, [never])
    assert often.metrics()["resumed_at"] == [1, 2, 3]
    assert numbers(often) == numbers(never)

"""The strategy `distdgl`: its part files, its hosts, what it leaves, and whole runs on emulated hosts.

With all neighbours it must train as `minibatch` does, batch by batch; only the engine differs.
"""

import gzip
import json
import os
import re
import subprocess
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import emulated_hosts
import numpy as np
import pandas as pd
import psutil
import pytest
from interruptions import numbers
from training_cases import Job, job_for

from anatomy.errors import StudyError
from anatomy.files import read_json
from anatomy.partitions.store import open_partition
from anatomy.phases import Phase
from anatomy.training.distdgl import hosts, shared_memory
from anatomy.training.distdgl.package import load_dgl
from anatomy.training.distdgl.part_files import BOOK_FILE, Numbering, feature_name, write_part
from anatomy.training.failures import INTERRUPTED_STATUS
from anatomy.training.operators import load_operators

needs_hosts = pytest.mark.skipif(
    emulated_hosts.missing() is not None, reason=f"emulated hosts need {emulated_hosts.missing()}"
)
SAMPLED = {"fanouts": [3, 2, 2], "batch_size": 4}
ALL_NEIGHBOURS = {"fanouts": [-1, -1, -1], "batch_size": 4}


@pytest.fixture(scope="module")
def parts(small, tmp_path_factory):
    """The three parts of the small graph as DGL loads them: (graph, features, book) each, and the numbering."""
    load_operators("dgl")  # a rank's backend has entered the package without its `__init__` before
    dgl = load_dgl()
    numbering = Numbering.of(small.graph, open_partition(small.partition_path(3)).assignment, 3)
    loaded = []
    for part in range(3):
        folder = tmp_path_factory.mktemp(f"part-{part}")
        write_part(folder, small.graph, numbering, part, "tested")
        graph, features, _, book, name, _, _ = dgl.distributed.load_partition(str(folder / BOOK_FILE), part)
        assert name == "tested"
        loaded.append((graph, features, book))
    return loaded, numbering, dgl


def test_parts_are_those_of_the_assignment(small, parts):
    loaded, numbering, dgl = parts
    assignment = open_partition(small.partition_path(3)).assignment
    for part, (graph, features, book) in enumerate(loaded):
        inner = graph.ndata["inner_node"].bool()
        own = numbering.original[graph.ndata[dgl.NID][inner]]
        assert own.tolist() == np.flatnonzero(assignment == part).tolist()
        assert inner[: len(own)].all()  # DGL takes the row of an own node to be its number within its part
        assert (
            book.nid2partid(graph.ndata[dgl.NID]).numpy() == assignment[numbering.original[graph.ndata[dgl.NID]]]
        ).all()
        np.testing.assert_array_equal(features[f"_N/{feature_name('tested')}"], small.graph.features[own])


def test_every_edge_is_in_the_part_that_it_leads_to(small, parts):
    loaded, numbering, dgl = parts
    edges, numbers = [], []
    for part, (graph, _, book) in enumerate(loaded):
        ids = numbering.original[graph.ndata[dgl.NID]]
        sources, destinations, rows = graph.edges(form="all")
        edges += zip(ids[sources].tolist(), ids[destinations].tolist(), strict=True)
        numbers += graph.edata[dgl.EID][rows].tolist()
        assert (book.eid2partid(graph.edata[dgl.EID]) == part).all()
    indptr, indices = small.graph.indptr, small.graph.indices
    expected = [(int(source), node) for node in range(60) for source in indices[indptr[node] : indptr[node + 1]]]
    assert sorted(edges) == sorted(expected)
    assert sorted(numbers) == list(range(len(expected)))


@pytest.mark.parametrize("seed", range(20))
def test_numbering_is_a_permutation_in_order_of_the_parts(small, seed):
    rng = np.random.default_rng(seed)
    num_parts = int(rng.integers(1, 9))
    assignment = rng.integers(0, num_parts, small.graph.num_nodes).astype(np.int32)
    numbering = Numbering.of(small.graph, assignment, num_parts)
    for part in range(num_parts):
        assert numbering.nodes_of(part).tolist() == np.flatnonzero(assignment == part).tolist()
    assert numbering.edge_starts[-1] == len(small.graph.indices)
    assert numbering.num_parts == num_parts


def test_ranks_on_one_host_are_refused():
    hosts.check_one_rank_per_host(["10.0.0.1", "10.0.0.2"], Path("run.json"))
    with pytest.raises(
        StudyError, match=re.escape("run.json: strategy.method: found 'distdgl' with ranks 0, 2 on one")
    ):
        hosts.check_one_rank_per_host(["10.0.0.1", "10.0.0.2", "10.0.0.1"], Path("run.json"))


def test_a_hosts_address_is_that_of_gloos_interface(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert hosts.own_address() == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert hosts.own_address() == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "absent0")
    with pytest.raises(StudyError, match="found 'absent0', which has no IPv4 address here; there are: "):
        hosts.own_address()


def test_only_shared_memory_that_nobody_uses_is_removed(monkeypatch, tmp_path):
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    names = [f"{shared_memory.PREFIX}{name}" for name in ("used", "abandoned", "fresh")]
    shared_memory.hold(names[0])
    for name in names:
        (tmp_path / f"{name}_node").touch()
        lock = tmp_path / f"{name}.lock"
        lock.touch()
        if not name.endswith("fresh"):
            old = time.time() - 3600
            os.utime(lock, (old, old))
    shared_memory.remove_abandoned()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"{name}{end}" for name in (names[0], names[2]) for end in ("_node", ".lock")}


@dataclass(frozen=True)
class Ended:
    """What one run on emulated hosts left: its job, and by rank the status, the messages, and /dev/shm."""

    job: Job
    statuses: list[int]
    messages: list[str]
    shared_memory: list[str]


def run_on_hosts(job: Job, num_hosts: int, scripts: Path, disturb=None) -> Ended:
    """Run a job with one rank on each of some hosts; `disturb(ranks)` is called once they have begun to train."""
    with emulated_hosts.hosts(num_hosts) as made:
        ranks = emulated_hosts.start_ranks(made, scripts / "train_run.py", job)
        try:
            if disturb is not None:
                while "epoch 2/" not in ranks[0].stderr.readline():
                    assert ranks[0].poll() is None
                disturb(ranks)
            messages = [rank.communicate(timeout=300)[1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        time.sleep(0.5)  # the servers leave after their ranks
        left = [subprocess.check_output([*host.inside(), "ls", "/dev/shm"], text=True) for host in made]
        return Ended(job, [rank.returncode for rank in ranks], messages, left)


def servers_of(rank: subprocess.Popen) -> list[psutil.Process]:
    return [
        process
        for process in psutil.Process(rank.pid).children(recursive=True)
        if "anatomy.training.distdgl.server" in process.cmdline()
    ]


@pytest.fixture(scope="module")
def timed(small, scripts, run_ranks, tmp_path_factory) -> tuple[Ended, Job]:
    """A run with all neighbours on three hosts, the third without training nodes, and the same by `minibatch`."""
    folder = tmp_path_factory.mktemp("timed")
    settings = {"layer": "gcn", "ranks": 3, "strategy": ALL_NEIGHBOURS}
    twin = job_for(small, folder / "minibatch", method="minibatch", **settings)
    run_ranks(3, [twin])
    job = job_for(small, folder / "distdgl", method="distdgl", operators="dgl", **settings)
    ended = run_on_hosts(job, 3, scripts)
    assert ended.statuses == [0, 0, 0], "\n".join(ended.messages)
    return ended, twin


def epochs_of(job: Job) -> pd.DataFrame:
    return pd.read_parquet(job.out / "epochs.parquet").set_index(["rank", "epoch"]).sort_index()


@needs_hosts
@pytest.mark.slow
def test_with_all_neighbours_it_trains_as_minibatch_does(timed):
    ended, twin = timed
    found, expected = epochs_of(ended.job), epochs_of(twin)
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-4, atol=1e-5)
    for column in ("steps", "train_nodes", "remote_nodes", "sent_weights_bytes"):
        assert found[column].tolist() == expected[column].tolist(), column
    np.testing.assert_allclose(found.val_accuracy, expected.val_accuracy)


@needs_hosts
@pytest.mark.slow
def test_it_fetches_the_rows_that_minibatch_fetches(timed):
    ended, twin = timed
    found, expected = (epochs_of(job).groupby("epoch").sent_features_bytes.sum() for job in (ended.job, twin))
    assert found.tolist() == expected.tolist()
    assert (found == epochs_of(ended.job).groupby("epoch").remote_nodes.sum() * 5 * 4).all()
    accesses = [pd.read_parquet(job.out / "accesses.parquet") for job in (ended.job, twin)]
    pd.testing.assert_frame_equal(*accesses)


@needs_hosts
@pytest.mark.slow
def test_its_servers_leave_nothing_behind(timed):
    assert timed[0].shared_memory == ["", "", ""]


@needs_hosts
@pytest.mark.slow
def test_a_run_that_is_interrupted_goes_on_as_if_nothing_had_been(small, scripts, tmp_path):
    """Two ranks sample from the third's server at once, in an order that no two runs share."""
    settings = {"method": "distdgl", "ranks": 3, "strategy": SAMPLED | {"epochs": 60}, "model": {"dropout": 0.5}}
    jobs = {
        every: job_for(
            small, tmp_path / f"every-{every}", training={"checkpoint_every": every, "evaluate_every": 20}, **settings
        )
        for every in (0, 7)
    }
    ended = run_on_hosts(jobs[0], 3, scripts)
    assert ended.statuses == [0, 0, 0], "\n".join(ended.messages)
    ended = run_on_hosts(jobs[7], 3, scripts, lambda ranks: ranks[1].terminate())
    assert ended.statuses == [INTERRUPTED_STATUS] * 3, "\n".join(ended.messages)
    ended = run_on_hosts(jobs[7], 3, scripts)
    assert ended.statuses == [0, 0, 0], "\n".join(ended.messages)
    assert 2 <= jobs[7].metrics()["resumed_at"][0] < 60
    assert numbers(jobs[7]) == numbers(jobs[0])


@needs_hosts
@pytest.mark.slow
def test_its_phases_are_traced(small, scripts, tmp_path):
    job = job_for(small, tmp_path / "run", "profiled", method="distdgl", ranks=2, strategy=SAMPLED)
    ended = run_on_hosts(job, 2, scripts)
    assert ended.statuses == [0, 0], "\n".join(ended.messages)
    assert read_json(job.out / "manifest.json")["versions"]["dgl"] == version("dgl")
    for rank in range(2):
        with gzip.open(job.out / f"rank{rank}.json.gz", "rt") as file:
            names = {event.get("name", "") for event in json.load(file)["traceEvents"]}
        phases = {name.removeprefix("phase:") for name in names if name.startswith("phase:")}
        expected = {*Phase} - {
            Phase.GATHER,
            Phase.EXCHANGE,
            Phase.DISTURB,
            Phase.OTHER,
        }  # fetch includes the local rows
        assert phases - {Phase.EXCHANGE} == expected


@needs_hosts
@pytest.mark.slow
def test_a_dead_server_ends_the_run_within_the_time_out(small, scripts, tmp_path):
    """The rank beside it ends at once and says why; the other after `peer_timeout_s` at the latest."""
    settings = {"strategy": SAMPLED | {"epochs": 100_000}, "training": {"evaluate_every": 0, "peer_timeout_s": 15}}
    job = job_for(small, tmp_path / "run", method="distdgl", ranks=2, **settings)
    ends: list[float] = []

    def kill_server(ranks: list[subprocess.Popen]) -> None:
        start = time.monotonic()
        for server in servers_of(ranks[1]):
            server.kill()
        ranks[1].wait(timeout=30)
        ends.append(time.monotonic() - start)
        ranks[0].wait(timeout=30)
        ends.append(time.monotonic() - start)

    ended = run_on_hosts(job, 2, scripts, kill_server)
    assert ended.statuses == [1, 1]
    assert "ServerLost: the graph server of this host ended with status -9" in ended.messages[1]
    assert ends[0] < 3
    assert ends[1] < 15 + 5
    assert ended.shared_memory == ["", ""]
    assert not (job.out / "metrics.json").exists()

"""The broadcast over real Gloo ranks: what arrives, and that each rank sends what `tree_bytes` says."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from anatomy.training.communication import Communicator, Kind, tree_bytes

ROOTS = (0, 2, 1, 3, 3, 0)
COUNTS = (40_000, 1, 0, 250_000, 7, 90_000)
"""float32 values of each broadcast."""


@dataclass(frozen=True)
class Broadcasts:
    out: Path


def values_of(number: int) -> torch.Tensor:
    return torch.arange(COUNTS[number], dtype=torch.float32) + number


def written_bytes() -> int:
    """What this process has written so far, to sockets too."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


def broadcast_all(rank: int, num_ranks: int, job: Broadcasts) -> None:
    """Begin all broadcasts at once, wait for them in reverse, and keep what was counted and what was written."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", init_method=f"file://{job.out}/meeting", world_size=num_ranks, rank=rank)
    communicator = Communicator(rank, num_ranks)
    tables = [
        values_of(number) if rank == root else torch.full((COUNTS[number],), torch.nan)
        for number, root in enumerate(ROOTS)
    ]
    communicator.wait_for_all()
    before = written_bytes()
    started = [communicator.start_broadcast(tables[number], root, Kind.FEATURES) for number, root in enumerate(ROOTS)]
    for broadcast in reversed(started):
        broadcast.wait()
    communicator.wait_for_all()
    found = {"counted": communicator.take_sent_bytes()["features"], "written": written_bytes() - before}
    assert all(torch.equal(table, values_of(number)) for number, table in enumerate(tables))
    (job.out / f"{rank}.json").write_text(json.dumps(found))
    communicator.wait_for_all()
    os._exit(0)


def test_rows_arrive_and_each_rank_sends_what_is_counted(start_ranks, tmp_path):
    num_ranks = 4
    processes = start_ranks(num_ranks, broadcast_all, Broadcasts(tmp_path))
    for process in processes:
        process.join(timeout=60)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [0] * num_ranks
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(num_ranks)]
    assert sum(rank["counted"] for rank in found) == (num_ranks - 1) * 4 * sum(COUNTS)
    for rank in range(num_ranks):
        assert found[rank]["counted"] == sum(
            tree_bytes(4 * count, rank, root, num_ranks) for count, root in zip(COUNTS, ROOTS, strict=True)
        )
        # Headers of messages and barriers come on top.
        assert 0 <= found[rank]["written"] - found[rank]["counted"] < 10_000


@pytest.mark.parametrize("size", range(1, 18))
def test_a_tree_hands_every_rank_but_the_root_the_payload_once(size):
    """Played round by round: who has the payload hands it on to the rank 2^i further, until all have it."""
    for root in range(size):
        has, sent, rounds = [root], [0] * size, 0
        while len(has) < size:
            for rank in list(has):
                further = (rank - root) % size + 2**rounds
                if further < size:
                    sent[rank] += 8
                    has.append((root + further) % size)
            rounds += 1
        assert sorted(has) == list(range(size))
        assert [tree_bytes(8, rank, root, size) for rank in range(size)] == sent
        assert sum(sent) == 8 * (size - 1)


def test_one_rank_broadcasts_to_nobody():
    communicator, rows = Communicator(), torch.rand(5, 3)
    communicator.start_broadcast(rows, 0, Kind.FEATURES).wait()
    assert communicator.take_sent_bytes()["features"] == 0

"""The all-to-all of rows over real Gloo ranks: what arrives, what is counted, and what a trace shows of it."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from anatomy.traces.columns import take
from anatomy.traces.job.matching import match_collectives
from anatomy.traces.options import ParseOptions
from anatomy.traces.rank.annotations import PHASES, PhaseTimeline, find_phases, find_steps
from anatomy.traces.rank.communication import find_collectives
from anatomy.traces.reading.trace import read_trace
from anatomy.training.annotations import phase
from anatomy.training.communication import Communicator, Kind

WIDTH = 3


@dataclass(frozen=True)
class Exchanges:
    """What ranks exchange: `counts` [exchanges, ranks, ranks], rows from one rank (first) to another."""

    out: Path
    counts: np.ndarray


def rows_between(sender: int, receiver: int, number: int, count: int) -> torch.Tensor:
    """Rows that tell where they come from and where they go."""
    rows = torch.arange(count, dtype=torch.float32).repeat(WIDTH, 1).T
    return rows + 1000 * number + 10_000 * sender + 100_000 * receiver


def exchange_all(rank: int, num_ranks: int, job: Exchanges) -> None:
    """Exchange blocking; all of it at once; and so again with the ends waited for in reverse, which is profiled."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", init_method=f"file://{job.out}/meeting", world_size=num_ranks, rank=rank)
    communicator = Communicator(rank, num_ranks)
    sent = [
        torch.cat([rows_between(rank, other, number, counts[rank, other]) for other in range(num_ranks)])
        for number, counts in enumerate(job.counts)
    ]
    wanted = [
        torch.cat([rows_between(other, rank, number, counts[other, rank]) for other in range(num_ranks)])
        for number, counts in enumerate(job.counts)
    ]

    def arguments(number):
        counts = job.counts[number]
        received.append(torch.full_like(wanted[number], torch.nan))
        return sent[number], counts[rank].tolist(), received[-1], counts[:, rank].tolist(), Kind.FEATURES

    received: list[torch.Tensor] = []
    for number in range(len(sent)):
        communicator.exchange(*arguments(number))
    assert all(torch.equal(*pair) for pair in zip(received, wanted, strict=True))
    counted = [communicator.take_sent_bytes()["features"]]
    received = []
    started = [communicator.start_exchange(*arguments(number)) for number in range(len(sent))]
    communicator.settle()
    assert all(exchange.ended for exchange in started)
    assert all(torch.equal(*pair) for pair in zip(received, wanted, strict=True))
    counted.append(communicator.take_sent_bytes()["features"])
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as trace:
        received = []
        with record_function("ProfilerStep#1"), phase("exchange"):
            started = [communicator.start_exchange(*arguments(number)) for number in range(len(sent))]
            for exchange in reversed(started):
                exchange.wait()
                exchange.wait()
    assert all(torch.equal(*pair) for pair in zip(received, wanted, strict=True))
    counted.append(communicator.take_sent_bytes()["features"])
    trace.export_chrome_trace(str(job.out / f"rank{rank}.json"))
    (job.out / f"counted{rank}.json").write_text(json.dumps(counted))
    communicator.wait_for_all()
    os._exit(0)


def test_rows_arrive_are_counted_and_seen_in_the_trace(start_ranks, tmp_path):
    """Random counts, of which a third is 0, on 4 ranks; the trace's bytes are those of the messages, by definition."""
    rng = np.random.default_rng(5)
    num_ranks = 4
    counts = rng.integers(0, 40, (6, num_ranks, num_ranks)) * (rng.random((6, num_ranks, num_ranks)) < 0.66)
    counts[2] = 0
    job = Exchanges(tmp_path, counts)
    processes = start_ranks(num_ranks, exchange_all, job)
    for process in processes:
        process.join(timeout=60)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [0] * num_ranks
    crossing = counts * (1 - np.eye(num_ranks, dtype=int)) * WIDTH * 4
    by_rank = {}
    for rank in range(num_ranks):
        once = int(crossing[:, rank].sum())
        assert json.loads((tmp_path / f"counted{rank}.json").read_text()) == [once, once, once]
        events = read_trace(tmp_path / f"rank{rank}.json", ParseOptions()).events
        by_rank[rank] = find_collectives(events, find_steps(events), PhaseTimeline(find_phases(events)))
    rows, _ = match_collectives(by_rank, range(num_ranks))
    assert rows["matched"].all()
    for rank in range(num_ranks):
        own = take(rows, rows["rank"] == rank)
        assert own["kind"].tolist() == ["all_to_all_v"] * len(counts)
        assert [PHASES[code] for code in own["phase"]] == ["exchange"] * len(counts)
        expected = np.maximum(crossing[:, rank].sum(1), crossing[:, :, rank].sum(1))
        assert own["bytes"].tolist() == expected.tolist()


def test_one_rank_keeps_its_rows():
    communicator, rows = Communicator(), torch.rand(5, WIDTH)
    received = torch.empty_like(rows)
    communicator.start_exchange(rows, [5], received, [5], Kind.FEATURES).wait()
    assert torch.equal(rows, received)
    assert communicator.take_sent_bytes()["features"] == 0

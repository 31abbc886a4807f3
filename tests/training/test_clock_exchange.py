"""The comparison of clocks in profiled runs, on two ranks of one machine, whose clock is the same."""

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from training_cases import job_for

from anatomy.files import read_json
from anatomy.training import clocks
from anatomy.training.clocks import ROUNDS, ClockExchange
from anatomy.training.communication import Communicator


@pytest.fixture(scope="module")
def runs(small, run_ranks, tmp_path_factory):
    """A profiled and a timed run of the same specification, by mode."""
    folder = tmp_path_factory.mktemp("clocks")
    settings = {"ranks": 2, "strategy": {"epochs": 4}}  # whole graphs: a step an epoch, as many as the window has
    jobs = [job_for(small, folder / mode, mode=mode, **settings) for mode in ("profiled", "timed")]
    run_ranks(2, jobs)
    return {job.mode: job for job in jobs}


def trace_events(out: Path, rank: int) -> list[dict]:
    with gzip.open(out / f"rank{rank}.json.gz") as file:
        return json.load(file)["traceEvents"]


def test_one_machine_has_one_clock(runs):
    recorded = read_json(runs["profiled"].out / "manifest.json", "profile")["clocks"]
    assert recorded["reference"] == 0
    assert [(entry["rank"], entry["at"]) for entry in recorded["exchanges"]] == [(1, "start"), (1, "end")]
    for entry in recorded["exchanges"]:
        assert abs(entry["offset_ns"]) <= entry["uncertainty_ns"] < 1_000_000_000


def test_the_steps_lie_between_the_exchanges_and_hold_nothing_of_them(runs):
    out = runs["profiled"].out
    start, end = (entry["local_ns"] for entry in read_json(out / "manifest.json", "profile")["clocks"]["exchanges"])
    events = trace_events(out, 1)
    steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
    assert [event["name"] for event in steps if event["cat"] == "user_annotation"] == [
        "ProfilerStep#2",
        "ProfilerStep#3",
    ]
    for event in steps:
        assert start < float(event["ts"]) * 1000
        assert (float(event["ts"]) + float(event["dur"])) * 1000 < end
    numbers = [event for event in events if event.get("args", {}).get("Input Dims") in ([[1]], [[[1]], [], [], []])]
    assert not [event["name"] for event in numbers if "send" in event["name"] or "recv" in event["name"]]


def test_profiling_and_its_exchange_change_no_weight(runs):
    profiled, timed = (runs[mode] for mode in ("profiled", "timed"))
    for name, weight in timed.weights().items():
        assert torch.equal(weight, profiled.weights()[name])


def test_one_rank_has_nobody_to_compare_with():
    exchange = ClockExchange(Communicator())
    exchange.compare("start")
    assert exchange.recorded() == {"reference": 0, "exchanges": []}


class OtherRank(Communicator):
    """A rank whose clock is `ahead_ns`, 10 us away on the way there and on the way back but for `delays_ns`; and the
    time of rank 0, which passes only in between."""

    def __init__(self, ahead_ns: int, delays_ns: list[int]) -> None:
        super().__init__(rank=0, size=2)
        self.now_ns, self.ahead_ns, self.delays_ns = 1_000_000_000, ahead_ns, iter(delays_ns)

    def time_ns(self) -> int:
        return self.now_ns

    def send_number(self, number: int, to: int) -> None:
        self.now_ns += 10_000

    def receive_number(self, sender: int) -> int:
        answer = self.now_ns + self.ahead_ns
        self.now_ns += 10_000 + next(self.delays_ns)
        return answer


@pytest.mark.parametrize("ahead_ns", [0, 3_600_000_000_000, -5_000_000])
def test_the_shortest_of_many_rounds_counts(monkeypatch, ahead_ns):
    other = OtherRank(ahead_ns, [2_000_000] * (ROUNDS - 2) + [0, 3_000_000])
    monkeypatch.setattr(clocks, "time", other)
    exchange = ClockExchange(other)
    exchange.compare("end")
    (entry,) = exchange.recorded()["exchanges"]
    # Half of 20 us there and back; a round that took 2 ms longer would be 1 ms off.
    assert (entry["offset_ns"], entry["uncertainty_ns"]) == (ahead_ns, 10_000)


BETWEEN_GPUS = """
import json, os, sys
import torch.distributed as dist
from anatomy.training.clocks import ClockExchange
from anatomy.training.communication import Communicator

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", world_size=2, rank=rank)
exchange = ClockExchange(Communicator(rank, 2, "cuda"))
exchange.compare("start")
print(json.dumps(exchange.recorded()), flush=True)
os._exit(0)
"""


def test_ranks_that_hand_over_on_gpus_compare_clocks_on_their_cpus(scripts, tmp_path):
    """The transport on the GPU is stood in for by Gloo: nothing may be sent by it, since it is no clock's way."""
    environment = os.environ | {"PYTHONPATH": str(scripts), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    lines = [[sys.executable, "-c", BETWEEN_GPUS, str(rank), str(tmp_path / "meeting")] for rank in range(2)]
    ranks = [subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True) for line in lines]
    recorded = [json.loads(rank.communicate(timeout=60)[0]) for rank in ranks]
    (entry,) = recorded[0]["exchanges"]
    assert abs(entry["offset_ns"]) <= entry["uncertainty_ns"] < 1_000_000_000
    assert recorded[1]["exchanges"] == []


def test_the_profiler_stamps_by_the_clock_that_is_compared(tmp_path):
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        before_ns = time.time_ns()
        with record_function("looked at"):
            pass
        after_ns = time.time_ns()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    content = json.loads((tmp_path / "trace.json").read_text())
    (event,) = [event for event in content["traceEvents"] if event["name"] == "looked at"]
    stamp_ns = float(event["ts"]) * 1000 + content.get("baseTimeNanoseconds", 0)
    # The profiler's stamps are whole microseconds of the processor's counter, converted.
    assert before_ns - 100_000 < stamp_ns < after_ns + 100_000

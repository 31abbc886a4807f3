"""Emulated slow ranks: what they pay, with clocks of the test's own, and that they train what undisturbed ones do."""

import threading
import time
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from training_cases import Job, be_rank, job_for

from anatomy.training import run
from anatomy.training.disturb import SHORTEST_S, Disturbance
from anatomy.training.options import STRATEGIES

RANKS = (1, 2, 3)
CONDITIONS = {
    "slow": {"name": "slow", "slow": {"rank": 0, "factor": 3, "from_step": 1}},
    "random": {"name": "random", "slow_at_random": {"factor": 3, "probability": 0.5}},
}
SYNCHRONOUS = [
    name
    for name, plugin in STRATEGIES.items()
    if not {"ASYNCHRONOUS", "DEPENDS_ON_TIMES", "ONE_RANK_PER_HOST"} & plugin.constants.keys()
]
CASES = [
    *product(SYNCHRONOUS, ["slow"], [2]),
    *product(["fullgraph"], CONDITIONS, [1, 3]),
    ("minibatch", "random", 2),
]


class Clocks:
    """A thread's processor time and the wall's; a sleep is a little too long."""

    def __init__(self, overshoot_s: float = 0.0) -> None:
        self.cpu_s = self.wall_s = 0.0
        self.overshoot_s = overshoot_s
        self.slept: list[float] = []

    def work(self, seconds: float) -> None:
        self.cpu_s += seconds
        self.wall_s += seconds

    def wait(self, seconds: float) -> None:
        self.wall_s += seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.wall_s += seconds + self.overshoot_s

    def disturbance(self, condition: dict, rank: int = 0, seed: int = 0) -> Disturbance:
        return Disturbance(condition, seed, rank, lambda: self.cpu_s, lambda: self.wall_s, self.sleep)


def slow(factor: float, rank: int = 0, from_step: int = 0) -> dict:
    return {"slow": {"rank": rank, "factor": factor, "from_step": from_step}}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("overshoot_s", [0, 6e-5])
def test_a_slow_rank_takes_a_factor_longer_for_what_it_computes_and_no_longer_for_what_it_waits(seed, overshoot_s):
    random = np.random.default_rng(seed)
    clocks, factor = Clocks(overshoot_s), 1 + 4 * random.random()
    disturbance = clocks.disturbance(slow(factor))
    worked = waited = 0.0
    for _ in range(5):
        clocks.work(random.random())  # between steps: not training
        start_s = clocks.wall_s - worked * factor - waited
        with disturbance.step():
            for seconds, pause in random.exponential([0.002, 0.01], (20, 2)):
                clocks.work(seconds)
                disturbance.pay()
                clocks.wait(pause)
                worked, waited = worked + seconds, waited + pause
        assert clocks.wall_s - start_s == pytest.approx(worked * factor + waited, abs=SHORTEST_S + overshoot_s)


def test_it_pays_before_it_communicates_and_at_the_end_of_the_step():
    clocks = Clocks()
    disturbance = clocks.disturbance(slow(3))
    with disturbance.step():
        clocks.work(0.5)
        disturbance.pay()
        assert clocks.slept == [pytest.approx(1)]
        disturbance.pay()
        assert len(clocks.slept) == 1, "nothing is owed twice"
        clocks.work(0.25)
    assert clocks.slept[1:] == [pytest.approx(0.5)]
    clocks.work(1)
    disturbance.pay()
    assert len(clocks.slept) == 2, "outside of steps nothing is slow"


def test_short_debts_are_paid_together():
    clocks = Clocks()
    disturbance = clocks.disturbance(slow(2))
    with disturbance.step():
        for _ in range(30):
            clocks.work(SHORTEST_S / 10 + 1e-9)
            disturbance.pay()
    assert clocks.slept == [pytest.approx(SHORTEST_S, rel=1e-3)] * 3


@pytest.mark.parametrize(
    ("condition", "rank"),
    [
        ({}, 0),
        (slow(1), 0),
        (slow(4, rank=1), 0),
        (slow(4), 1),
        ({"cpu_share": {"rank": 0, "share": 0.5}}, 0),
        ({"slow_at_random": {"factor": 4, "probability": 0}}, 0),
        ({"slow_at_random": {"factor": 1, "probability": 1}}, 0),
    ],
)
def test_a_rank_that_is_never_slow_looks_at_no_clock_but_the_steps(condition, rank):
    clocks = Clocks()
    disturbance = clocks.disturbance(condition, rank)
    assert not disturbance.ever_slow
    with disturbance.step():
        clocks.work(1)
        disturbance.pay()
    assert clocks.slept == []
    assert clocks.wall_s == 1


def test_it_is_slow_from_the_step_that_is_named_and_a_resumed_run_goes_on_counting():
    disturbance = Clocks().disturbance(slow(2, from_step=3))
    assert [disturbance.factor_at(step) for step in range(5)] == [1, 1, 1, 2, 2]
    for _ in range(2):
        with disturbance.step():
            pass
    assert disturbance.steps == 2


@pytest.mark.parametrize("probability", [0.1, 0.5, 1])
def test_random_slowness_has_its_probability_and_depends_on_seed_rank_and_step_alone(probability):
    condition = {"slow_at_random": {"factor": 4, "probability": probability}}
    steps = range(1000)
    drawn = {
        (seed, rank): [Disturbance(condition, seed, rank).factor_at(step) for step in steps]
        for seed, rank in product(range(2), range(2))
    }
    for factors in drawn.values():
        assert set(factors) <= {1, 4}
        assert np.mean(np.array(factors) == 4) == pytest.approx(probability, abs=0.05)
    assert drawn[0, 1] == [Disturbance(condition, 0, 1).factor_at(step) for step in steps]
    assert probability == 1 or len({tuple(factors) for factors in drawn.values()}) == 4


def test_every_thread_pays_for_itself():
    slept: list[float] = []
    disturbance = Disturbance(slow(2), sleep=slept.append)

    def compute() -> None:
        end_s = time.thread_time() + 0.02
        while time.thread_time() < end_s:
            pass
        disturbance.pay()

    with disturbance.step():
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
        of_thread = sum(slept)
    assert of_thread == pytest.approx(0.02, rel=0.2)
    assert sum(slept) - of_thread < 0.01, "the main thread has waited"


@pytest.fixture(scope="module")
def jobs(small, run_ranks, tmp_path_factory) -> dict[tuple[str, str | None, int], Job]:
    """Every synchronous strategy under each condition, and under none."""
    folder = tmp_path_factory.mktemp("disturbed")
    wanted = dict.fromkeys(CASES) | dict.fromkeys((method, None, ranks) for method, _, ranks in CASES)
    made = {
        (method, condition, ranks): job_for(
            small,
            folder / f"{method}-{condition}-{ranks}",
            method=method,
            ranks=ranks,
            strategy={"epochs": 3},
            condition=CONDITIONS.get(condition),
        )
        for method, condition, ranks in wanted
    }
    for ranks in RANKS:
        run_ranks(ranks, [job for key, job in made.items() if key[2] == ranks])
    return made


@pytest.mark.parametrize(("method", "condition", "ranks"), CASES)
def test_no_condition_changes_what_is_trained_or_sent(jobs, method, condition, ranks):
    disturbed, plain = jobs[method, condition, ranks], jobs[method, None, ranks]
    epochs, expected = (pd.read_parquet(job.out / "epochs.parquet") for job in (disturbed, plain))
    measured = ["wall_s", "blocked_s", "eval_s", "peak_memory_bytes"]
    pd.testing.assert_frame_equal(epochs.drop(columns=measured), expected.drop(columns=measured))
    for rank in range(ranks):
        for key, value in disturbed.weights(rank).items():
            torch.testing.assert_close(value, plain.weights(rank)[key], rtol=0, atol=0)


def be_counting_rank(rank: int, num_ranks: int, jobs: list[Job]) -> None:
    """As `be_rank`, but sleeps are noted and not slept."""
    slept: list[float] = []
    run.Disturbance = partial(Disturbance, sleep=slept.append)
    be_rank(rank, num_ranks, jobs)
    np.save(jobs[0].out / f"slept-{rank}.npy", np.array(slept))


@pytest.mark.parametrize("method", ["fullgraph", "minibatch"])
def test_only_the_slow_rank_pays_and_several_times_within_a_step(small, run_ranks, tmp_path, method):
    condition = {"name": "slow", "slow": {"rank": 1, "factor": 50}}
    job = job_for(small, tmp_path / method, method=method, ranks=2, condition=condition)
    run_ranks(2, [job], be_counting_rank)
    slept = [np.load(job.out / f"slept-{rank}.npy") for rank in range(2)]
    steps = int(pd.read_parquet(job.out / "epochs.parquet").query("rank == 1")["steps"].sum())
    assert len(slept[0]) == 0
    assert len(slept[1]) > 2 * steps

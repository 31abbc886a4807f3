"""What a forked rank does whose speed is not measured but told, for the tests of unequal shares."""

from unittest import mock

import numpy as np
from interruptions import be_often_interrupted
from training_cases import Job, be_rank

from anatomy.training.strategies import balanced, mixed

SLOWNESS = np.array([1.0, 2.0, 4.0])
"""How many times slower each rank is, as told."""

_measure = balanced.Strategy.measure


def equally_fast(strategy: balanced.Strategy, sizes: list[int]) -> np.ndarray:
    """Measure all that there is to measure, and say that all are as fast as the first."""
    return np.repeat(_measure(strategy, sizes)[:1], strategy.context.communicator.size, axis=0)


def be_equal_rank(rank: int, num_ranks: int, jobs: list[Job]) -> None:
    """A rank of runs in which all ranks are measured to be equally fast."""
    with mock.patch.object(balanced.Strategy, "measure", equally_fast):
        be_rank(rank, num_ranks, jobs)


def be_unequal_rank(rank: int, num_ranks: int, jobs: list[Job]) -> None:
    """A rank of runs in which step times are in proportion to the batch and to `SLOWNESS`."""
    with mock.patch.object(balanced.Strategy, "measure", lambda strategy, sizes: np.outer(SLOWNESS[:num_ranks], sizes)):
        be_rank(rank, num_ranks, jobs)


def be_often_interrupted_and_measured(rank: int, num_ranks: int, jobs: list[Job]) -> None:
    """A rank of runs that are interrupted after every epoch, and faster in every attempt, beside ranks that are not."""
    attempts = iter(range(1, 1000))

    def measure(strategy: balanced.Strategy, sizes: list[int]) -> np.ndarray:
        return np.outer([1.0] * (num_ranks - 1) + [0.5 ** next(attempts)], sizes)

    with mock.patch.object(balanced.Strategy, "measure", measure):
        be_often_interrupted(rank, num_ranks, jobs)


def moved(shares: list[float], trained: list[float], busy_s: list[float], damping: float, least: float) -> list[float]:
    """Shares that move from epoch to epoch as if ranks became slower and slower, whatever was measured."""
    assert min(busy_s) > 0
    new = np.array(shares) / np.sum(shares) * 0.7 ** np.arange(len(shares))
    return (new / new.sum()).tolist()


def be_adjusted_rank(rank: int, num_ranks: int, jobs: list[Job]) -> None:
    with mock.patch.object(mixed, "adjusted", moved):
        be_rank(rank, num_ranks, jobs)


def be_often_interrupted_and_adjusted(rank: int, num_ranks: int, jobs: list[Job]) -> None:
    with mock.patch.object(mixed, "adjusted", moved):
        be_often_interrupted(rank, num_ranks, jobs)

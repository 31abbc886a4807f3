"""Fixtures of the training tests. Ranks are forked from a server that has torch loaded, so they start fast."""

import multiprocessing
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that the forked ranks can import the helpers too

import training_cases as cases
from interruptions import rank_of


@pytest.fixture(scope="session")
def start_ranks():
    """Start a function on some ranks, and return their processes: `start_ranks(num_ranks, be_rank, *arguments)`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "anatomy.training.run", "training_cases"])

    def start(num_ranks: int, be_rank, *arguments) -> list:
        processes = [context.Process(target=be_rank, args=(rank, num_ranks, *arguments)) for rank in range(num_ranks)]
        for process in processes:
            process.start()
        return processes

    return start


@pytest.fixture(scope="session")
def run_ranks(start_ranks):
    """Run jobs on some ranks: `run_ranks(num_ranks, [Job, ...])`; every job's ranks share one process group's life.

    `be_rank` is what a rank does with them.
    """

    def run(num_ranks: int, jobs: list[cases.Job], be_rank=cases.be_rank) -> None:
        processes = start_ranks(num_ranks, be_rank, jobs)
        for process in processes:
            process.join(timeout=600)
        codes = [process.exitcode for process in processes]
        for process in processes:
            process.kill()
        assert codes == [0] * num_ranks

    return run


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> cases.Case:
    """A random graph of 60 nodes, of which three are isolated, in 1, 2, 3 and 4 parts.

    Of three and of four parts, the last has no edge inside and no training node. For vertex cuts these are the parts of
    the roots, and each edge is in a random part: a root may be where its node has no edge.
    """
    return cases.small_case(tmp_path_factory.mktemp("small"))


@pytest.fixture
def alone():
    """The test's own process is the only rank, unless it starts others."""
    with rank_of(0, 1):
        yield

"""Ranks that are cut off: what they contribute, and that slow ones hold nobody up and hang nobody."""

import time

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import nn
from training_cases import be_rank, job_for

from anatomy.training.communication import Communicator
from anatomy.training.gradients.cutoff import Policy
from anatomy.training.optimizer import FlatParameters
from anatomy.training.strategies import minibatch

SLOW_RANK, DELAY_S = 1, 0.05


class Counter:
    """Others finish as it was planned: `finished[i]` of them when this rank asks for the i-th time."""

    def __init__(self, finished: list[int]) -> None:
        self.finished, self.told = iter(finished), 0

    def count(self) -> int:
        return next(self.finished)

    def add_own(self) -> None:
        self.told += 1


@given(
    some.lists(some.floats(-2, 2), min_size=1, max_size=6),
    some.integers(1, 4),
    some.floats(0.01, 1),
    some.floats(0.01, 1),
    some.data(),
)
def test_what_was_done_until_enough_have_finished_is_contributed(values, size, share, least, data):
    finished = sorted(data.draw(some.lists(some.integers(0, size - 1), min_size=7, max_size=7)))
    flat = FlatParameters(nn.ParameterList([nn.Parameter(torch.zeros(1))]), 2)
    weight = next(iter(flat.spans))[0]
    options = {"share": share, "micro_batches": len(values), "least": least}
    policy = Policy(flat, Communicator(), options)
    policy._enough = int(np.ceil(share * size))
    policy._finished = counter = Counter(finished)
    computed = []

    def pieces():
        for value in values:
            computed.append(value)
            yield value * weight.sum() + 1, 2

    policy.backward(pieces())
    sure = int(np.ceil(least * len(values)))
    asked = [place for place, count in enumerate(finished) if count >= np.ceil(share * size)]
    number = min([sure + asked[0], len(values)] if asked else [len(values)])
    assert computed == values[:number]
    assert counter.told == 1
    assert policy.loss_and_count() == (number, 2 * number)
    torch.testing.assert_close(flat.gradients, torch.tensor([sum(computed)], dtype=torch.float32))


def be_uneven_rank(rank: int, num_ranks: int, jobs) -> None:
    """One rank computes slowly."""
    loss = minibatch.Strategy._forward

    def slow_loss(self, *arguments):
        time.sleep(DELAY_S)
        return loss(self, *arguments)

    if rank == SLOW_RANK:
        minibatch.Strategy._forward = slow_loss
    be_rank(rank, num_ranks, jobs)


@pytest.fixture(scope="module")
def trained(small, run_ranks, tmp_path_factory):
    """With a slow rank, under several shares, with and without prefetching, in 2 ranks, and in 3 of which one has no
    seed nodes."""
    folder = tmp_path_factory.mktemp("cutoff")
    made = {
        (ranks, share, prefetch): job_for(
            small,
            folder / f"{ranks}-{share}-{prefetch}",
            method="minibatch",
            ranks=ranks,
            strategy={
                "epochs": 2,
                "batch_size": 32,
                "prefetch": prefetch,
                "gradients": {"policy": "cutoff", "share": share, "micro_batches": 4},
            },
        )
        for ranks in (2, 3)
        for share in (0.3, 1.0)
        for prefetch in (0, 2)
    }
    for ranks in (2, 3):
        run_ranks(ranks, [job for key, job in made.items() if key[0] == ranks], be_uneven_rank)
    return made


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_slow_rank_is_cut_off_and_all_have_the_same_weights(trained, ranks, prefetch):
    epochs = {share: pd.read_parquet(trained[ranks, share, prefetch].out / "epochs.parquet") for share in (0.3, 1.0)}
    done, whole = (epochs[share].groupby("rank").train_nodes.sum() for share in (0.3, 1.0))
    assert 0 < done[SLOW_RANK] < whole[SLOW_RANK]
    assert done.sum() < whole.sum()
    assert np.isfinite(epochs[0.3].loss).all()
    assert epochs[0.3].groupby("epoch").loss.nunique().eq(1).all()
    cut = trained[ranks, 0.3, prefetch]
    for rank in range(ranks):
        for name, value in cut.weights(rank).items():
            assert torch.equal(value, cut.weights(0)[name])


@pytest.mark.parametrize("ranks", [2, 3])
def test_where_nobody_is_cut_off_prefetching_changes_nothing(trained, ranks):
    plain, ahead = (trained[ranks, 1.0, prefetch] for prefetch in (0, 2))
    assert ahead.metrics()["weights_sha256"] == plain.metrics()["weights_sha256"]

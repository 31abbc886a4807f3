"""Which gradients share a bucket, and that ranks begin their buckets alike."""

from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import nn

from anatomy.training.communication import Communicator
from anatomy.training.gradients.buckets import Policy, buckets_of
from anatomy.training.gradients.merged import merged_buckets
from anatomy.training.optimizer import FlatParameters

SIZES = some.lists(some.integers(4, 4000), min_size=1, max_size=8)


@given(SIZES, some.floats(1, 10000))
def test_a_bucket_is_closed_by_the_gradient_that_fills_it(sizes, bucket_bytes):
    buckets = buckets_of(sizes, bucket_bytes)
    assert sum(buckets) == len(sizes)
    backwards = sizes[::-1]
    parts = [backwards[first:stop] for first, stop in pairwise([0, *accumulate(buckets)])]
    for part in parts[:-1]:
        assert sum(part) >= bucket_bytes > sum(part[:-1])
    assert sum(parts[-1][:-1]) < bucket_bytes


@given(
    some.lists(some.tuples(some.integers(1, 50), some.integers(1, 50)), min_size=1, max_size=8),
    some.integers(0, 40),
    some.integers(0, 3),
)
def test_each_merge_and_each_cut_ends_the_next_gradient_as_early_as_the_other(layers, alpha, beta):
    """Times are whole numbers, so that nothing is rounded."""
    ready_s, sizes = list(accumulate(time for time, _ in layers)), [size for _, size in layers]
    found = merged_buckets(ready_s[::-1], sizes[::-1], alpha, beta)
    assert sum(found) == len(layers)
    closed = set(accumulate(found))
    free_s, filled = 0, sizes[0]
    for number in range(1, len(layers)):
        begin_s = max(ready_s[number - 1], free_s)
        merged_s = max(begin_s, ready_s[number]) + alpha + beta * (filled + sizes[number])
        cut_s = max(begin_s + alpha + beta * filled, ready_s[number]) + alpha + beta * sizes[number]
        if number in closed:
            assert cut_s <= merged_s
            free_s, filled = begin_s + alpha + beta * filled, sizes[number]
        else:
            assert merged_s <= cut_s
            filled += sizes[number]


@pytest.mark.parametrize(
    ("ready_s", "alpha", "expected"),
    [
        ([3, 2, 1], 0, [1, 1, 1]),  # nothing to be saved, and every sum ends before the next gradient is there
        ([3, 2, 1], 5, [3]),
        ([9, 2, 1], 5, [2, 1]),
    ],
)
def test_merging_pays_where_starting_costs_more_than_waiting(ready_s, alpha, expected):
    assert merged_buckets(ready_s, [4, 4, 4], alpha, 0.01) == expected


class Recording(Communicator):
    """Alone, but remembers what it was told to add up."""

    def __init__(self, flat: torch.Tensor) -> None:
        super().__init__()
        self.flat, self.begun = flat, []

    def start_sum(self, values, kind):
        first = values.storage_offset()
        self.begun.append((first, first + values.numel()))
        return super().start_sum(values, kind)


@given(SIZES, some.floats(4, 8000), some.randoms(use_true_random=False), some.data())
def test_whatever_order_gradients_come_in_buckets_begin_from_the_last(sizes, bucket_bytes, random, data):
    """The whole buffer once, from its end to its start; also where some gradients never come, or all stay away."""
    model = nn.ParameterList(nn.Parameter(torch.ones(size // 4)) for size in sizes)
    flat = FlatParameters(model, 2)
    communicator = Recording(flat.bucket)
    policy = Policy(flat, communicator, {"bucket_mb": bucket_bytes / 1e6})
    order = random.sample(range(len(sizes)), data.draw(some.integers(0, len(sizes))))
    policy._differentiate = lambda loss_sum: [policy.ready(number, model[number]) for number in order]
    policy.backward([(torch.tensor(1.0), 1)])
    assert communicator.begun[0][1] == flat.bucket.numel()
    assert communicator.begun[-1][0] == 0
    assert all(first == stop for (first, _), (_, stop) in pairwise(communicator.begun))
    assert policy.synchronise() == (1.0, 1)

"""Shares of a step's seed nodes: what holds for any numbers."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from anatomy.training.shares import adjusted, apportioned, dealt, equal_finish, step_times

weights = some.lists(some.floats(0, 100, allow_subnormal=False), min_size=1, max_size=5).filter(any)


@given(some.integers(0, 1000), weights)
def test_parts_add_up_and_each_is_its_proportion_rounded(total, given):
    parts = apportioned(total, given)
    assert sum(parts) == total
    for part, weight in zip(parts, given, strict=True):
        assert abs(part - total * Fraction(weight) / sum(map(Fraction, given))) < 1


@given(some.integers(1, 50), some.integers(1, 7), some.floats(1e-9, 1e9))
def test_equal_weights_get_equal_parts_exactly(each, ranks, weight):
    assert apportioned(each * ranks, [weight] * ranks) == [each] * ranks


@pytest.mark.parametrize("wrong", [[], [0, 0], [1, -1]])
def test_weights_that_say_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="weights: found"):
        apportioned(3, wrong)


@some.composite
def steps(draw):
    """Batches of one step, none larger than the size of plain mini-batches, and unequal sizes for as many nodes."""
    ranks, size = draw(some.integers(1, 5)), draw(some.integers(1, 12))
    counts = draw(some.lists(some.integers(0, size), min_size=ranks, max_size=ranks))
    nodes = torch.from_numpy(np.random.default_rng(draw(some.integers(0, 99))).permutation(sum(counts)))
    shares = draw(some.lists(some.floats(0, 10), min_size=ranks, max_size=ranks).filter(any))
    return list(nodes.split(counts)), apportioned(size * ranks, shares), size


@given(steps())
def test_every_seed_node_is_trained_once_and_no_rank_exceeds_its_share(step):
    batches, sizes, size = step
    dealt_out = dealt(batches, sizes)
    assert sorted(torch.cat(dealt_out).tolist()) == sorted(torch.cat(batches).tolist())
    for mine, own, limit in zip(dealt_out, batches, sizes, strict=True):
        assert len(mine) <= limit
        kept = min(len(own), limit)
        assert mine[:kept].tolist() == own[:kept].tolist()
    if all(len(batch) == size for batch in batches):  # a full step
        assert [len(mine) for mine in dealt_out] == sizes


@given(steps())
def test_equal_shares_are_the_split_of_plain_mini_batches(step):
    batches, _, size = step
    sizes = apportioned(size * len(batches), [0.1] * len(batches))
    assert [mine.tolist() for mine in dealt(batches, sizes)] == [batch.tolist() for batch in batches]


def test_more_seed_nodes_than_there_is_room_for_are_refused():
    with pytest.raises(ValueError, match="3 seed nodes do not fit into batches of"):
        dealt([torch.arange(3), torch.arange(0)], [1, 1])


curves = some.integers(1, 3).flatmap(
    lambda ranks: some.lists(some.lists(some.floats(0, 10), min_size=5, max_size=5), min_size=ranks, max_size=ranks)
)


@given(curves, some.data())
def test_no_other_batch_sizes_end_sooner(drawn, data):
    times = np.maximum.accumulate(np.array(drawn), axis=1)
    total = data.draw(some.integers(0, 4 * len(times)))
    sizes = equal_finish(times, total)
    assert sum(sizes) == total

    def end(chosen):
        return max(times[rank, size] for rank, size in enumerate(chosen) if size) if any(chosen) else 0

    others = [chosen for chosen in product(range(5), repeat=len(times)) if sum(chosen) == total]
    assert end(sizes) == min(map(end, others))


@given(some.lists(some.floats(0, 1), min_size=4, max_size=4), some.integers(1, 5), some.integers(1, 16))
def test_equally_fast_ranks_get_equal_batches(seconds, ranks, each):
    times = step_times([0, 4, 8, 16], np.array([seconds] * ranks))
    assert equal_finish(times, each * ranks) == [each] * ranks


@given(some.lists(some.floats(0, 1), min_size=4, max_size=4))
def test_a_curve_rises_and_goes_through_its_points(seconds):
    times = step_times([0, 3, 4, 9], np.array([seconds]))
    assert times.shape == (1, 10)
    assert (np.diff(times) >= -1e-12).all()
    np.testing.assert_allclose(times[0, [0, 3, 4, 9]], np.maximum.accumulate(seconds), atol=1e-12)


@pytest.mark.parametrize("factor", [1.5, 2, 3])
def test_twice_as_slow_is_half_as_much(factor):
    """Where time is in proportion to the batch, so is the batch to speed."""
    times = step_times([0, 30, 60, 120], np.array([[0, 30, 60, 120], [0, 30, 60, 120]]) * [[1.0], [factor]])
    assert equal_finish(times, 60) == apportioned(60, [factor, 1])


def test_more_than_was_measured_is_refused():
    with pytest.raises(ValueError, match="9 seed nodes do not fit into 2 batches of at most 4"):
        equal_finish(np.zeros((2, 5)), 9)


@given(weights, some.floats(0, 0.9), some.data())
def test_adjusted_shares_add_up_and_stay_where_all_are_busy_for_as_long(shares, damping, data):
    busy = data.draw(some.floats(0.01, 100))
    trained = apportioned(10**9, shares)
    stay = adjusted(shares, trained, [busy] * len(shares), damping, 0)
    np.testing.assert_allclose(stay, np.array(shares) / sum(shares), atol=1e-6)
    other = adjusted(
        shares,
        trained,
        data.draw(some.lists(some.floats(0, 9), min_size=len(shares), max_size=len(shares))),
        damping,
        1e-3,
    )
    assert sum(other) == pytest.approx(1)
    assert min(other) >= 1e-3 / (1 + 1e-3 * len(shares))


def test_shares_come_to_where_ranks_are_busy_for_as_long():
    """Each rank has fixed costs of its own besides those in proportion to what it trains."""
    fixed, each = np.array([0.1, 0.2, 0.0]), np.array([1e-3, 2e-3, 0.5e-3])
    shares = [1 / 3] * 3
    for _ in range(40):
        trained = apportioned(3000, shares)
        shares = adjusted(shares, trained, fixed + each * trained, 0.5, 1e-4)
    busy = fixed + each * apportioned(3000, shares)
    assert busy.max() / busy.min() < 1.01


def test_a_rank_that_trained_nothing_keeps_its_share():
    assert adjusted([0.5, 0.25, 0.25], [60, 30, 0], [1, 1, 5], 0, 0) == pytest.approx([0.5, 0.25, 0.25])
    assert adjusted([1, 1], [0, 0], [1, 2], 0, 0) == [0.5, 0.5]

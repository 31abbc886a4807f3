"""The judge: properties of intervals and verdicts, and cases whose answer is known."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from anatomy.observations.common.evidence import Repetitions
from anatomy.observations.common.reading import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED
from anatomy.observations.common.verdict import (
    bootstrap_interval,
    judge,
)

numbers = st.floats(-1e6, 1e6, allow_nan=False).map(lambda value: round(value, 3))
samples = st.lists(numbers, min_size=3, max_size=12)
directions = st.sampled_from([">", "<"])
quick = settings(max_examples=40)


def of(values, **censored) -> Repetitions:
    series = pd.Series(values, index=range(len(values)), dtype="float64")
    return Repetitions(series, ("a run",), **{name: frozenset(seeds) for name, seeds in censored.items()})


@quick
@given(samples, directions, numbers)
def test_the_interval_contains_the_estimate_and_lies_within_the_values(values, direction, threshold):
    judgement = judge(of(values), direction, threshold)
    low, high = judgement.interval.low, judgement.interval.high
    assert low <= judgement.estimate <= high
    tolerance = 1e-9 * max(map(abs, values))
    assert min(values) - tolerance <= low
    assert high <= max(values) + tolerance


@quick
@given(samples, numbers)
def test_more_and_less_are_never_both_supported(values, threshold):
    more, less = (judge(of(values), direction, threshold).verdict for direction in "><")
    assert {more, less} in ({SUPPORTED, NOT_SUPPORTED}, {INCONCLUSIVE})


@quick
@given(samples, st.tuples(numbers, numbers))
def test_raising_the_threshold_never_helps_a_claim_of_more(values, thresholds):
    order = [NOT_SUPPORTED, INCONCLUSIVE, SUPPORTED]
    low, high = (order.index(judge(of(values), ">", threshold).verdict) for threshold in sorted(thresholds))
    assert high <= low


@quick
@given(samples, directions, numbers, st.randoms(use_true_random=False))
def test_the_order_of_repetitions_changes_nothing(values, direction, threshold, random):
    shuffled = random.sample(values, len(values))
    assert judge(of(values), direction, threshold) == judge(of(shuffled), direction, threshold)


@quick
@given(samples, numbers, st.floats(0.5, 0.9), st.floats(0.91, 0.99))
def test_more_confidence_never_narrows_the_interval(values, threshold, less, more):
    assume(len(values) < 8)  # percentiles of one distribution are nested; BCa's correction is not
    narrow, wide = (bootstrap_interval(np.sort(values), confidence) for confidence in (less, more))
    rounding = 1e-12 * max(map(abs, values))
    assert wide.low <= narrow.low + rounding
    assert narrow.high <= wide.high + rounding


@quick
@given(samples, directions, numbers)
def test_censored_values_never_add_a_verdict(values, direction, threshold):
    plain = judge(of(values), direction, threshold).verdict
    for censored in ({"at_least": {0}}, {"at_most": {0}}, {"at_least": {0}, "at_most": {1}}):
        assert judge(of(values, **censored), direction, threshold).verdict in (plain, INCONCLUSIVE)


@pytest.mark.parametrize(
    ("values", "direction", "threshold", "verdict"),
    [
        ([0.6, 0.7, 0.8], ">", 0.5, SUPPORTED),
        ([0.6, 0.7, 0.8], ">", 0.9, NOT_SUPPORTED),
        ([0.6, 0.7, 0.8], ">", 0.7, INCONCLUSIVE),
        ([0.6, 0.7, 0.8], "<", 0.9, SUPPORTED),
        ([0.4, 0.9, 0.9], ">", 0.5, INCONCLUSIVE),
        ([1.0, 1.0, 1.0], ">", 0.5, SUPPORTED),
        ([0.5, 0.5, 0.5], ">", 0.5, INCONCLUSIVE),
        ([0.1, 0.1, 0.1], "<", 0.1, INCONCLUSIVE),
        ([0.0, 0.0, 0.0], "<=", 0.0, SUPPORTED),
        ([0.0, 0.0, 1e-9], "<=", 0.0, NOT_SUPPORTED),
        ([0.6, 0.7], ">", 0.5, INCONCLUSIVE),
        ([], ">", 0.5, INCONCLUSIVE),
        ([0.6, 0.7, float("nan")], ">", 0.5, INCONCLUSIVE),
        ([0.6, 0.7, float("inf")], ">", 0.5, INCONCLUSIVE),
    ],
)
def test_known_verdicts(values, direction, threshold, verdict):
    judgement = judge(of(values), direction, threshold)
    assert judgement.verdict == verdict
    assert (judgement.reason is None) == (verdict in (SUPPORTED, NOT_SUPPORTED))


def test_with_three_repetitions_the_interval_is_their_range():
    # Of 27 resamples one is three times the smallest: 1/27 > 2.5 %, so the lower end of 95 % is the smallest value.
    interval = bootstrap_interval(np.array([1.0, 2.0, 4.0]), 0.95)
    assert (interval.low, interval.high) == (1.0, 4.0)
    assert interval.method.startswith("bootstrap, percentile")


def test_equal_values_have_an_interval_of_no_width():
    interval = bootstrap_interval(np.full(10, 0.1), 0.95)
    assert (interval.low, interval.high, interval.method) == (0.1, 0.1, "all repetitions equal")
    assert judge(of([0.1] * 10), ">", 0.05).estimate == 0.1  # their mean in floating point is 0.09999999999999999


def test_many_repetitions_use_bca_and_agree_with_students_t():
    values = np.sort(np.random.default_rng(1).normal(10, 1, size=200))
    interval = bootstrap_interval(values, 0.95)
    assert interval.method.startswith("bootstrap, BCa")
    expected = stats.t.interval(0.95, 199, values.mean(), stats.sem(values))
    assert (interval.low, interval.high) == pytest.approx(expected, abs=0.03)


def test_a_claim_on_the_threshold_is_supported_about_as_rarely_as_the_confidence_says():
    """Of many samples whose true mean is the threshold, about 2.5 % have a 95 % interval above it."""
    random = np.random.default_rng(0)
    verdicts = [judge(of(random.normal(0.5, 0.1, size=20)), ">", 0.5).verdict for _ in range(60)]
    assert verdicts.count(SUPPORTED) <= 6
    assert verdicts.count(INCONCLUSIVE) >= 48

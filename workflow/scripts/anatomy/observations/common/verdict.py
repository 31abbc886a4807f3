"""The verdict on a claim, from one value per repetition and a threshold.

`supported` and `not supported` need an interval that lies wholly on one side of the threshold; everything else is
`inconclusive`, never a pass.
"""

import operator
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from anatomy.observations.common.evidence import Repetitions
from anatomy.observations.common.reading import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED

NUM_RESAMPLES = 9999
SEED = 0
MIN_FOR_BCA = 8
"""With fewer values, from which BCa's acceleration is not to be trusted, the percentile interval is used."""

_COMPARE = {">": operator.gt, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True)
class Interval:
    """A confidence interval of a mean, and how it was made."""

    low: float
    high: float
    method: str


@dataclass(frozen=True)
class Judgement:
    """What the data say about a claim; the numbers are None where there are none."""

    verdict: str
    reason: str | None
    estimate: float | None = None
    interval: Interval | None = None


def judge(
    repetitions: Repetitions, direction: str, threshold: float, confidence: float = 0.95, min_repetitions: int = 3
) -> Judgement:
    """Judge the claim that the mean over repetitions lies in `direction` (`>`, `<`) of `threshold`.

    The direction `<=` is for claims of exactness, which a single counterexample refutes: the estimate is the largest
    value and the interval the range of the values. Censored values support only what they can support.
    """
    values = np.sort(repetitions.values.to_numpy(dtype=np.float64))
    if not np.isfinite(values).all():
        return Judgement(INCONCLUSIVE, "a repetition has no finite value")
    if len(values) < min_repetitions:
        estimate = float(values.mean()) if len(values) else None
        return Judgement(
            INCONCLUSIVE, f"only {len(values)} repetitions, at least {min_repetitions} are needed", estimate
        )
    if direction == "<=":
        estimate, interval = (
            float(values[-1]),
            Interval(float(values[0]), float(values[-1]), "range of the repetitions"),
        )
        decided = NOT_SUPPORTED if estimate > threshold else SUPPORTED
    else:
        interval = bootstrap_interval(values, confidence)
        # The mean of equal values can differ from them in its last digit.
        estimate = float(np.clip(values.mean(), interval.low, interval.high))
        decided = _side(interval, direction, threshold)
    if decided is None:
        return Judgement(INCONCLUSIVE, "the confidence interval contains the threshold", estimate, interval)
    bounded = _bounding(repetitions, direction, decided)
    if bounded:
        return Judgement(INCONCLUSIVE, bounded, estimate, interval)
    return Judgement(decided, None, estimate, interval)


def bootstrap_interval(values: np.ndarray, confidence: float) -> Interval:
    """Bootstrap confidence interval of the mean of `values` [n], n >= 2, sorted, from a fixed seed.

    Percentile for small n; bias-corrected and accelerated (BCa; Efron, J. Am. Stat. Assoc. 1987) from MIN_FOR_BCA on.
    With few values the interval is close to their range and covers less than its nominal level. Equal values have an
    interval of no width.
    """
    if values[0] == values[-1]:
        return Interval(float(values[0]), float(values[0]), "all repetitions equal")
    if len(values) >= MIN_FOR_BCA:
        interval = _bootstrap(values, confidence, "BCa")
        if np.isfinite([interval.low, interval.high]).all():
            return interval
    return _bootstrap(values, confidence, "percentile")


def _bootstrap(values: np.ndarray, confidence: float, method: str) -> Interval:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        result = stats.bootstrap(
            (values,),
            np.mean,
            n_resamples=NUM_RESAMPLES,
            confidence_level=confidence,
            method=method,
            rng=np.random.default_rng(SEED),
        )
    low, high = result.confidence_interval
    # A very skewed sample can have a BCa interval that leaves its mean out.
    mean = values.mean()
    return Interval(float(min(low, mean)), float(max(high, mean)), f"bootstrap, {method}, {NUM_RESAMPLES} resamples")


def _side(interval: Interval, direction: str, threshold: float) -> str | None:
    """The verdict where the whole interval lies on one side of the threshold, else None."""
    inside = [_COMPARE[direction](end, threshold) for end in (interval.low, interval.high)]
    if all(inside):
        return SUPPORTED
    return None if any(inside) or threshold in (interval.low, interval.high) else NOT_SUPPORTED


def _bounding(repetitions: Repetitions, direction: str, decided: str) -> str | None:
    """Why censored values do not carry a verdict, or None where they do.

    A value that is at least x can only strengthen a claim of more, and only weaken the refutation of one.
    """
    wants_more = (direction == ">") == (decided == SUPPORTED)
    seeds: Any = repetitions.at_most if wants_more else repetitions.at_least
    if not seeds:
        return None
    bound = "at most" if wants_more else "at least"
    return f"the values of seeds {sorted(seeds)} are only known to be {bound} what was measured"

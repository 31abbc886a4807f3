"""Who trains how many of a step's seed nodes, where ranks are not equally fast: pure functions of numbers.

The seed nodes of a step are those of plain mini-batches, whatever the shares: only the rank that trains a seed node
changes. So a step's loss is the mean over the same seed nodes, and each gradient weighs as much as before.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import torch


def apportioned(total: int, weights: Sequence[float]) -> list[int]:
    """`total` cut in proportion to weights, at least 0 and not all 0, by largest remainders; ties go to the first.

    Each number is its exact proportion rounded down or up, computed in fractions: equal weights that divide `total` get
    equal numbers. Raises ValueError for other weights.
    """
    parts = [Fraction(weight) for weight in weights]
    if not parts or min(parts) < 0 or sum(parts) == 0:
        raise ValueError(f"weights: found {list(weights)}, expected numbers of at least 0 that are not all 0")
    exact = [total * part / sum(parts) for part in parts]
    counts = [int(part) for part in exact]
    by_remainder = sorted(range(len(parts)), key=lambda place: counts[place] - exact[place])
    for place in by_remainder[: total - sum(counts)]:
        counts[place] += 1
    return counts


def dealt(batches: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
    """What each rank trains of one step's batches, int64 each, if rank r trains at most `sizes[r]` seed nodes.

    A rank keeps the first of its own. What is over goes, in order, to the ranks that have room, in proportion to it.
    Where no batch is larger than its size, nothing moves. Raises ValueError where the batches do not fit.
    """
    kept = [batch[:size] for batch, size in zip(batches, sizes, strict=True)]
    over = torch.cat([batch[size:] for batch, size in zip(batches, sizes, strict=True)])
    room = [size - batch.shape[0] for batch, size in zip(kept, sizes, strict=True)]
    if over.shape[0] > sum(room):
        raise ValueError(f"{sum(len(batch) for batch in batches)} seed nodes do not fit into batches of {sizes}")
    if not over.shape[0]:
        return kept
    moved = over.split(apportioned(over.shape[0], room))
    return [torch.cat(pair) for pair in zip(kept, moved, strict=True)]


def step_times(sizes: Sequence[int], seconds: np.ndarray) -> np.ndarray:
    """Seconds of a step for every batch size from 0 to the largest measured, float64 [ranks, largest + 1].

    `sizes`: the batch sizes measured, ascending from 0; `seconds` [ranks, sizes]. Between them runs a monotone cubic
    spline (Fritsch and Carlson, 1980); a larger batch is never quicker, so what was measured quicker is noise.
    """
    from scipy.interpolate import PchipInterpolator  # slow to import

    rising = np.maximum.accumulate(seconds, axis=1)
    return PchipInterpolator(sizes, rising, axis=1)(np.arange(sizes[-1] + 1))


def equal_finish(times: np.ndarray, total: int) -> list[int]:
    """Batch sizes that add up to `total` and whose slowest rank is as quick as can be, given `step_times`.

    Seed nodes are handed out one by one, each to the rank that would end soonest with it; where several would, to the
    one with the fewest. Raises ValueError where there is no room for `total`.
    """
    num_ranks, room = times.shape[0], times.shape[1] - 1
    if total > num_ranks * room:
        raise ValueError(f"{total} seed nodes do not fit into {num_ranks} batches of at most {room}")
    ranks, sizes = np.divmod(np.arange(num_ranks * room), room)
    order = np.lexsort((ranks, sizes, times[:, 1:].reshape(-1)))
    return np.bincount(ranks[order[:total]], minlength=num_ranks).tolist()


def adjusted(
    shares: Sequence[float], trained: Sequence[int], busy_s: Sequence[float], damping: float, least: float
) -> list[float]:
    """Shares for the next epoch, that add up to 1, from what each rank trained and how long it was busy.

    The target is in proportion to seed nodes per busy second; `damping` is how much of the old shares stays. Shares in
    proportion to what ranks trained stay as they are where all were busy for as long: then nobody waits. A rank that
    trained nothing keeps its share, and none falls below `least`, so that a rank that was slow is measured again.
    """
    old = np.asarray(shares, np.float64) / np.sum(shares)
    worked = np.asarray(trained) > 0
    target = old.copy()
    if worked.any():
        rates = np.asarray(trained)[worked] / np.maximum(np.asarray(busy_s, np.float64)[worked], 1e-9)
        target[worked] = old[worked].sum() * rates / rates.sum()
    new = np.maximum(damping * old + (1 - damping) * target, least)
    return (new / new.sum()).tolist()

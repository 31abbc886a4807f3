"""Mini-batches of unequal size for ranks of unequal speed: measured once, before the first epoch.

After Poplar (Zhang, Hu, Shi and Bai, "Poplar: efficient scaling of distributed DNN training on heterogeneous GPU
clusters", AAAI 2025, arXiv 2408.12596), which profiles each GPU over batch sizes, lays a cubic spline through the
times, and searches for batch sizes whose steps end together and add up to the global batch. Poplar trains dense models
whose samples belong to nobody; here a seed node lies in a part, so that a rank keeps its own as far as its share goes,
and only what is over moves (`_unequal`).

The measurement: ranks take turns, each with batches of 0, 1/4, 1/2, 1, 2, … times `batch_size` seed nodes, up to
`max_growth` times, while the others only answer its requests and take part in the all-reduce. That is done
`measurements` times after a round that is thrown away, so that neither a slow start nor a passing disturbance is taken
for a slow rank. The median is a point of the rank's curve, fetching and synchronising included.
Nothing is learnt meanwhile. What is sent counts as set-up. A rank that is emulated to be slow is so here as in the
first step of training. Poplar grows batches until memory is full, to find the largest; here `max_growth` bounds them.
Its spline may wiggle; this one is monotone, so that every time has one batch size, and the search is exact: no other
batch sizes make the slowest rank quicker. Poplar's choice among stages of ZeRO and its accumulation of gradients have
no counterpart here.

Ranks whose speed changes later keep the shares that they were given; `mixed` follows such changes. The shares are in
`epochs.parquet` (`batch_share`).
"""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from anatomy.training.sampling import generator_for
from anatomy.training.shares import equal_finish, step_times
from anatomy.training.strategies._base import PredictedBytes
from anatomy.training.strategies._unequal import UnequalStrategy

OPTIONS: dict[str, Any] = {
    "properties": {
        "epochs": {"type": "integer", "minimum": 1, "description": "Epochs to train, warm-up included."},
        "fanouts": {
            "type": "array",
            "items": {"type": "integer", "anyOf": [{"minimum": 1}, {"const": -1}]},
            "minItems": 1,
            "description": "Neighbours sampled per node and layer, from the input layer to the output layer; -1: all.",
        },
        "batch_size": {"type": "integer", "minimum": 1, "description": "Seed nodes per rank and step, on average."},
        "shares": {
            "anyOf": [
                {"enum": ["measured", "equal"]},
                {"type": "array", "items": {"type": "number", "exclusiveMinimum": 0}, "minItems": 1},
            ],
            "default": "measured",
            "description": "Of a step's seed nodes, each rank's share: measured, equal, or one number per rank, "
            "relative to each other.",
        },
        "measurements": {
            "type": "integer",
            "minimum": 1,
            "default": 15,
            "description": "Steps measured for each rank and batch size, of which the median counts; with few, equal "
            "ranks get unequal shares by chance.",
        },
        "max_growth": {
            "type": "number",
            "minimum": 1,
            "default": 4,
            "description": "Most seed nodes of a rank in a step, as a multiple of batch_size, that are measured.",
        },
    },
    "required": ["epochs", "fanouts", "batch_size"],
}

BASE = "minibatch"
PACKAGES = ("numba",)
DEPENDS_ON_TIMES = True
"""Two runs of one seed need not be equal, since what they train depends on how quick the ranks are."""

EXACT = ({"shares": "equal"},)
GRADIENTS = None

PAPER: dict[str, Any] = {
    "gain": 3.92,
    "of": "training throughput, 1.02 to",
    "over": "existing systems for heterogeneous clusters, of dense language models",
    "on": "three GPU clusters of two kinds of GPUs each",
    "source": "abstract of Poplar, AAAI 2025",
}


class Strategy(UnequalStrategy):
    """See the module."""

    def first_shares(self) -> list[float]:
        if self.context.specification.strategy["shares"] != "measured" or self.context.communicator.size == 1:
            return super().first_shares()
        sizes = self.measured_sizes()
        return [float(size) for size in equal_finish(step_times(sizes, self.measure(sizes)), self.largest_batch())]

    def predict(self) -> PredictedBytes:
        """As `minibatch`, but for what measuring fetches, which no closed form tells."""
        measures = self.context.specification.strategy["shares"] == "measured" and self.context.communicator.size > 1
        return replace(super().predict(), sent_features_bytes_once=None) if measures else super().predict()

    def measured_sizes(self) -> list[int]:
        """Batch sizes to measure, ascending from 0; none is larger than a step's seed nodes."""
        options = self.context.specification.strategy
        own, whole = options["batch_size"], self.largest_batch()
        largest = min(whole, int(own * options["max_growth"]))
        growing = {own // 4, own // 2, *(own << power for power in range(largest.bit_length()))}
        return sorted({0, largest} | {size for size in growing if size < largest})

    def measure(self, sizes: list[int]) -> np.ndarray:
        """Seconds of a step of each rank with each batch size, float64 [ranks, sizes], the same on every rank."""
        context = self.context
        communicator, steps_begun = context.communicator, context.disturbance.steps
        num_sweeps = 1 + context.specification.strategy["measurements"]
        elapsed_s = np.empty((num_sweeps, communicator.size, len(sizes)))
        generator = generator_for(context.specification.seed, communicator.rank)
        own, *others = self._seed_nodes_of[communicator.rank :] + self._seed_nodes_of[: communicator.rank]
        nodes = torch.cat([own[torch.randperm(own.shape[0], generator=generator)], *others])
        context.model.train()
        with torch.random.fork_rng([context.device] if context.device.type == "cuda" else []):
            for sweep, rank, place in np.ndindex(elapsed_s.shape):
                seeds = nodes[: sizes[place] if rank == communicator.rank else 0]
                elapsed_s[sweep, rank, place] = self._timed_step(seeds, generator)
        context.disturbance.steps = steps_begun
        seconds = torch.zeros(communicator.size, len(sizes), dtype=torch.float64, device=communicator.device)
        seconds[communicator.rank] = torch.from_numpy(np.median(elapsed_s[1:, communicator.rank], axis=0))
        communicator.sum(seconds)
        return seconds.cpu().numpy()

    def _timed_step(self, seeds: torch.Tensor, generator: torch.Generator) -> float:
        """Seconds of a step that updates nothing, with these seed nodes of this rank's."""
        context = self.context
        context.communicator.wait_for_all()
        start = time.perf_counter()
        with context.disturbance.step():
            context.gradients.backward(self._unprepared_losses(seeds, generator))
            context.gradients.synchronise()
        return time.perf_counter() - start

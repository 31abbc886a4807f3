"""Buckets of MG-WFBP: gradients are merged where that saves more start-up time than it costs waiting.

After Shi, Chu and Li, "MG-WFBP: Efficient Data Communication for Distributed Synchronous SGD Algorithms", INFOCOM 2019,
arXiv 1811.11141. An all-reduce of M bytes takes alpha + beta M seconds. Its merging condition: going from the last
gradient l to the first, l is merged into l - 1, the next to be ready, if

    ready(l - 1) < begin(l) + alpha

where ready is when the backward pass has made a gradient, and begin when its all-reduce could start, after it is ready
and after the one before has ended. Then waiting for l - 1 takes less than the start-up that one all-reduce for both
saves. The authors' code asks besides that l - 1 be ready before the all-reduce of l ends, which the condition implies.
Each decision is the better one for the next gradient; the plan as a whole need not be the best of all.

Measured at the start: alpha and beta, by all-reduces of several sizes, least squares of their medians; and when
gradients are ready, in the first steps, which send all in one bucket. Both are means over the ranks, so that all make
the same plan. It depends on measured times: two runs may cut differently, and sums of three ranks or more may then
differ in their last bit.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.gradients._base import Piece
from anatomy.training.gradients._bucketed import BucketedSynchroniser

OPTIONS: dict[str, Any] = {
    "properties": {
        "measured_steps": {
            "type": "integer",
            "minimum": 1,
            "default": 4,
            "description": "First steps in which it is measured when gradients are ready; the very first is left out.",
        },
    },
    "required": [],
}
EXACT = ({"measured_steps": 1},)

_PROBE_VALUES = (256, 4096, 16384, 65536, 262144)
"""Float32 values of the all-reduces that alpha and beta are measured with."""
_REPETITIONS = 5


class Policy(BucketedSynchroniser):
    """See the module."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        number = len(self.parameters.spans)
        self.set_buckets([number])
        self._latency = self._measured_latency() if self.communicator.size > 1 else (0.0, 0.0)
        self._steps_left = self.options["measured_steps"] + 1
        self._ready_s = torch.zeros(number + 1, dtype=torch.float64)  # sums, and of how many steps
        self._step_ready_s = np.zeros(number)

    def backward(self, pieces: Iterable[Piece]) -> None:
        if not self._steps_left:
            super().backward(pieces)
            return
        self._step_ready_s[:] = 0
        super().backward(self._timed(pieces))
        self._measure()

    def ready(self, number: int, parameter: torch.Tensor) -> None:
        if self._steps_left:
            if parameter.is_cuda:
                torch.cuda.synchronize(parameter.device)
            self._step_ready_s[number] = time.perf_counter() - self._start
        super().ready(number, parameter)

    def state(self) -> dict[str, torch.Tensor]:
        return {"sizes": torch.tensor(self._sizes), "left": torch.tensor(self._steps_left), "ready": self._ready_s}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self.set_buckets(state["sizes"].tolist())
        self._steps_left, self._ready_s = int(state["left"]), state["ready"]

    def _timed(self, pieces: Iterable[Piece]) -> Iterable[Piece]:
        """The pieces; the clock starts when the forward pass is done."""
        for piece in pieces:
            self._start = time.perf_counter()
            yield piece

    def _measure(self) -> None:
        """Add a step's times up, and make the plan after the last of them."""
        is_first = self._steps_left == self.options["measured_steps"] + 1
        if not is_first and self._step_ready_s.any():
            self._ready_s[:-1] += torch.from_numpy(self._step_ready_s)
            self._ready_s[-1] += 1
        self._steps_left -= 1
        if self._steps_left:
            return
        with phase(Phase.SYNC):
            summed = self._ready_s.to(self.communicator.device, copy=True)
            self.communicator.sum(summed)
        ready_s = (summed[:-1] / summed[-1].clamp(min=1)).tolist()
        sizes_bytes = [4 * (stop - start) for _, start, stop in self.parameters.spans]
        self.set_buckets(merged_buckets(ready_s, sizes_bytes, *self._latency))

    def _measured_latency(self) -> tuple[float, float]:
        """alpha in s and beta in s per byte."""
        medians = []
        for num_values in _PROBE_VALUES:
            values, times = torch.zeros(num_values, device=self.communicator.device), []
            for _ in range(_REPETITIONS):
                self.communicator.wait_for_all()
                start = time.perf_counter()
                self.communicator.sum(values)
                values[0].item()  # on a GPU, the sum's end
                times.append(time.perf_counter() - start)
            medians.append(np.median(times))
        beta, alpha = np.polyfit(4 * np.array(_PROBE_VALUES), medians, 1)
        fitted = torch.tensor([max(alpha, 0.0), max(beta, 0.0)], dtype=torch.float64, device=self.communicator.device)
        self.communicator.sum(fitted)
        alpha, beta = (fitted / self.communicator.size).tolist()
        return alpha, beta


def merged_buckets(
    ready_s: Sequence[float], sizes_bytes: Sequence[int], alpha_s: float, beta_s_per_byte: float
) -> list[int]:
    """How many gradients each bucket takes, from the last one on, by the merging condition; see the module.

    `ready_s`, `sizes_bytes`: of each gradient, the first layer's first.
    """
    ready_s = list(accumulate(reversed(ready_s), max))  # a gradient that is ready early waits for those before it
    buckets: list[int] = []
    gathered, filled, free_s = 1, 0, 0.0
    for number, size in enumerate(reversed(sizes_bytes)):
        filled += size
        begin_s = max(ready_s[number], free_s)
        if number + 1 < len(sizes_bytes) and ready_s[number + 1] < begin_s + alpha_s:
            gathered += 1
            continue
        buckets.append(gathered)
        free_s = begin_s + alpha_s + beta_s_per_byte * filled
        gathered, filled = 1, 0
    return buckets

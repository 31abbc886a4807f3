"""All-reduces during the backward pass: each of some consecutive gradients, begun when the last of them is ready.

Gradients become ready from the last layer to the first, so the first bucket is the end of the flat buffer, with the
loss and the number of seed nodes, which are known before. Every rank begins its buckets in that order, whichever is
ready first, as DistributedDataParallel does (Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel
Training", VLDB 2020), so that ranks whose graphs of operations differ, or that have no seed nodes, never wait for each
other's buckets crosswise. Gradients that the loss does not depend on are sent after the backward pass.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.gradients._base import GradientSynchroniser, Piece


class BucketedSynchroniser(GradientSynchroniser):
    """See the module. A gradient's number is its place in `parameters.spans`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._finishes: list[Callable[[], None]] = []
        for number, (parameter, _, _) in enumerate(self.parameters.spans):
            parameter.register_post_accumulate_grad_hook(partial(self.ready, number))

    def set_buckets(self, sizes: Sequence[int]) -> None:
        """How many gradients each bucket takes, the last gradient's bucket first."""
        spans, stop, number = self.parameters.spans, self._bucket.numel(), len(self.parameters.spans)
        self._buckets: list[torch.Tensor] = []
        self._bucket_of = [0] * number
        for bucket, size in enumerate(sizes):
            self._bucket_of[number - size : number] = [bucket] * size
            number -= size
            self._buckets.append(self._bucket[spans[number][1] : stop])
            stop = spans[number][1]
        self._sizes = list(sizes)

    def backward(self, pieces: Iterable[Piece]) -> None:
        self._missing, self._finishes = list(self._sizes), []
        super().backward(pieces)
        with phase(Phase.SYNC):
            while len(self._finishes) < len(self._buckets):
                self._start_next()

    def ready(self, number: int, parameter: torch.Tensor) -> None:
        """A gradient is complete; called within the backward pass."""
        self._missing[self._bucket_of[number]] -= 1
        while len(self._finishes) < len(self._buckets) and not self._missing[len(self._finishes)]:
            with phase(Phase.SYNC):
                self._start_next()

    def synchronise(self) -> tuple[float, int]:
        with phase(Phase.SYNC):
            for finish in self._finishes:
                finish()
            return self._divided()

    def _start_next(self) -> None:
        self._finishes.append(self._start_sum(self._buckets[len(self._finishes)]))

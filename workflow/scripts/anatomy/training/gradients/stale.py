"""Bounded staleness: gradients are all-reduced while later steps run, and applied a fixed number of steps late.

w(t + 1) = Adam(w(t), mean gradient of step t - s). A step begins the all-reduce of its gradients and ends that of s
steps before, so up to s + 1 are on their way. The first s steps of a run update nothing, and its last s gradients are
never used.

Of the two ways to bound staleness, a bound on the distance of the ranks' clocks with asynchronous updates (SSP: Ho et
al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013; in waves of
mini-batches HetPipe: Park et al., USENIX ATC 2020, arXiv 2005.14038) and a fixed delay of the summed gradients
(Pipe-SGD: Li et al., NeurIPS 2018, arXiv 1811.03619), this is the second, without a server. It is safe: all ranks apply
the same sums in the same order, so that their weights stay equal to the bit whoever is late; and it keeps SSP's
condition, since no rank ends a step before all have begun the one s steps earlier, that is, clocks differ by s at most.
Delayed gradients still converge, more slowly with larger s (Langford, Smola and Zinkevich, "Slow Learners are Fast",
NIPS 2009). All ranks begin the same all-reduces in the same order, so none can wait for ever.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.gradients._base import GradientSynchroniser, Piece
from anatomy.training.optimizer import Adam

OPTIONS: dict[str, Any] = {
    "properties": {
        "staleness": {
            "type": "integer",
            "minimum": 0,
            "default": 1,
            "description": "Steps by which gradients are applied late; 0: in their own step.",
        },
    },
    "required": [],
}
EXACT = ({"staleness": 0},)


class Policy(GradientSynchroniser):
    """See the module."""

    sums_losses = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._spare = [torch.empty_like(self._bucket) for _ in range(self.options["staleness"] + 1)]
        self._on_their_way: deque[tuple[torch.Tensor, Callable[[], None]]] = deque()

    def update(self, optimizer: Adam, pieces: Iterable[Piece]) -> tuple[float, int]:
        self.backward(pieces)
        own = self.loss_and_count()
        with phase(Phase.SYNC):
            buffer = self._spare.pop()
            buffer.copy_(self._bucket)
            self._on_their_way.append((buffer, self._start_sum(buffer)))
            if self._spare:
                return own
            buffer, finish = self._on_their_way.popleft()
            finish()
            self._bucket.copy_(buffer)
            self._spare.append(buffer)
            self._divided()
        self.optimise(optimizer)
        return own

    def state(self) -> dict[str, torch.Tensor]:
        """`sums` float32 [steps on their way, weights + EXTRA_VALUES], complete, the oldest first."""
        for _, finish in self._on_their_way:
            finish()
        self._on_their_way = deque((buffer, _nothing) for buffer, _ in self._on_their_way)
        return {"sums": torch.stack([*(buffer.cpu() for buffer, _ in self._on_their_way), self._spare[0].cpu()])[:-1]}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        for sums in state["sums"]:
            buffer = self._spare.pop()
            buffer.copy_(sums)
            self._on_their_way.append((buffer, _nothing))


def _nothing() -> None:
    """Waits for a sum that is complete."""

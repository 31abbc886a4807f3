"""Straggler cut-off: when a share of the ranks has worked through its step, the others stop where they are.

The pre-emption threshold of DD-PPO (Wijmans et al., "DD-PPO: Learning Near-Perfect PointGoal Navigators from 2.5
Billion Frames", ICLR 2020, arXiv 1911.00357): a worker that has collected at least a quarter of its experience stops
collecting when a share of the workers, 60% in the paper, has collected all of theirs. Translated: what a rank collects
in a step are the gradients of its micro-batches. After each of them, once it has done `least` of them, it asks how many
ranks have finished; if that is the share or more, it contributes what it has. All contributions are summed and divided
by the seed nodes that they are of, so that the step is one with a smaller batch; seed nodes that are cut off are not
trained on in that epoch. A rank that has no seed nodes in a step has finished at once. The authors' code asks for more
than the share; here the share itself is enough. With 1 nobody is cut off.

Ranks learn of each other without a collective: each adds 1 to a counter in the store by which the process group met (as
the authors' code does), when it has finished or was cut off. The counter is never reset: all ranks have added theirs
before any leaves the step's all-reduce, so in step t it counts from t times the ranks. Reading it may come late, which
costs a micro-batch and nothing else: the all-reduce is as in `dense`, and no rank waits for anything but that.

Who is cut off depends on how fast ranks are at the moment, so that two runs differ.
"""

import math
from collections.abc import Iterable
from itertools import count
from typing import Any

import torch.distributed as dist

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.communication import Communicator
from anatomy.training.gradients._base import GradientSynchroniser, Piece

OPTIONS: dict[str, Any] = {
    "properties": {
        "share": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 1,
            "default": 0.6,
            "description": "Share of the ranks that have finished at which the others stop; 1: all finish.",
        },
        "micro_batches": {
            "type": "integer",
            "minimum": 1,
            "default": 4,
            "description": "Pieces that a step's seed nodes are worked through in.",
        },
        "least": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 1,
            "default": 0.25,
            "description": "Share of its micro-batches that a rank does in any case.",
        },
    },
    "required": [],
}
EXACT = ({"share": 1.0},)
NEEDS = ("own_losses", "micro_batches")

_KEY = "anatomy/finished"


class Policy(GradientSynchroniser):
    """See the module."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.micro_batches = self.options["micro_batches"]
        self._least = math.ceil(self.options["least"] * self.micro_batches)
        self._enough = math.ceil(self.options["share"] * self.communicator.size)
        self._finished = FinishedRanks(self.communicator)

    def backward(self, pieces: Iterable[Piece]) -> None:
        super().backward(self._until_cut_off(pieces))
        self.communicator.before()
        with phase(Phase.SYNC):
            self._finished.add_own()

    def _until_cut_off(self, pieces: Iterable[Piece]) -> Iterable[Piece]:
        """The pieces, computed one by one as they are taken, up to where enough ranks have finished."""
        remaining = iter(pieces)
        for done in count():
            if done >= self._least:
                self.communicator.before()
                with phase(Phase.SYNC):
                    if self._finished.count() >= self._enough:
                        return
            piece = next(remaining, None)
            if piece is None:
                return
            yield piece


class FinishedRanks:
    """How many ranks have finished the step that this one is in, known by a counter that all of them share."""

    def __init__(self, communicator: Communicator) -> None:
        self._size = communicator.size
        self._steps_before = 0
        if self._size > 1:
            self._store = dist.distributed_c10d._get_default_store()
            self._start = self._store.add(_KEY, 0)  # a process group may have trained another run before
            communicator.wait_for_all()

    def add_own(self) -> None:
        """Say that this rank has finished; once per step."""
        self._steps_before += 1
        if self._size > 1:
            self._store.add(_KEY, 1)

    def count(self) -> int:
        """Ranks that have finished this rank's step."""
        if self._size == 1:
            return 0
        return int(self._store.get(_KEY)) - self._start - self._steps_before * self._size

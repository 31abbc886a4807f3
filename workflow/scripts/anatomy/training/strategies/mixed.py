"""Mini-batches on ranks of different devices, whose shares of the batch follow what is measured while they train.

After HyScale-GNN (Lin and Prasanna, "HyScale-GNN: a scalable hybrid GNN training system on single-node heterogeneous
architecture", arXiv 2303.00158, 2023): processors train beside accelerators, synchronously, and a dynamic resource
management moves work from the slower to the faster. Of its two means, moving seed nodes between trainers is
implemented. Moving threads between sampling, loading and training is not: here a rank is a process that does all three,
with the threads that it was given. Neither is its two-stage prefetching part of this strategy, nor its model of the
machine, by which it chooses the first shares: here they are equal, or the ones given.

The rule is this project's. Every `rebalance_every` epochs all ranks learn what each trained in the last one and how
long it was busy, that is, the epoch's time less what it was blocked in communication. The next shares are
`damping` times the old ones and for the rest in proportion to seed nodes per busy second (`shares.adjusted`), and no
rank has less than about one seed node per step. Where ranks are busy for equally long, nothing changes. Times differ
from run to run, and with them the shares; those of each epoch are in `epochs.parquet` (`batch_share`).

With `training.device: cuda`, the last `cpu_ranks` ranks of each host train on the CPU and the others on a GPU; with
`cpu`, all are on the CPU. Messages go over Gloo, so that a CPU can take part. All ranks take the same summed gradients;
what a CPU and a GPU make of them differs by rounding.
"""

import time
from dataclasses import replace
from typing import Any

import torch

from anatomy.training.communication import Kind, ring_bytes
from anatomy.training.shares import adjusted
from anatomy.training.strategies._base import EpochResult, PredictedBytes
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
                {"const": "equal"},
                {"type": "array", "items": {"type": "number", "exclusiveMinimum": 0}, "minItems": 1},
            ],
            "default": "equal",
            "description": "Of a step's seed nodes, each rank's share in the first epoch: equal, or one number per "
            "rank, relative to each other.",
        },
        "rebalance_every": {
            "type": "integer",
            "minimum": 0,
            "default": 1,
            "description": "Epochs after which the shares are adjusted; 0: never.",
        },
        "damping": {
            "type": "number",
            "minimum": 0,
            "exclusiveMaximum": 1,
            "default": 0.5,
            "description": "How much of the old shares stays when they are adjusted.",
        },
        "cpu_ranks": {
            "type": "integer",
            "minimum": 0,
            "default": 0,
            "description": "Ranks of each host, its last ones, that train on the CPU where `training.device` is cuda.",
        },
    },
    "required": ["epochs", "fanouts", "batch_size"],
}

BASE = "minibatch"
PACKAGES = ("numba",)
DEPENDS_ON_TIMES = True
"""Two runs of one seed need not be equal, since what they train depends on how quick the ranks are."""

EXACT = ({"rebalance_every": 0},)

COMMUNICATION = ("gloo",)
"""Transports that it can use."""

PAPER: dict[str, Any] = {
    "gain": 2.08,
    "of": "speed of an epoch, up to",
    "over": "PyTorch Geometric on several GPUs",
    "on": "one host with processors and GPUs",
    "source": "abstract of HyScale-GNN, arXiv 2303.00158",
}

TOLD_BYTES = 16
"""That the ranks add up for each rank to adjust the shares: what it trained and how long it was busy, float64."""


class Strategy(UnequalStrategy):
    """See the module."""

    def train_epoch(self, epoch: int, record_accesses: bool = False) -> EpochResult:
        communicator = self.context.communicator
        start, blocked_before_s = time.perf_counter(), communicator.blocked_s
        result = super().train_epoch(epoch, record_accesses)
        busy_s = time.perf_counter() - start - (communicator.blocked_s - blocked_before_s)
        every = self.context.specification.strategy["rebalance_every"]
        if every and (epoch + 1) % every == 0:
            self._rebalance(result.train_nodes, busy_s)
        return result

    def predict(self) -> PredictedBytes:
        predicted, every = super().predict(), self.context.specification.strategy["rebalance_every"]
        if every == 0 or predicted.sent_weights_bytes_per_epoch is None:
            return predicted
        if every > 1:  # epochs differ
            return replace(predicted, sent_weights_bytes_per_epoch=None)
        size = self.context.communicator.size
        told = sum(ring_bytes(TOLD_BYTES * size, rank, size) for rank in range(size))
        return replace(predicted, sent_weights_bytes_per_epoch=predicted.sent_weights_bytes_per_epoch + told)

    def _rebalance(self, trained: int, busy_s: float) -> None:
        """Tell all ranks what this one did in the epoch, learn what they did, and set the next shares."""
        communicator = self.context.communicator
        told = torch.zeros(2, communicator.size, dtype=torch.float64)
        told[:, communicator.rank] = torch.tensor([trained, busy_s])
        communicator.sum(told, Kind.WEIGHTS)
        nodes, seconds = told.tolist()
        damping = self.context.specification.strategy["damping"]
        self.shares = adjusted(self.shares, nodes, seconds, damping, 1 / self.largest_batch())

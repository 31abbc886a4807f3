"""Synchronisation with neighbours alone: every rank keeps a model of its own and mixes it with those beside it."""

import numpy as np
import torch

from anatomy.partitions.store import Partition
from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.communication import Communicator, Kind
from anatomy.training.gradients._own_models import Averaged
from anatomy.training.optimizer import FlatParameters

VALUES_PER_PARAMETER = 2
"""What a rank sends each neighbour in a step: its weights and its gradients."""


class NeighbourMixing(Averaged):
    """Before each update, weights and gradients become weighted means of the neighbours' and a rank's own.

    `weights` float64 [ranks, ranks], doubly stochastic, 0 between ranks that are no neighbours. `num_seed_nodes`: of
    all ranks in one step; mixed gradients are scaled so that with uniform weights they are those of the mean loss.
    """

    def __init__(
        self, parameters: FlatParameters, communicator: Communicator, weights: np.ndarray, num_seed_nodes: int
    ) -> None:
        super().__init__(parameters, communicator)
        self._weights = weights[communicator.rank].tolist()
        self._scale = communicator.size / num_seed_nodes
        self._counts = [int(weight > 0 and rank != communicator.rank) for rank, weight in enumerate(self._weights)]
        length = VALUES_PER_PARAMETER * parameters.values.numel()
        self._send = torch.empty(sum(self._counts), length, device=communicator.device)
        self._received = torch.empty_like(self._send)
        self._own = torch.empty(length, device=communicator.device)
        self._mixed = torch.empty_like(self._own)

    def synchronise(self) -> tuple[float, int]:
        """Mix with the neighbours; returns the summed loss and the number of seed nodes of this rank alone."""
        values, gradients = self.parameters.values, self.parameters.gradients
        with phase(Phase.SYNC):
            self._own[: values.numel()].copy_(values)
            self._own[values.numel() :].copy_(gradients)
            self._send.copy_(self._own)
            self.communicator.exchange(self._send, self._counts, self._received, self._counts, Kind.WEIGHTS)
            self._mix()
            values.copy_(self._mixed[: values.numel()])
            gradients.copy_(self._mixed[values.numel() :]).mul_(self._scale)
            return self.loss_and_count()

    def _mix(self) -> None:
        """In the order of the ranks, so that ranks with equal weights come to the same bits."""
        received = iter(self._received)
        self._mixed.zero_()
        for rank, weight in enumerate(self._weights):
            if rank == self.communicator.rank:
                self._mixed.add_(self._own, alpha=weight)
            elif weight > 0:
                self._mixed.add_(next(received), alpha=weight)


def ring(size: int) -> np.ndarray:
    """Who is beside whom in a ring, bool [size, size]."""
    after = np.roll(np.eye(size, dtype=bool), 1, axis=1)
    return (after | after.T) & ~np.eye(size, dtype=bool)


def complete(size: int) -> np.ndarray:
    """All ranks are neighbours, bool [size, size]."""
    return ~np.eye(size, dtype=bool)


def touching(partition: Partition) -> np.ndarray:
    """Which parts share an edge, bool [parts, parts]."""
    parts = range(partition.num_parts)
    needed = np.array([[len(partition.halo(owner, consumer)) > 0 for consumer in parts] for owner in parts])
    return needed | needed.T


def metropolis_weights(neighbours: np.ndarray) -> np.ndarray:
    """Mixing weights over a symmetric bool [ranks, ranks] without a diagonal, float64: symmetric, every row sums to 1.

    1 / (1 + the larger degree) for neighbours, the rest for oneself (Xiao, Boyd and Lall, "A scheme for robust
    distributed sensor fusion based on average consensus", IPSN 2005). Uniform where all ranks are neighbours, a third
    each in a ring.
    """
    degrees = neighbours.sum(1)
    weights = np.where(neighbours, 1 / (1 + np.maximum(degrees[:, None], degrees[None, :])), 0.0)
    np.fill_diagonal(weights, 1 - weights.sum(1))
    return weights

"""Policies of gradient synchronisation in one process, from their definitions: what distributed training must equal.

Weights and gradients are flat, float32 [weights] of each rank. A step is told each rank's gradient of its summed loss
and its number of seed nodes.
"""

from collections import deque
from collections.abc import Sequence

import torch

RATE, BETAS, EPSILON = 0.01, (0.9, 0.999), 1e-8


class Ranks:
    """Each rank's weights and Adam's moments, float64, with how often each weight was updated."""

    def __init__(self, start: torch.Tensor, num_ranks: int, weight_decay: float) -> None:
        self.weights = [start.clone() for _ in range(num_ranks)]
        self.moments = [[torch.zeros_like(start).double() for _ in BETAS] for _ in range(num_ranks)]
        self.updates = [torch.zeros_like(start).double() for _ in range(num_ranks)]
        self._decay = weight_decay

    def update(self, rank: int, gradient: torch.Tensor, where: torch.Tensor | None = None) -> None:
        """Adam on the weights `where`, all by default."""
        where = torch.ones_like(gradient, dtype=torch.bool) if where is None else where
        gradient = gradient.double() + self._decay * self.weights[rank].double()
        self.updates[rank] += where
        corrected = []
        for place, (beta, value) in enumerate(zip(BETAS, (gradient, gradient**2), strict=True)):
            moment = beta * self.moments[rank][place] + (1 - beta) * value
            self.moments[rank][place] = torch.where(where, moment, self.moments[rank][place])
            corrected.append(self.moments[rank][place] / (1 - beta ** self.updates[rank]))
        moved = self.weights[rank].double() - RATE * corrected[0] / (corrected[1].sqrt() + EPSILON)
        self.weights[rank] = torch.where(where, moved, self.weights[rank].double()).float()


class Simulated:
    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def update_all(self, gradient: torch.Tensor, where: torch.Tensor | None = None) -> None:
        for rank in range(len(self.ranks.weights)):
            self.ranks.update(rank, gradient, where)

    def model(self) -> torch.Tensor:
        return self.ranks.weights[0]


class Stale(Simulated):
    def __init__(self, ranks: Ranks, staleness: int) -> None:
        super().__init__(ranks)
        self.waiting: deque[torch.Tensor] = deque()
        self.staleness = staleness

    def step(self, gradients: Sequence[torch.Tensor], counts: Sequence[int]) -> None:
        self.waiting.append(sum(gradients) / sum(counts))
        if len(self.waiting) > self.staleness:
            self.update_all(self.waiting.popleft())


class LocalSteps(Simulated):
    def __init__(self, ranks: Ranks, steps: int) -> None:
        super().__init__(ranks)
        self.steps, self.done = steps, 0
        self.trained = torch.zeros(len(ranks.weights))

    def step(self, gradients: Sequence[torch.Tensor], counts: Sequence[int]) -> None:
        self.done += 1
        self.trained += torch.tensor(counts)
        if self.done % self.steps:
            for rank, (gradient, count) in enumerate(zip(gradients, counts, strict=True)):
                self.ranks.update(rank, gradient / max(count, 1))
            return
        moments = [self.mean([own[place] for own in self.ranks.moments]) for place in (0, 1)]
        weights = self.mean(self.ranks.weights)
        self.ranks.weights = [weights.clone() for _ in counts]
        self.ranks.moments = [[moment.clone() for moment in moments] for _ in counts]
        self.trained.zero_()
        self.update_all(sum(gradients) / sum(counts))

    def mean(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        return sum(weight * value for weight, value in zip(self.trained, values, strict=True)) / self.trained.sum()

    def model(self) -> torch.Tensor:
        return self.mean(self.ranks.weights) if self.trained.sum() else self.ranks.weights[0]


class Elastic(Simulated):
    def __init__(self, ranks: Ranks, period: int, beta: float) -> None:
        super().__init__(ranks)
        self.period, self.beta, self.done = period, beta, 0
        self.centre = ranks.weights[0].clone()

    def step(self, gradients: Sequence[torch.Tensor], counts: Sequence[int]) -> None:
        before, centre = [weights.clone() for weights in self.ranks.weights], self.centre
        for rank, (gradient, count) in enumerate(zip(gradients, counts, strict=True)):
            self.ranks.update(rank, gradient / max(count, 1))
        if self.done % self.period == 0:
            alpha = self.beta / len(before)
            for rank, weights in enumerate(before):
                self.ranks.weights[rank] = self.ranks.weights[rank] - alpha * (weights - centre)
            self.centre = centre + self.beta * (sum(before) / len(before) - centre)
        self.done += 1

    def model(self) -> torch.Tensor:
        return self.centre


class Sparse(Simulated):
    def __init__(self, ranks: Ranks, density: float, chunk_values: int, momentum: float, warmup_steps: int = 0) -> None:
        super().__init__(ranks)
        self.momentum, self.warmup_steps, self.done = momentum, warmup_steps, 0
        places = torch.arange(len(ranks.weights[0]))
        self.chunks = [places // chunk_values == chunk for chunk in range(int(places[-1]) // chunk_values + 1)]
        self.num_sent = max(1, -int(-density * len(self.chunks) // 1))
        self.velocities = [torch.zeros_like(weights) for weights in ranks.weights]
        self.left = [torch.zeros_like(weights) for weights in ranks.weights]

    def step(self, gradients: Sequence[torch.Tensor], counts: Sequence[int]) -> None:
        for velocity, left, gradient in zip(self.velocities, self.left, gradients, strict=True):
            velocity.mul_(self.momentum).add_(gradient / sum(counts))
            left.add_(velocity)
        norms = torch.stack([sum(left[chunk].abs().sum() for left in self.left) for chunk in self.chunks])
        number = len(self.chunks) if self.done < self.warmup_steps else self.num_sent
        where = sum(self.chunks[chunk] for chunk in norms.topk(number).indices).bool()
        self.update_all(sum(self.left), where)
        for kept in (*self.velocities, *self.left):
            kept[where] = 0
        self.done += 1


SIMULATIONS = {"stale": Stale, "local_steps": LocalSteps, "elastic": Elastic, "sparse": Sparse}

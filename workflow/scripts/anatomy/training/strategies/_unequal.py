"""What strategies of mini-batches with unequal shares have in common.

Every step trains the seed nodes that `minibatch` trains in it, whatever the shares; a rank whose batch is larger than
its share hands the rest to ranks that have room (`shares.dealt`). All ranks find that out by themselves, from the seed
and the shares, and have as many steps as with `minibatch`. Gradients are summed and divided by the seed nodes of all
ranks, so that each rank's weigh as much as its share of the batch. Features of seed nodes of other parts are fetched.
With equal shares nothing moves: the batches are those of `minibatch`. With all neighbours and without dropout the
losses and weights are those of `minibatch` to float tolerance with any shares; sampled neighbours are other ones, since
each rank samples for its own batch.
"""

from collections.abc import Mapping

import torch

from anatomy.training.sampling import generator_for
from anatomy.training.shares import apportioned, dealt
from anatomy.training.strategies._base import EpochResult
from anatomy.training.strategies.minibatch import Strategy as Minibatch


class UnequalStrategy(Minibatch):
    """See the module. `shares`, of each step's seed nodes by rank, relative to each other, are there after `prepare`.

    A checkpoint carries them, so that a run that goes on has the shares that were measured at first.
    """

    shares: list[float]

    def prepare(self) -> None:
        super().prepare()
        ranks = range(self.context.communicator.size)
        self._seed_nodes_of = [torch.from_numpy(self._training_nodes(rank)) for rank in ranks]
        self.shares = self.first_shares()

    def first_shares(self) -> list[float]:
        """The shares of the first epoch; as the option `shares` says by default."""
        given = self.context.specification.strategy["shares"]
        return given if isinstance(given, list) else [1.0] * self.context.communicator.size

    def train_epoch(self, epoch: int, record_accesses: bool = False) -> EpochResult:
        result = super().train_epoch(epoch, record_accesses)
        result.batch_share = self.shares[self.context.communicator.rank] / sum(self.shares)
        return result

    def batches(self, epoch: int, generator: torch.Generator) -> list[torch.Tensor]:
        own, seed = self.context.communicator.rank, self.context.specification.seed
        by_rank = [
            self.own_batches(nodes, generator if rank == own else generator_for(seed, rank, epoch))
            for rank, nodes in enumerate(self._seed_nodes_of)
        ]
        sizes = apportioned(self.largest_batch(), self.shares)
        return [dealt(step, sizes)[own] for step in zip(*by_rank, strict=True)]

    def largest_batch(self) -> int:
        return super().largest_batch() * self.context.communicator.size

    def state(self) -> dict[str, torch.Tensor]:
        return super().state() | {"shares": torch.tensor(self.shares, dtype=torch.float64)}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self.shares = state["shares"].tolist()
        super().restore({name: value for name, value in state.items() if name != "shares"})

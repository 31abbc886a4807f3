"""Local steps: every rank updates weights of its own by its own gradients, and every so many steps they are averaged.

Federated averaging or local SGD (McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, arXiv 1602.05629; Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, arXiv
1805.09767). The mean is weighted by the seed nodes that each rank has trained on since the last one, as in the former.

Both papers update by plain SGD. Here it is Adam, so three more things happen in a step that averages, before its
update: both moments are averaged with the weights, since Adam with moments of each rank's own need not converge (Chen,
Li and Li, "Toward Communication Efficient Adaptive Gradient Method", FODS 2020, arXiv 2109.05109), and gradients are
summed as in `dense`. All ranks then take the same update, and are equal after it. With an average in every step that is
`dense`. One that averages sends four values per weight, where `dense` sends one per step.

A rank without seed nodes in a step updates with gradients of 0. The model of a run is the weighted mean.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.gradients._base import Piece
from anatomy.training.gradients._own_models import OwnModels
from anatomy.training.optimizer import Adam

OPTIONS: dict[str, Any] = {
    "properties": {
        "steps": {
            "type": "integer",
            "minimum": 1,
            "default": 4,
            "description": "Steps from one average to the next; 1: in every step.",
        },
    },
    "required": [],
}
EXACT = ({"steps": 1},)
NEEDS = ("own_losses",)


class Policy(OwnModels):
    """See the module."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._done, self._seed_nodes = 0, 0

    def update(self, optimizer: Adam, pieces: Iterable[Piece]) -> tuple[float, int]:
        self.backward(pieces)
        loss_sum, count = self.loss_and_count()
        self._done, self._seed_nodes = self._done + 1, self._seed_nodes + count
        if self._done % self.options["steps"] == 0:
            with phase(Phase.SYNC):
                self._average(optimizer)
        else:
            self._divided()
        self.optimise(optimizer)
        return loss_sum, count

    def common_model(self) -> torch.Tensor:
        values = self.parameters.values
        summed = torch.cat([values * self._seed_nodes, values.new_tensor([self._seed_nodes])])
        self._start_sum(summed)()
        return summed[:-1] / summed[-1] if summed[-1] else values

    def bytes_per_epoch(self, steps: int) -> int | None:
        averages, rest = divmod(steps, self.options["steps"])
        return (
            None if rest else averages * self._ring_bytes(3 * self.parameters.values.numel() + self._bucket.numel() + 1)
        )

    def state(self) -> dict[str, torch.Tensor]:
        return {"done": torch.tensor(self._done), "seed_nodes": torch.tensor(self._seed_nodes)}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._done, self._seed_nodes = int(state["done"]), int(state["seed_nodes"])

    def _average(self, optimizer: Adam) -> None:
        """Make weights and moments the ranks' means, and gradients those of the mean loss of all."""
        kept = [self.parameters.values, optimizer.mean, optimizer.square]
        weighted = torch.cat([tensor * self._seed_nodes for tensor in kept])
        packed = torch.cat([weighted, self._bucket, weighted.new_tensor([self._seed_nodes])])
        self._start_sum(packed)()
        means = packed[: weighted.numel()] / packed[-1]
        for tensor, mean in zip(kept, means.split(self.parameters.values.numel()), strict=True):
            tensor.copy_(mean)
        self._bucket.copy_(packed[weighted.numel() : -1])
        self._divided()
        self._seed_nodes = 0

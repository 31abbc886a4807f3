"""The chunks of the gradients that matter most are all-reduced; what is in the others adds up on its rank.

Coarse-grained sparse communication of GradientFlow (Sun, Feng, Han, Yan and Wen, "Optimizing Network Performance for
Distributed DNN Training on GPU Clusters: ImageNet/AlexNet Training in 1.5 Minutes", 2019, arXiv 1902.06855): the
gradients are cut into chunks of one length, the L1 norms of what each rank has in its chunks are all-reduced, and those
with the largest sums are chosen, by all ranks alike, so that they are all-reduced side by side and no index is sent.
The first steps are dense (`warmup_steps`), as the paper's warm-up.

Momentum correction is that of Deep Gradient Compression (Lin, Han, Mao, Wang and Dally, ICLR 2018, arXiv 1712.01887,
sections 3.2 and, masking, 3.3), which the paper takes up for its chunks: a chunk that stays at home adds up
velocities u <- momentum u + gradient, not gradients, and both its sum and its velocity are cleared when it is sent.
Both papers' optimiser is SGD with momentum. Here it is Adam: its first moment takes the place of the global momentum,
and of a chunk that was not chosen, weights and moments stay as they are (`optimizer.PartialAdam`). Which velocity a
chunk left at home would have had under Adam has no definition, so that `momentum` is an option; 0 adds up gradients.

What is added up are gradients of the mean loss over all seed nodes of a step. Their number is therefore all-reduced
first, with the loss, while the backward pass runs.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.gradients._base import EXTRA_VALUES, GradientSynchroniser, Piece
from anatomy.training.optimizer import PartialAdam

OPTIONS: dict[str, Any] = {
    "properties": {
        "density": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 1,
            "default": 0.1,
            "description": "Share of the chunks that is sent in a step, one at least.",
        },
        "chunk_values": {
            "type": "integer",
            "minimum": 1,
            "default": 256,
            "description": "Gradients per chunk.",
        },
        "momentum": {
            "type": "number",
            "minimum": 0,
            "exclusiveMaximum": 1,
            "default": 0.9,
            "description": "By which a chunk's velocity is carried on while it is not sent; 0: gradients add up.",
        },
        "warmup_steps": {
            "type": "integer",
            "minimum": 0,
            "default": 0,
            "description": "First steps in which all chunks are sent.",
        },
    },
    "required": [],
}
EXACT = ({"density": 1.0, "chunk_values": 7},)


class Policy(GradientSynchroniser):
    """See the module."""

    make_optimizer = PartialAdam

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        gradients, length = self.parameters.gradients, self.options["chunk_values"]
        self._num_chunks = math.ceil(gradients.numel() / length)
        self._num_sent = max(1, math.ceil(self.options["density"] * self._num_chunks))
        self._velocity = torch.zeros(self._num_chunks, length, device=gradients.device)
        self._left = torch.zeros_like(self._velocity)
        self._padded = torch.zeros_like(self._velocity)
        self._places = torch.arange(self._padded.numel(), device=gradients.device).view_as(self._padded)
        self._steps = 0

    def backward(self, pieces: Iterable[Piece]) -> None:
        ((loss_sum, num_seed_nodes),) = pieces
        self._bucket.zero_()
        self._note(loss_sum, num_seed_nodes)
        with phase(Phase.SYNC):
            self._finish_count = self._start_sum(self._bucket[-EXTRA_VALUES:])
        self._differentiate(loss_sum)

    def synchronise(self) -> tuple[float, int]:
        gradients = self.parameters.gradients
        with phase(Phase.SYNC):
            self._finish_count()
            summed = self._divided()
            self._padded.view(-1)[: gradients.numel()] = gradients
            self._velocity.mul_(self.options["momentum"]).add_(self._padded)
            self._left.add_(self._velocity)
            chosen = self._choose()
            sent = self._left[chosen]
            self._start_sum(sent)()
            self._left[chosen] = self._velocity[chosen] = 0
            places = self._places[chosen].view(-1)
            inside = places < gradients.numel()  # the last chunk is padded
            self._chosen = places[inside]
            gradients[self._chosen] = sent.view(-1)[inside]
            self._steps += 1
        return summed

    def optimise(self, optimizer: PartialAdam) -> None:
        optimizer.chosen = self._chosen
        super().optimise(optimizer)

    def bytes_per_epoch(self, steps: int) -> int | None:
        if self.options["warmup_steps"] and self._num_sent < self._num_chunks:
            return None
        sent = self._num_sent * self.options["chunk_values"]
        return steps * sum(map(self._ring_bytes, (EXTRA_VALUES, self._num_chunks, sent)))

    def state(self) -> dict[str, torch.Tensor]:
        return {"velocity": self._velocity.cpu(), "left": self._left.cpu(), "steps": torch.tensor(self._steps)}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._velocity.copy_(state["velocity"])
        self._left.copy_(state["left"])
        self._steps = int(state["steps"])

    def _choose(self) -> torch.Tensor:
        """The chunks to be sent, int64, ascending: those whose L1 norms have the largest sums over the ranks."""
        if self._steps < self.options["warmup_steps"]:
            return torch.arange(self._num_chunks, device=self._left.device)
        norms = self._left.abs().sum(1)
        self._start_sum(norms)()
        return norms.topk(self._num_sent).indices.sort().values

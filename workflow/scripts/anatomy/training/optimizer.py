"""Adam (Kingma and Ba, 2015) on a model whose weights and gradients lie in one flat buffer each.

torch.optim would do the same; it also imports torch's compiler when an optimiser is made, which costs every rank of
every run 2 to 3 seconds.
"""

from collections.abc import Mapping
from itertools import accumulate

import torch
from torch import nn

BETAS = (0.9, 0.999)
EPSILON = 1e-8


class Weights:
    """Weights and their gradients, `values` and `gradients`, float32 [weights] each."""

    def __init__(self, values: torch.Tensor, gradients: torch.Tensor) -> None:
        self.values = values
        self.gradients = gradients

    def part(self, start: int, stop: int) -> "Weights":
        """Some consecutive ones, in the same memory."""
        return Weights(self.values[start:stop], self.gradients[start:stop])


class FlatParameters(Weights):
    """Moves a model's weights into one buffer, `values`, and gives them gradients in another, `gradients`.

    `bucket` is the gradients' buffer with `extra` more values behind them; `spans` has of each of the model's
    parameters, in order, where its weights begin and end.
    """

    def __init__(self, model: nn.Module, extra: int = 0) -> None:
        parameters = list(model.parameters())
        sizes = [parameter.numel() for parameter in parameters]
        values = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self.bucket = torch.zeros(sum(sizes) + extra, device=values.device)
        super().__init__(values, self.bucket[: sum(sizes)])
        stops = list(accumulate(sizes))
        self.spans = [(one, stop - size, stop) for one, size, stop in zip(parameters, sizes, stops, strict=True)]
        for parameter, value, gradient in zip(
            parameters, self.values.split(sizes), self.gradients.split(sizes), strict=True
        ):
            parameter.data = value.view_as(parameter)
            parameter.grad = gradient.view_as(parameter)


class Adam:
    """One update per `step`, from the flat gradients; `weight_decay` is added to them as an L2 penalty.

    `mean` and `square`, float32 [weights]: the moments.
    """

    def __init__(self, parameters: Weights, learning_rate: float, weight_decay: float = 0.0) -> None:
        self.parameters = parameters
        self._learning_rate = learning_rate
        self._weight_decay = weight_decay
        self.mean = torch.zeros_like(parameters.values)
        self.square = torch.zeros_like(parameters.values)
        self._steps = 0

    def state(self) -> dict[str, torch.Tensor]:
        """All that a step reads and changes, on the CPU: `weights`, `mean`, `square` float32, flat; `steps` int64."""
        tensors = {"weights": self.parameters.values, "mean": self.mean, "square": self.square}
        return {name: tensor.cpu() for name, tensor in tensors.items()} | {"steps": torch.tensor(self._steps)}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from a `state` of the same model; the weights change in place."""
        self.parameters.values.copy_(state["weights"])
        self.mean.copy_(state["mean"])
        self.square.copy_(state["square"])
        self._steps = int(state["steps"])

    def step(self) -> None:
        """Update the weights."""
        values, gradients = self.parameters.values, self.parameters.gradients
        if self._weight_decay:
            gradients = gradients.add(values, alpha=self._weight_decay)
        self._steps += 1
        self.mean.lerp_(gradients, 1 - BETAS[0])
        self.square.mul_(BETAS[1]).addcmul_(gradients, gradients, value=1 - BETAS[1])
        scale = (self.square / (1 - BETAS[1] ** self._steps)).sqrt_().add_(EPSILON)
        values.addcdiv_(self.mean, scale, value=-self._learning_rate / (1 - BETAS[0] ** self._steps))


class PartialAdam(Adam):
    """Adam that updates the weights `chosen`, int64 [any number], alone: of the others the moments stay as well.

    The moments' bias is corrected by how often each weight was updated. With all weights chosen it is `Adam`.
    """

    def __init__(self, parameters: Weights, learning_rate: float, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, learning_rate, weight_decay)
        self.chosen = torch.arange(parameters.values.numel(), device=parameters.values.device)
        self._updates = torch.zeros(parameters.values.shape, dtype=torch.int64, device=parameters.values.device)

    def state(self) -> dict[str, torch.Tensor]:
        return super().state() | {"updates": self._updates.cpu()}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        super().restore(state)
        self._updates.copy_(state["updates"])

    def step(self) -> None:
        chosen, gradients = self.chosen, self.parameters.gradients[self.chosen]
        values, mean, square = self.parameters.values[chosen], self.mean[chosen], self.square[chosen]
        if self._weight_decay:
            gradients = gradients.add(values, alpha=self._weight_decay)
        self._steps += 1
        updates = self._updates[chosen] + 1
        corrections = [(1 - beta ** updates.double()).float() for beta in BETAS]
        mean.lerp_(gradients, 1 - BETAS[0])
        square.mul_(BETAS[1]).addcmul_(gradients, gradients, value=1 - BETAS[1])
        scale = (square / corrections[1]).sqrt_().add_(EPSILON).mul_(corrections[0])
        self.parameters.values[chosen] = values.addcdiv(mean, scale, value=-self._learning_rate)
        self.mean[chosen], self.square[chosen], self._updates[chosen] = mean, square, updates

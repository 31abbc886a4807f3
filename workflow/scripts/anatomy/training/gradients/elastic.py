"""Elastic averaging: every rank has weights of its own, which are pulled towards a centre, and the centre towards them.

Synchronous EASGD (Zhang, Choromanska and LeCun, "Deep Learning with Elastic Averaging SGD", NIPS 2015, arXiv
1412.6651):

    x_i <- x_i - rate gradient_i(x_i) - alpha (x_i - centre)
    centre <- centre + beta (mean over i of x_i - centre),    beta = ranks alpha,

both from the x_i and the centre of before, the latter two terms in every period-th step alone, from the first. In place
of the paper's server every rank keeps the centre: it follows from the mean of the x_i, which one all-reduce gives. The
x_i are known when a step starts, so it runs while the losses and gradients are computed. Theano-MPI (Ma, Mao and
Taylor, 2016, arXiv 1605.08325) has the asynchronous variant, with a server that ranks visit one by one; that is not
this.

In place of the plain SGD step stands Adam's, with moments of each rank's own, by the gradient of the rank's own mean
loss; a rank without seed nodes in a step has gradients of 0. There is no setting in which this is averaging in every
step: the centre follows the x_i of before their update, hence one step behind (alpha = 0: each rank trains alone). The
model of a run is the centre.
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
        "period": {
            "type": "integer",
            "minimum": 1,
            "default": 4,
            "description": "tau: steps from one elastic update to the next.",
        },
        "beta": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 1,
            "default": 0.9,
            "description": "Share of the way that the centre moves to the mean; a rank moves beta / ranks of its way.",
        },
    },
    "required": [],
}
NEEDS = ("own_losses",)


class Policy(OwnModels):
    """See the module."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._done = 0
        self._centre = self.parameters.values.clone()

    def update(self, optimizer: Adam, pieces: Iterable[Piece]) -> tuple[float, int]:
        values, size = self.parameters.values, self.communicator.size
        is_due = self._done % self.options["period"] == 0
        self._done += 1
        if is_due:
            with phase(Phase.SYNC):
                mean = values / size
                pull = (values - self._centre) * (self.options["beta"] / size)
                finish = self._start_sum(mean)
        self.backward(pieces)
        own = self._divided()
        self.optimise(optimizer)
        if is_due:
            with phase(Phase.SYNC):
                finish()
                values.sub_(pull)
                self._centre.lerp_(mean, self.options["beta"])
        return own

    def common_model(self) -> torch.Tensor:
        return self._centre

    def bytes_per_epoch(self, steps: int) -> int | None:
        updates, rest = divmod(steps, self.options["period"])
        return None if rest else updates * self._ring_bytes(self.parameters.values.numel())

    def state(self) -> dict[str, torch.Tensor]:
        return {"done": torch.tensor(self._done), "centre": self._centre.cpu()}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._done = int(state["done"])
        self._centre.copy_(state["centre"])

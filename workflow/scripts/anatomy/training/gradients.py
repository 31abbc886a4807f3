"""Weight-gradient synchronisation: one all-reduce per step that carries gradients, loss and number of seed nodes.

Another way of it is a subclass that combines otherwise (`synchronise`); a strategy puts it in its context's place.
"""

import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.communication import Communicator, Kind
from anatomy.training.optimizer import FlatParameters

EXTRA_VALUES = 2
"""Float32 values beside the gradients in a step's bucket: the summed loss and the number of seed nodes."""


class GradientSynchroniser:
    """Makes every rank's gradients those of the mean loss over the seed nodes of all ranks together.

    A rank calls `backward` with the sum of its seed nodes' losses, or with None where it has none in this step, and
    then `synchronise`; a rank without seed nodes adds zeros. `parameters` must have EXTRA_VALUES extra values; the
    gradients lie in one buffer with them, so nothing is packed.
    """

    def __init__(self, parameters: FlatParameters, communicator: Communicator) -> None:
        self.communicator = communicator
        self.parameters = parameters
        self._bucket = parameters.bucket
        self._loss, self._count = self._bucket[-2:-1], self._bucket[-1:]

    def backward(self, loss_sum: torch.Tensor | None, num_seed_nodes: int) -> None:
        """Gradients of this rank's summed loss."""
        self._bucket.zero_()
        if loss_sum is None:
            return
        with phase(Phase.BACKWARD):
            loss_sum.backward()
        self._loss.copy_(loss_sum.detach())
        self._count.fill_(num_seed_nodes)

    def synchronise(self) -> tuple[float, int]:
        """Combine all ranks' gradients; returns the summed loss and the number of seed nodes of all ranks."""
        with phase(Phase.SYNC):
            if self._bucket.device == self.communicator.device:
                self.communicator.sum(self._bucket, Kind.WEIGHTS)
            else:
                staged = self._bucket.to(self.communicator.device)
                self.communicator.sum(staged, Kind.WEIGHTS)
                self._bucket.copy_(staged)
            loss_sum, count = self.loss_and_count()
            if count:
                self.parameters.gradients.div_(count)
        return loss_sum, count

    def loss_and_count(self) -> tuple[float, int]:
        """Summed loss and number of seed nodes as they stand in the bucket: this rank's, until they are combined."""
        return self._loss.item(), int(self._count.item())

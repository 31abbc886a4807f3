"""Policies under which every rank has weights of its own; the model of a run is made of all of them."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.gradients._base import GradientSynchroniser


class OwnModels(GradientSynchroniser):
    """See the module."""

    sums_losses = False

    @abstractmethod
    def common_model(self) -> torch.Tensor:
        """The weights that stand for all ranks', flat like them and the same on every rank; all ranks call this."""

    @contextmanager
    def model_to_evaluate(self, keep: bool) -> Iterator[None]:
        values = self.parameters.values
        own = values.clone()
        with phase(Phase.EVALUATE):
            values.copy_(self.common_model())
        yield
        if not keep:
            values.copy_(own)


class Averaged(OwnModels):
    """The model of a run is the mean of all ranks'."""

    def common_model(self) -> torch.Tensor:
        mean = self.parameters.values.clone()
        self._start_sum(mean)()
        return mean.div_(self.communicator.size)

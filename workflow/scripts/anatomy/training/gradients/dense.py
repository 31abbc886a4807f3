"""One all-reduce per step, after the backward pass: of all gradients, the loss and the number of seed nodes."""

from typing import Any

from anatomy.training.gradients._base import GradientSynchroniser

OPTIONS: dict[str, Any] = {"properties": {}, "required": []}
EXACT = ({},)


class Policy(GradientSynchroniser):
    """See the module."""

"""Full-graph training: a step is an epoch; every rank holds its part and its halo.

Before each layer but the first, activations of boundary nodes are exchanged, and in the backward pass their gradients
travel back, so that the ranks together compute exactly what one process would. The halo's features are fetched once.
"""

from typing import Any

from anatomy.training.strategies._fullgraph import FullGraphStrategy

OPTIONS: dict[str, Any] = {
    "properties": {
        "epochs": {"type": "integer", "minimum": 1, "description": "Epochs to train, warm-up included."},
    },
    "required": ["epochs"],
}


class Strategy(FullGraphStrategy):
    """See the module."""

"""Full-graph training without an all-reduce: every rank has a model of its own and mixes it with its neighbours'.

After D-PSGD (Lian, Zhang, Zhang, Hsieh, Zhang and Liu, "Can decentralized algorithms outperform centralized
algorithms?", NeurIPS 2017): x_i <- sum_j W_ij x_j - rate g_i, with doubly stochastic weights W over a graph of the
ranks. Activations of boundary nodes and their gradients are exchanged as in full-graph training, so a node's
activations come from its owner's model, and g_i is what the losses of all ranks make of rank i's weights.

The paper updates by plain SGD and mixes weights alone. Here the optimiser is Adam, which is not linear: the mean of
what Adam makes of each rank's gradients is not what it makes of their mean. So weights and gradients are mixed, both
with W and before the update, and Adam's moments are each rank's own, of mixed gradients. With plain SGD that would be
x_i <- sum_j W_ij (x_j - rate g_j), the paper's step with mixing after the update. With `complete`, all ranks take the
same step as full-graph training does. Gradients are scaled by ranks / training nodes, so that their mean over the ranks
is the gradient of the mean loss.

`topology`: a ring; `metropolis`, Metropolis weights between ranks whose parts share an edge (a part that shares none
trains alone until the end); or all ranks, uniformly. Each is a set of Metropolis weights over its graph.

The model of a run is the mean of all ranks' models, which is what the paper's algorithm returns: it is evaluated, and
after the last epoch's evaluation every rank has it. The loss of an epoch is that of each rank's own model on its own
nodes; the ranks add it up after the step, which counts as no traffic, since training does not need it.
"""

from typing import Any

import numpy as np

from anatomy.training.mixing import (
    VALUES_PER_PARAMETER,
    NeighbourMixing,
    complete,
    metropolis_weights,
    ring,
    touching,
)
from anatomy.training.strategies._fullgraph import FullGraphStrategy

OPTIONS: dict[str, Any] = {
    "properties": {
        "epochs": {"type": "integer", "minimum": 1, "description": "Epochs to train, warm-up included."},
        "topology": {
            "enum": ["ring", "metropolis", "complete"],
            "default": "ring",
            "description": "Whom a rank mixes its model with: the two beside it, the ranks whose parts share an edge "
            "with its own, or all.",
        },
    },
    "required": ["epochs"],
}
EXACT = ({"topology": "complete"},)
GRADIENTS = None


class Strategy(FullGraphStrategy):
    """See the module."""

    def prepare(self) -> None:
        super().prepare()
        context = self.context
        self._mixing = NeighbourMixing(
            context.gradients.parameters,
            context.communicator,
            metropolis_weights(self._neighbours()),
            context.graph.manifest["split"]["train"],
        )
        context.gradients = self._mixing

    def weights_bytes(self) -> int:
        num_messages = int(np.count_nonzero(self._neighbours()))
        return 4 * VALUES_PER_PARAMETER * self.context.model.num_parameters * num_messages

    def _neighbours(self) -> np.ndarray:
        """Whom each rank mixes with, bool [ranks, ranks]."""
        size = self.context.communicator.size
        match self.context.specification.strategy["topology"]:
            case "ring":
                return ring(size)
            case "metropolis":
                return touching(self.context.partition)
            case _:
                return complete(size)

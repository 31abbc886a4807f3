"""Full-graph training: a step is an epoch; every rank holds its part and its halo.

Before each layer but the first, activations of boundary nodes are exchanged, and in the backward pass their gradients
travel back, so that the ranks together compute exactly what one process would. The halo's features are fetched once.

With `hierarchical_exchange`, a row that several ranks of another host need crosses the link between the hosts once, and
their gradients are added up before they cross: see `legs`. On one host, or with one rank on each, nothing changes.
"""

from dataclasses import replace
from typing import Any

from anatomy.training.boundary import Boundary
from anatomy.training.host_boundary import HostBoundary
from anatomy.training.legs import counts_between_hosts
from anatomy.training.parts import LocalPart
from anatomy.training.strategies._base import PredictedBytes
from anatomy.training.strategies._fullgraph import FullGraphStrategy

OPTIONS: dict[str, Any] = {
    "properties": {
        "epochs": {"type": "integer", "minimum": 1, "description": "Epochs to train, warm-up included."},
        "hierarchical_exchange": {
            "type": "boolean",
            "default": False,
            "description": "Whether a row that several ranks of another host need is sent to that host once.",
        },
    },
    "required": ["epochs"],
}


class Strategy(FullGraphStrategy):
    """See the module."""

    def make_boundary(self, part: LocalPart) -> Boundary:
        if not self.goes_by_hosts:
            return super().make_boundary(part)
        return HostBoundary(part, self.context.communicator, self.legs(part), self.context.device)

    def predict(self) -> PredictedBytes:
        context = self.context
        ranks_per_host, hierarchical = context.communicator.ranks_per_host, self.goes_by_hosts
        rows = sum(counts_between_hosts(context.partition, ranks_per_host, hierarchical))
        exchanged = 2 * 4 * rows * sum(context.model.widths[1:-1])
        return replace(super().predict(), between_hosts_bytes_per_epoch=exchanged)

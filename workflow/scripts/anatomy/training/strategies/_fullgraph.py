"""What strategies on the whole graph share: a step is an epoch, and every rank holds its part and its halo.

A strategy of this kind says what differs: how the rows that a layer needs come about (`boundary`, `run_layer`), and
what it does before an epoch (`start_epoch`). Evaluation is exact whatever the training approximates.
"""

import torch
from torch.nn import functional

from anatomy.graphs.splits import TRAIN
from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.boundary import Boundary
from anatomy.training.communication import Kind
from anatomy.training.evaluation import Evaluator
from anatomy.training.layers._base import Passed
from anatomy.training.legs import Leg, by_hosts, straight
from anatomy.training.parts import LocalPart, local_part
from anatomy.training.strategies._base import EpochResult, PredictedBytes
from anatomy.training.strategies._base import Strategy as Base


class FullGraphStrategy(Base):
    """See the module. `part`, `block`, `boundary` and `features` [own + halo, width] are there after `prepare`."""

    accounted = ("part", "block", "boundary", "features", "_evaluator", "_training_rows", "_labels")

    def prepare(self) -> None:
        context = self.context
        self.part = local_part(context.graph, context.partition, context.communicator.rank)
        own = torch.from_numpy(context.graph.features[self.part.nodes.numpy()])
        self._evaluator = Evaluator(context, self.part)
        self.block = self._evaluator.block
        self.boundary = self.make_boundary(self.part)
        self.features = self._evaluator.with_halo(own, Kind.FEATURES)
        self.find_seed_nodes()

    def find_seed_nodes(self) -> None:
        """The own nodes that are trained on; a part of `prepare`."""
        context = self.context
        training = torch.from_numpy(context.graph.split[self.part.nodes.numpy()] == TRAIN)
        self._training_rows = torch.nonzero(training).squeeze(1).to(context.device)
        self._labels = self._evaluator.labels.to(context.device)[self._training_rows]

    def make_boundary(self, part: LocalPart) -> Boundary:
        """What training exchanges halo rows by; the exact one, which evaluation uses, by default."""
        return self._evaluator.boundary

    @property
    def goes_by_hosts(self) -> bool:
        """Whether boundary rows cross the link to a host once; see `legs`."""
        return self.context.specification.strategy.get("hierarchical_exchange", False)

    def legs(self, part: LocalPart) -> list[Leg]:
        """The ways that boundary rows go."""
        communicator = self.context.communicator
        if not self.goes_by_hosts:
            return straight(part)
        return by_hosts(part, self.context.partition, communicator.rank, communicator.ranks_per_host)

    def start_epoch(self, epoch: int) -> None:
        """What is done within an epoch's step before its first layer; nothing by default."""

    def run_layer(self, index: int, rows: torch.Tensor, carried: torch.Tensor | None) -> Passed:
        """A layer's output for the own nodes, from its input rows: `features`, or those of the own nodes.

        By default the halo's are exchanged for all layers but the first.
        """
        if index > 0:
            rows = self.boundary.exchange(rows, slot=index)
        return self.context.model.layer(index, self.context.operators, self.block, rows, carried)

    def train_epoch(self, epoch: int, record_accesses: bool = False) -> EpochResult:
        context = self.context
        context.model.train()
        num_seed_nodes = self._training_rows.shape[0]
        with context.step():
            self.start_epoch(epoch)
            rows, carried = self.features, None
            for index in range(len(context.model.layers)):
                rows, carried = self.run_layer(index, rows, carried)
            with phase(Phase.LOSS):
                loss = functional.cross_entropy(rows[self._training_rows], self._labels, reduction="sum")
            summed = context.update(loss, num_seed_nodes)
        return EpochResult(1, num_seed_nodes, context.mean_loss(*summed))

    def evaluate(self) -> dict[str, float | None]:
        return self._evaluator.accuracies(self.features[: self.part.num_own], self.features)

    def predict(self) -> PredictedBytes:
        widths = self.context.model.widths
        exchanged = 4 * self.volume() * sum(widths[1:-1])
        return PredictedBytes(
            sent_activations_bytes_per_epoch=exchanged,
            sent_gradients_bytes_per_epoch=exchanged,
            sent_weights_bytes_per_epoch=self.weights_bytes(),
            sent_features_bytes_once=4 * self.volume() * widths[0],
        )

    def volume(self) -> int:
        """Rows that all ranks together send in one exact exchange."""
        size = self.context.communicator.size
        return sum(
            len(self.context.partition.halo(owner, consumer)) for owner in range(size) for consumer in range(size)
        )

    def weights_bytes(self) -> int | None:
        """Bytes that all ranks together send in an epoch to synchronise gradients; None where epochs differ."""
        return self.context.gradients.bytes_per_epoch(1)

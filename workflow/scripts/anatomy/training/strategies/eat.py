"""Mini-batches with a class-balanced sampler, first of one model for all ranks, then of one for each part.

The training of EAT-DistGNN (Deshmukh, Gupta, Chawla, Jatala and Haldar, "Entropy aware training for fast and accurate
distributed GNN", ICDM 2023, arXiv:2311.02399); its partitioning is the partitioner `eat`. All else is as in
`minibatch`.

- Sampler. In each epoch a rank draws a third of its training nodes (rounded up), without putting back, with
  probabilities that are inverse to the number of its training nodes of the same class. `sampler: all` trains on all.
- Phases. For a `shared` part of the epochs (rounded down), 0.34 by default, gradients are summed over all ranks, as in
  `minibatch`. Then each rank goes on by itself from that model, W_shared, with a fresh optimiser and no word about
  gradients or weights. Its loss is the mean one plus `pull` |W - W_shared|^2.

A batch's features still come from the ranks that have them, so all ranks make as many fetches in the second phase too,
and an epoch has the steps of the rank with most batches; a rank without a batch does not step.

The public code, `train_dist_genper_regularized.py`, differs: it multiplies the probabilities with the norms of the
columns of the normalised adjacency matrix, draws some training nodes of other parts beside its own, has a focal loss
where told so, and learns the pull by descent on the same loss. That gradient is |W - W_shared|^2, which is never
negative, so the pull would only fall to 0; here it is fixed, at the code's first value by default. The text of the
paper was not at hand beyond its abstract.

The model of a run is, after the first phase, one for each part: a node is classified by the model of its part's rank
alone, whatever parts its neighbours are in. Each rank computes the whole graph for that, from the stored features,
which counts as evaluation. The weights of a run are rank 0's.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.communication import Communicator
from anatomy.training.gradients import GradientSynchroniser, Piece
from anatomy.training.optimizer import Adam, FlatParameters
from anatomy.training.parts import whole_graph
from anatomy.training.strategies._base import EpochResult, PredictedBytes
from anatomy.training.strategies.minibatch import Strategy as Minibatch

OPTIONS: dict[str, Any] = {
    "properties": {
        "epochs": {"type": "integer", "minimum": 1, "description": "Epochs to train, warm-up included."},
        "fanouts": {
            "type": "array",
            "items": {"type": "integer", "anyOf": [{"minimum": 1}, {"const": -1}]},
            "minItems": 1,
            "description": "Neighbours sampled per node and layer, from the input layer to the output layer; -1: all.",
        },
        "batch_size": {"type": "integer", "minimum": 1, "description": "Seed nodes per rank and step."},
        "sampler": {
            "enum": ["balanced", "all"],
            "default": "balanced",
            "description": "Which training nodes a rank trains on in an epoch: a third of them, the rarer their class "
            "the likelier, or all.",
        },
        "shared": {
            "type": "number",
            "minimum": 0,
            "maximum": 1,
            "default": 0.34,
            "description": "Share of the epochs in which all ranks train one model; in the others each trains its own.",
        },
        "pull": {
            "type": "number",
            "minimum": 0,
            "default": 1e-5,
            "description": "Weight of the squared distance between a rank's own model and the shared one in its loss.",
        },
    },
    "required": ["epochs", "fanouts", "batch_size"],
}
BASE = "minibatch"
EXACT = ({"sampler": "all", "shared": 1},)
GRADIENTS = None
DRAWN = 3
"""The balanced sampler draws one training node of so many."""


class Strategy(Minibatch):
    """See the module."""

    def prepare(self) -> None:
        super().prepare()
        options = self.context.specification.strategy
        self._num_shared = int(options["epochs"] * options["shared"])
        self._shared: torch.Tensor | None = None
        if options["sampler"] == "balanced":
            self._probabilities = inverse_to_frequency(self._labels[self._seed_nodes])

    def train_epoch(self, epoch: int, record_accesses: bool = False) -> EpochResult:
        if epoch >= self._num_shared and self._shared is None:
            self._part_ways()
        return super().train_epoch(epoch, record_accesses)

    def batches(self, epoch: int, generator: torch.Generator) -> list[torch.Tensor]:
        if self.context.specification.strategy["sampler"] == "all" or not self._seed_nodes.shape[0]:
            return super().batches(epoch, generator)
        drawn = torch.multinomial(self._probabilities, num_drawn(len(self._seed_nodes)), generator=generator)
        return self.own_batches(self._seed_nodes[drawn], generator)

    def evaluate(self) -> dict[str, float | None]:
        if self._shared is None:
            return super().evaluate()
        context, graph = self.context, self.context.graph
        with phase(Phase.EVALUATE), torch.no_grad():
            context.model.eval()
            block = whole_graph(graph).to(context.device)
            rows, carried = torch.from_numpy(np.array(graph.features)).to(context.device), None
            for index in range(len(context.model.layers)):
                rows, carried = context.model.layer(index, context.operators, block, rows, carried)
            own = np.flatnonzero(np.asarray(context.partition.assignment) == context.communicator.rank)
            return self._evaluator.score(rows.argmax(1).cpu()[torch.from_numpy(own)])

    def predict(self) -> PredictedBytes:
        """Epochs of the two phases differ in what they send, so that with both no number is that of every epoch."""
        epochs = self.context.specification.strategy["epochs"]
        if self._num_shared == epochs:
            return super().predict()
        return PredictedBytes(sent_weights_bytes_per_epoch=None if self._num_shared else 0)

    def state(self) -> dict[str, torch.Tensor]:
        return {} if self._shared is None else {"shared": self._shared.cpu()}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        if state:
            self._go_alone(state["shared"].to(self.context.device))

    def _part_ways(self) -> None:
        """Begin the second phase: every rank goes on by itself from the shared model."""
        context, training = self.context, self.context.specification.training
        parameters = context.gradients.parameters
        context.optimizer = Adam(parameters, training.learning_rate, training.weight_decay)
        self._go_alone(parameters.values.clone())

    def _go_alone(self, shared: torch.Tensor) -> None:
        self._shared = shared
        context = self.context
        pull = context.specification.strategy["pull"]
        context.gradients = PersonalGradients(context.gradients.parameters, context.communicator, shared, pull)

    def _num_steps(self) -> int:
        if self.context.specification.strategy["sampler"] == "all":
            return super()._num_steps()
        most = max(len(self._training_nodes(rank)) for rank in range(self.context.communicator.size))
        return math.ceil(num_drawn(most) / self.context.specification.strategy["batch_size"])


class PersonalGradients(GradientSynchroniser):
    """Gradients of a rank's own mean loss plus `pull` times its weights' squared distance from `shared`, flat alike."""

    sums_losses = False

    def __init__(
        self, parameters: FlatParameters, communicator: Communicator, shared: torch.Tensor, pull: float
    ) -> None:
        super().__init__(parameters, communicator)
        self._shared, self._pull = shared, pull

    def update(self, optimizer: Adam, pieces: Iterable[Piece]) -> tuple[float, int]:
        """Send nothing, and update nothing without seed nodes; the summed loss is without the pull."""
        self.backward(pieces)
        loss_sum, count = self.loss_and_count()
        if count:
            distance = self.parameters.values - self._shared
            self.parameters.gradients.div_(count).add_(distance, alpha=2 * self._pull)
            self.optimise(optimizer)
        return loss_sum, count


def num_drawn(num_nodes: int) -> int:
    """Training nodes that the balanced sampler draws of so many."""
    return math.ceil(num_nodes / DRAWN)


def inverse_to_frequency(labels: torch.Tensor) -> torch.Tensor:
    """Probabilities of drawing nodes of these classes, int64 [nodes], so that each class is as likely; float64."""
    counts = torch.bincount(labels)[labels].to(torch.float64)
    return counts.reciprocal() / counts.reciprocal().sum()

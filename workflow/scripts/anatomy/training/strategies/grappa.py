"""Full-graph training that sends nothing but gradients: every rank trains on what it holds, which changes now and then.

After Grappa (Xu, Siebenbrunner and Bindschaedler, "Grappa: gradient-only communication for scalable graph neural
network training", 2026, arXiv:2602.01872) and its public code, `t10n/dataloader.py` and `t10n/grad.py`. Each part is a
chunk. Rank r holds its own chunk and a neighbour chunk, with all in-edges of the nodes of both. A source of such an
edge that is in neither is there with its features and without in-edges of its own. The rank trains on the seed nodes of
its own chunk. After every `period` epochs the neighbour is the next chunk in turn: r + 1, r + 2, …, never r itself.
What a rank holds it reads from the stored graph, so that no feature and no activation is sent. One chunk, or two,
are the whole graph on every rank, which is full-graph training. `neighbours` is how many chunks a rank holds beside
its own; the paper's is 1, and with all of them it is exact.

A rank's gradient lacks what the others' nodes would have added. Its `correction` is a factor of the whole rank's
gradient, before all are summed, from the coverage c(v) of its seed nodes v:

- `none`: 1.
- `proportional`: the mean of c(v), as in the public code: who sees less counts less.
- `inverse`: the mean of 1 / c(v). Of all factors a it is the one with the smallest sum over v of (a - 1 / c(v))^2,
  that is, the closest to weighing every node by the inverse of its probability to be seen.
- `shrinkage`: (1 - s) + s times that mean, with s = `shrinkage`; between `none` and `inverse`.

The text of the paper was not at hand beyond its abstract, which says of the correction that it is an importance
weight, that its form for batches minimises the mean squared deviation from weights of nodes, and that a shrinkage is
more stable. These formulas are derived from those words; s is this study's own. The code takes as c(v) the share
of v's in-edges that the rank holds, which is 1 for every seed node, since all of these are held. Here c(v) is about
all layers of the model (`isolation.coverage`), the same for one. Seed nodes with c(v) = 0 have no inverse and are left
out of its mean. Adam does not feel a factor that all ranks have in common, only how they differ.

Evaluation is exact, with features and activations exchanged; it counts as such and not as training.
"""

from collections.abc import Sequence
from typing import Any

import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.evaluation import Evaluator
from anatomy.training.isolation import WeightedGradients, coverage, hold
from anatomy.training.layers._base import Passed
from anatomy.training.parts import local_part
from anatomy.training.strategies._base import PredictedBytes
from anatomy.training.strategies._fullgraph import FullGraphStrategy

OPTIONS: dict[str, Any] = {
    "properties": {
        "epochs": {"type": "integer", "minimum": 1, "description": "Epochs to train, warm-up included."},
        "period": {
            "type": "integer",
            "minimum": 1,
            "default": 50,
            "description": "Epochs for which a rank keeps what it holds; 50 in the paper's code.",
        },
        "neighbours": {
            "type": "integer",
            "minimum": -1,
            "default": 1,
            "description": "Chunks that a rank holds beside its own; -1: all, which is exact.",
        },
        "correction": {
            "enum": ["none", "proportional", "inverse", "shrinkage"],
            "default": "shrinkage",
            "description": "How a rank's gradient is weighed by how much of its nodes' neighbourhoods it holds.",
        },
        "shrinkage": {
            "type": "number",
            "minimum": 0,
            "maximum": 1,
            "default": 0.5,
            "description": "With `shrinkage`, how much of the inverse correction is made: 0 is none, 1 all.",
        },
    },
    "required": ["epochs"],
}
EXACT = ({"neighbours": -1},)
GRADIENTS = None
PAPER: dict[str, Any] = {
    "gain": 4,
    "of": "training speed, on average",
    "over": "state-of-the-art systems",
    "on": "commodity hardware with GPUs",
    "source": "abstract of Grappa, arXiv:2602.01872",
}


class Strategy(FullGraphStrategy):
    """See the module. `features` and `block` are of all that the rank holds, own nodes first."""

    def prepare(self) -> None:
        context = self.context
        self.part = local_part(context.graph, context.partition, context.communicator.rank)
        self._evaluator = Evaluator(context, self.part)
        self.find_seed_nodes()
        self._weighted = WeightedGradients(context.gradients.parameters, context.communicator)
        context.gradients = self._weighted
        self._chunks: list[int] | None = None
        self.start_epoch(0)

    def start_epoch(self, epoch: int) -> None:
        """Hold what is due in this epoch, which a run that goes on from a checkpoint finds too."""
        options, communicator = self.context.specification.strategy, self.context.communicator
        turn = epoch // options["period"]
        chunks = neighbour_chunks(communicator.rank, communicator.size, options["neighbours"], turn)
        if chunks != self._chunks:
            self._chunks = chunks
            self._hold(chunks)

    def run_layer(self, index: int, rows: torch.Tensor, carried: torch.Tensor | None) -> Passed:
        model = self.context.model
        block = self._last_block if index == len(model.layers) - 1 else self.block
        return model.layer(index, self.context.operators, block, rows, carried)

    def evaluate(self) -> dict[str, float | None]:
        return self._evaluator.accuracies(self.features[: self.part.num_own])

    def predict(self) -> PredictedBytes:
        return PredictedBytes(
            sent_activations_bytes_per_epoch=0,
            sent_gradients_bytes_per_epoch=0,
            sent_weights_bytes_per_epoch=self.weights_bytes(),
            sent_features_bytes_per_epoch=0,
            sent_features_bytes_once=0,
        )

    def _hold(self, chunks: Sequence[int]) -> None:
        """Read own and neighbour chunks, and weigh the gradient by what they cover."""
        context = self.context
        options = context.specification.strategy
        with phase(Phase.SAMPLE):
            held = hold(context.graph, context.partition.assignment, context.communicator.rank, chunks)
            covered = coverage(held.block, len(context.model.layers))[self._training_rows.cpu()]
            self._weighted.weight = factor(covered, options["correction"], options["shrinkage"])
            self.block, self._last_block = held.block.to(context.device), held.last.to(context.device)
        with phase(Phase.GATHER):
            self.features = torch.from_numpy(context.graph.features[held.nodes]).to(context.device)


def neighbour_chunks(rank: int, size: int, count: int, turn: int) -> list[int]:
    """The chunks that a rank holds beside its own in a turn, rising: `count` in a row of those after it; -1: all."""
    others = size - 1
    count = others if count < 0 else min(count, others)
    return sorted((rank + 1 + (turn + place) % others) % size for place in range(count))


def factor(covered: torch.Tensor, correction: str, shrinkage: float) -> float:
    """The factor of a rank's gradient, from the coverage of its seed nodes, float64 [seed nodes]; 1 without any."""
    seen = covered[covered > 0]
    if correction == "none" or not seen.shape[0]:
        return 1.0
    if correction == "proportional":
        return float(covered.mean())
    strength = shrinkage if correction == "shrinkage" else 1.0
    return 1 + strength * (float(seen.reciprocal().mean()) - 1)

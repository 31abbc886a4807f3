"""Accuracy with all neighbours, layer by layer over all parts: the same for every strategy."""

import numpy as np
import torch

from anatomy.graphs.splits import TEST, TRAIN, VAL
from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.boundary import Boundary
from anatomy.training.communication import Kind
from anatomy.training.layers._base import Destinations, Passed
from anatomy.training.parts import LocalPart
from anatomy.training.strategies._base import Context

SPLITS = {"train": TRAIN, "val": VAL, "test": TEST}


class Evaluator:
    """Evaluates a model on a rank's part; all ranks must call it together."""

    def __init__(self, context: Context, part: LocalPart) -> None:
        self._context = context
        self._part = part
        self.block = part.block.to(context.device)
        self.boundary = Boundary(part, context.communicator)
        nodes = part.nodes.numpy()
        self.labels = torch.from_numpy(context.graph.labels[nodes])
        self._split = context.graph.split[nodes]
        self._first_aggregate: torch.Tensor | None = None

    def with_halo(self, own: torch.Tensor, kind: Kind) -> torch.Tensor:
        """A table of own and halo rows on the model's device, from the own rows."""
        # NumPy asks the system for huge pages, torch does not: products with wide features take a quarter less time.
        rows = torch.from_numpy(np.empty((self._part.num_rows, own.shape[1]), np.float32)).to(self._context.device)
        rows[: self._part.num_own] = own
        self.boundary.complete(rows, kind)
        return rows

    def accuracies(self, own: torch.Tensor, rows: torch.Tensor | None = None) -> dict[str, float | None]:
        """What `score` says of the model, from the own nodes' features; `rows` are these and the halo's, if at hand."""
        model = self._context.model
        with phase(Phase.EVALUATE), torch.no_grad():
            model.eval()
            hidden, carried = self._first_layer(own.to(self._context.device), rows)
            for index in range(1, len(model.layers)):
                hidden = self.boundary.exchange(hidden, index)
                hidden, carried = model.layer(index, self._context.operators, self.block, hidden, carried)
            return self.score(hidden.argmax(1).cpu())

    def _first_layer(self, own: torch.Tensor, rows: torch.Tensor | None) -> Passed:
        """The first layer's results; what it aggregates is kept where no weight changes it."""
        model, operators = self._context.model, self._context.operators
        layer = model.layers[0]
        if not layer.aggregates_inputs:
            rows = self.with_halo(own, Kind.FEATURES) if rows is None else rows
            return model.layer(0, operators, self.block, rows)
        if self._first_aggregate is None:
            rows = self.with_halo(own, Kind.FEATURES) if rows is None else rows
            self._first_aggregate = layer.aggregate(operators, self.block, rows)
        return layer.complete(Destinations(own, own, None), self._first_aggregate)

    def score(self, predicted: torch.Tensor) -> dict[str, float | None]:
        """Accuracies of the predicted classes of the own nodes, int64 [own nodes] on the CPU; None without a node.

        `train`, `val` and `test` are of all ranks' nodes, on rank 0; `own_train`, `own_val` and `own_test` of this
        rank's alone, on every rank.
        """
        right = (predicted == self.labels).numpy()
        counts = [[(self._split == split).sum(), right[self._split == split].sum()] for split in SPLITS.values()]
        summed = torch.tensor(np.array(counts), dtype=torch.int64, device=self._context.communicator.device)
        own = {f"own_{name}": accuracy for name, accuracy in _shares(summed).items()}
        evaluator = self._context.graph.manifest.get("evaluator")
        if evaluator is not None:
            return self._score_by_ogb(evaluator, predicted) | own
        self._context.communicator.sum(summed)
        return _shares(summed) | own

    def _score_by_ogb(self, evaluator: str, predicted: torch.Tensor) -> dict[str, float | None]:
        """Accuracy by the data set's own evaluator, which wants all predictions in one process."""
        gathered = self._context.communicator.gather((self._split, predicted.numpy(), self.labels.numpy()))
        if gathered is None:
            return {}
        from anatomy.graphs.ogb_catalogue import evaluator as open_evaluator  # only where a data set brings its own

        judge = open_evaluator(evaluator)
        split, predictions, labels = (np.concatenate(column) for column in zip(*gathered, strict=True))
        accuracies: dict[str, float | None] = {}
        for name, value in SPLITS.items():
            rows = split == value
            asked = {"y_true": labels[rows].reshape(-1, 1), "y_pred": predictions[rows].reshape(-1, 1)}
            accuracies[name] = judge.eval(asked)["acc"] if rows.any() else None
        return accuracies


def _shares(counts: torch.Tensor) -> dict[str, float | None]:
    """Accuracy by split, from nodes and those predicted right, int64 [splits, 2]."""
    return {name: hits / total if total else None for name, (total, hits) in zip(SPLITS, counts.tolist(), strict=True)}

"""Decoupled training: every rank owns a module of consecutive layers and trains it for a loss of its own.

Zhang, Zhu and Li, "Decouple Graph Neural Networks: Train Multiple Simple GNNs Simultaneously Instead of One", IEEE
TPAMI 2024 (arXiv 2304.10126): a module learns to classify from what it puts out, by a linear classifier of its own
(forward training), and to put out what the module after it would rather have (backward training). That module, whose
input is X, learns a square matrix U, at first the identity, by which its loss on X U is lower; the rows of X U are what
it expects. A module's loss is

    mean cross-entropy over training nodes + `feedback` · mean over nodes of |output row - expected row|².

There modules of one layer take turns, and in the authors' code each trains for many iterations before the next. Here
modules have any number of layers, of any kind, and all train at the same time, as in the asynchronous form of decoupled
greedy learning (Belilovsky, Eickenberg and Oyallon, "Decoupled Greedy Learning of CNNs", ICML 2020) with a buffer of
one entry. In an epoch, each module takes one step of Adam on what the module before put out in the last epoch and
towards what the module after expected in the last epoch; then it takes `backward_steps` of Adam for a U that is the
identity again. What an epoch brings is waited for at its end. Before the first epoch, untrained modules pass on what
they make of their input, and nothing is expected. With `feedback` 0 nothing goes back: greedy learning alone, as for
GNNs in Wang, Tang, Sun and Wolf, "Decoupled Greedy Learning of Graph Neural Networks" (OPT 2020).

Other differences from the authors' code: there a module's weights learn along with U, here they are fixed meanwhile;
there a hidden module with a classifier leaves the cross-entropy out once something is expected of it, here no module
does; and distances are over all nodes here. So `feedback` is another weight than theirs (eta; 1 where nothing is said,
100 and 1000 in their runs for classification): beside the cross-entropy, 1 keeps outputs where they were, since what is
expected is what was put out before, a little changed. The default is the study's own, see `docs/strategies.md`: modules
need more epochs than the model as a whole, and with a weight of 1 more still. The last module's output are the model's
scores, and its loss is the one reported; the classifiers of the others are no part of the model. With one module in
all, every rank trains it on its part, which is full-graph training. Weights are gathered before an evaluation and
counted there; the reported loss is counted as weights.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from anatomy.graphs.splits import TRAIN
from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.communication import Kind
from anatomy.training.layers._base import Passed
from anatomy.training.optimizer import Adam, FlatParameters, Weights
from anatomy.training.parts import whole_graph
from anatomy.training.sampling import generator_for
from anatomy.training.stages import Inbox, Outbox, Stage
from anatomy.training.strategies._base import Context, EpochResult, PredictedBytes
from anatomy.training.strategies._fullgraph import FullGraphStrategy

OPTIONS: dict[str, Any] = {
    "properties": {
        "epochs": {"type": "integer", "minimum": 1, "description": "Epochs to train, warm-up included."},
        "modules": {
            "enum": [1, None],
            "default": None,
            "description": "Modules of the model; null: one per rank; 1: all ranks train one, which is full-graph "
            "training.",
        },
        "feedback": {
            "type": "number",
            "minimum": 0,
            "default": 0.1,
            "description": "Weight of what the module after expects in a module's loss; 0: greedy.",
        },
        "backward_steps": {
            "type": "integer",
            "minimum": 1,
            "default": 1,
            "description": "Steps per epoch that a module takes to find what it expects.",
        },
    },
    "required": ["epochs"],
}

EXACT = ({"modules": 1},)
GRADIENTS = None

LAYER_OWNERS = "modules"
"""The option that says how many groups of ranks own layers; null: each rank is one."""


class Strategy(FullGraphStrategy):
    """See the module. With one module in all, everything is the base's."""

    def prepare(self) -> None:
        super().prepare()
        context = self.context
        self._is_whole = context.specification.strategy["modules"] == 1 or context.communicator.size == 1
        if not self._is_whole:
            self._module = _Module(context)
            self._module.pass_on()

    def train_epoch(self, epoch: int, record_accesses: bool = False) -> EpochResult:
        if self._is_whole:
            return super().train_epoch(epoch, record_accesses)
        module = self._module
        self.context.model.train()
        with self.context.step():
            loss = module.train()
        return EpochResult(1, module.num_seed_nodes if module.stage.last else 0, loss)

    def evaluate(self) -> dict[str, float | None]:
        if not self._is_whole:
            self._module.stage.gather_weights()
        return super().evaluate()

    def predict(self) -> PredictedBytes:
        predicted = super().predict()
        if self._is_whole:
            return predicted
        stage, has_feedback = self._module.stage, self.context.specification.strategy["feedback"] > 0
        widths = stage.widths_between()
        return PredictedBytes(
            sent_activations_bytes_per_epoch=4 * self.context.graph.num_nodes * sum(map(sum, widths)),
            sent_gradients_bytes_per_epoch=4
            * self.context.graph.num_nodes
            * sum(rows for rows, _ in widths)
            * has_feedback,
            sent_weights_bytes_per_epoch=stage.loss_bytes(),
            sent_features_bytes_once=predicted.sent_features_bytes_once,
        )

    def state(self) -> dict[str, torch.Tensor]:
        return {} if self._is_whole else self._module.state()

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        if self._is_whole:
            super().restore(state)
        else:
            self._module.restore(state)


def linear_classifier(width: int, num_classes: int, seed: int, module: int) -> nn.Linear:
    """A module's own classifier, as it is at the start."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator_for(seed, module, 0).initial_seed())
        return nn.Linear(width, num_classes)


class _Module:
    """This rank's layers, their input and what is expected of their output, both of the last epoch."""

    def __init__(self, context: Context) -> None:
        graph, device = context.graph, context.device
        self._context = context
        self._options = context.specification.strategy
        self.stage = Stage(context)
        self._block = whole_graph(graph).to(device)
        training = np.flatnonzero(graph.split == TRAIN)
        self._training_rows = torch.from_numpy(training).to(device)
        self._labels = torch.from_numpy(graph.labels[training]).to(device)
        self.num_seed_nodes = len(training)
        self._all = slice(0, graph.num_nodes)
        self._classifier: nn.Linear | None = None
        self._prepare_input()
        self._prepare_output()

    def pass_on(self) -> None:
        """Give the next module what this one makes of its input, untrained."""
        if not self.stage.first:
            self._inputs.expect([self._all])
            self._take_input()
        self._context.model.eval()
        with torch.no_grad():
            passed = self._run(self._rows)
        if not self.stage.last:
            self._outputs.post(self._all, passed)
            self._outputs.flush()

    def train(self) -> float:
        """One step of this module; returns the last module's mean loss."""
        has_feedback = self._options["feedback"] > 0
        expects = has_feedback and not self.stage.first
        if not self.stage.first:
            self._inputs.expect([self._all])
        loss = self._step()
        if has_feedback and not self.stage.last:
            # After the output was sent: NCCL carries the messages of a pair of ranks in the order of the calls.
            self._expectations_of_next.expect([self._all])
        if expects:
            self._expectations.post(self._all, [self._find_expectation()])
        if not self.stage.last:
            self._outputs.flush()
        if not self.stage.first:
            self._take_input()
        if has_feedback and not self.stage.last:
            width = self.stage.widths_out[0]
            expected, _ = self._expectations_of_next.take(self._all, (width, 0), self._context.device)
            self._expected = expected.clone()
        if expects:
            self._expectations.flush()
        return self.stage.share_loss(loss)

    def state(self) -> dict[str, torch.Tensor]:
        """What the next epoch reads, on the CPU."""
        kept = {"rows": None if self.stage.first else self._rows, "carried": self._carried, "expected": self._expected}
        state = {name: tensor.cpu() for name, tensor in kept.items() if tensor is not None}
        if self._classifier is not None:
            state |= {f"classifier {name}": tensor for name, tensor in self._classifier_optimizer.state().items()}
        return state

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from a `state`."""
        if not self.stage.first:
            self._rows.copy_(state["rows"])
        if self._carried is not None:
            self._carried.copy_(state["carried"])
        if "expected" in state:
            self._expected = state["expected"].to(self._context.device)
        if self._classifier is not None:
            prefix = "classifier "
            self._classifier_optimizer.restore(
                {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
            )

    def _prepare_input(self) -> None:
        context, (width, carried) = self._context, self.stage.widths_in
        communicator, num_nodes = context.communicator, context.graph.num_nodes
        self._carried: torch.Tensor | None = None
        if self.stage.first:
            self._rows = torch.from_numpy(np.array(context.graph.features)).to(context.device)
            return
        self._rows = torch.zeros(num_nodes, width, device=context.device)
        if carried:
            self._carried = torch.zeros(num_nodes, carried, device=context.device)
        self._inputs = Inbox(communicator, communicator.rank - 1, num_nodes, width + carried)
        self._expectations = Outbox(communicator, communicator.rank - 1, num_nodes, width, Kind.GRADIENTS)

    def _prepare_output(self) -> None:
        context, (width, carried) = self._context, self.stage.widths_out
        communicator, num_nodes = context.communicator, context.graph.num_nodes
        self._expected: torch.Tensor | None = None
        if self.stage.last:
            return
        self._outputs = Outbox(communicator, communicator.rank + 1, num_nodes, width + carried, Kind.ACTIVATIONS)
        self._expectations_of_next = Inbox(communicator, communicator.rank + 1, num_nodes, width)
        seed, training = context.specification.seed, context.specification.training
        classifier = linear_classifier(width, context.graph.num_classes, seed, communicator.rank)
        self._classifier = classifier.to(context.device)
        weights = FlatParameters(self._classifier)
        self._classifier_optimizer = Adam(weights, training.learning_rate, training.weight_decay)

    def _take_input(self) -> None:
        rows, carried = self._inputs.take(self._all, self.stage.widths_in, self._context.device)
        self._rows.copy_(rows)
        if self._carried is not None:
            self._carried.copy_(carried)

    def _run(self, rows: torch.Tensor) -> Passed:
        """The module's outputs for all nodes."""
        carried = self._carried
        for index in self.stage.layers:
            rows, carried = self._context.model.layer(index, self._context.operators, self._block, rows, carried)
        return rows, carried

    def _losses(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the module's output rows, the mean cross-entropy, and the module's whole loss."""
        with phase(Phase.LOSS):
            scores = rows[self._training_rows]
            if self._classifier is not None:
                scores = self._classifier(scores)
            entropy = functional.cross_entropy(scores, self._labels)
            if self._expected is None:
                return entropy, entropy
            distance = (rows - self._expected).square().sum() / rows.shape[0]
            return entropy, entropy + self._options["feedback"] * distance

    def _step(self) -> torch.Tensor:
        """Forward training; the outputs are on their way to the next module. Returns the mean cross-entropy."""
        optimizers = [self._context.optimizer]
        if self._classifier is not None:
            optimizers.append(self._classifier_optimizer)
        for optimizer in optimizers:
            optimizer.parameters.gradients.zero_()
        passed = self._run(self._rows)
        if not self.stage.last:
            self._outputs.post(self._all, passed)
        entropy, loss = self._losses(passed[0])
        with phase(Phase.BACKWARD):
            loss.backward()
        with phase(Phase.OPTIMIZE):
            for optimizer in optimizers:
                optimizer.step()
        return entropy

    def _find_expectation(self) -> torch.Tensor:
        """Backward training: the input that this module would rather have, [nodes, width]."""
        width = self._rows.shape[1]
        matrix = torch.eye(width, device=self._context.device, requires_grad=True)
        weights = Weights(matrix.detach().view(-1), torch.zeros(width * width, device=self._context.device))
        optimizer = Adam(weights, self._context.specification.training.learning_rate)
        for _ in range(self._options["backward_steps"]):
            _, loss = self._losses(self._run(self._rows @ matrix)[0])
            with phase(Phase.BACKWARD):
                weights.gradients.copy_(torch.autograd.grad(loss, matrix)[0].view(-1))
            with phase(Phase.OPTIMIZE):
                optimizer.step()
        return self._rows @ matrix.detach()

"""Modules that train at the same time do what the definition says, each on what the others did an epoch before."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from dense_layers import adjacency, normalised, sage
from interruptions import be_often_interrupted, numbers
from interruptions import settings as interrupted_settings
from test_exact_settings import TOLERANCE, WEIGHT_TOLERANCE, assert_bytes_are_predicted
from torch.nn import functional
from training_cases import Case, Job, job_for

from anatomy.training.model import Model
from anatomy.training.specification import read_specification
from anatomy.training.strategies.decoupled import linear_classifier

CASES = {
    "sage-2": {"layer": "sage", "ranks": 2},
    "sage-3": {"layer": "sage", "ranks": 3, "strategy": {"feedback": 0.5, "backward_steps": 3}},
    "gcn-3": {"layer": "gcn", "ranks": 3, "model": {"num_layers": 5}},
    "gcn-2-greedy": {"layer": "gcn", "ranks": 2, "strategy": {"feedback": 0}},
}
SPANS = {(3, 2): [(0, 1), (1, 3)], (3, 3): [(0, 1), (1, 2), (2, 3)], (5, 3): [(0, 1), (1, 3), (3, 5)]}
"""The layers of each module, by the numbers of layers and modules."""


@dataclass
class DenseModule:
    """One module, its classifier, and what it has of its neighbours."""

    layers: tuple[int, int]
    layer: str
    num_layers: int
    weights: dict[str, torch.Tensor]
    classifier: torch.nn.Linear | None
    rows: torch.Tensor
    expected: torch.Tensor | None = None

    def __post_init__(self) -> None:
        own = [value for name, value in self.weights.items() if int(name.split(".")[1]) in range(*self.layers)]
        own += list(self.classifier.parameters()) if self.classifier else []
        self.optimizer = torch.optim.Adam(own, lr=0.01)

    def run(self, linked: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        for index in range(*self.layers):
            prefix = f"layers.{index}."
            own = {name.removeprefix(prefix): value for name, value in self.weights.items() if name.startswith(prefix)}
            if self.layer == "sage":
                rows = sage(own, linked, rows)
            else:
                rows = normalised(linked) @ rows @ own["linear.weight"].T + own["bias"]
            rows = rows if index == self.num_layers - 1 else rows.relu()
        return rows

    def losses(self, output: torch.Tensor, graph, feedback: float) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.from_numpy(graph.split == 0)
        scores = self.classifier(output) if self.classifier else output
        entropy = functional.cross_entropy(scores[chosen], torch.from_numpy(graph.labels.copy())[chosen])
        if self.expected is None:
            return entropy, entropy
        return entropy, entropy + feedback * ((output - self.expected) ** 2).sum(1).mean()

    def expectation(self, linked: torch.Tensor, graph, options: dict) -> torch.Tensor:
        matrix = torch.eye(self.rows.shape[1], requires_grad=True)
        optimizer = torch.optim.Adam([matrix], lr=0.01)
        for _ in range(options["backward_steps"]):
            optimizer.zero_grad()
            self.losses(self.run(linked, self.rows @ matrix), graph, options["feedback"])[1].backward()
            optimizer.step()
        return (self.rows @ matrix).detach()


def train_modules(case: Case, job: Job) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of the last module and the model's weights, in one process."""
    spec, graph = read_specification(job.spec), case.graph
    options, linked = spec.strategy, adjacency(graph)
    initial = Model(spec.model, graph.num_features, graph.num_classes, spec.seed).state_dict()
    weights = {name: value.clone().requires_grad_() for name, value in initial.items()}
    modules: list[DenseModule] = []
    rows = torch.from_numpy(graph.features.copy())
    for number, layers in enumerate(SPANS[spec.model.num_layers, spec.ranks]):
        classifier = None
        if number < spec.ranks - 1:
            classifier = linear_classifier(spec.model.hidden, graph.num_classes, spec.seed, number)
        module = DenseModule(layers, spec.model.layer, spec.model.num_layers, weights, classifier, rows)
        rows = module.run(linked, rows).detach()
        modules.append(module)
    losses = []
    for _ in range(options["epochs"]):
        outputs, expectations = [], []
        for module in modules:
            output = module.run(linked, module.rows)
            entropy, loss = module.losses(output, graph, options["feedback"])
            module.optimizer.zero_grad()
            loss.backward()
            module.optimizer.step()
            outputs.append(output.detach())
            expectations.append(module.expectation(linked, graph, options) if options["feedback"] else None)
        losses.append(entropy.item())
        for before, after, output, expected in zip(modules, modules[1:], outputs, expectations[1:], strict=False):
            before.expected, after.rows = expected, output
    return losses, {name: value.detach() for name, value in weights.items()}


@pytest.fixture(scope="module")
def jobs(small, run_ranks, tmp_path_factory) -> dict[str, Job]:
    folder = tmp_path_factory.mktemp("decoupled")
    made = {
        name: job_for(
            small, folder / name, method="decoupled", **given | {"strategy": {"epochs": 6} | given.get("strategy", {})}
        )
        for name, given in CASES.items()
    }
    for ranks in (2, 3):
        run_ranks(ranks, [made[name] for name, given in CASES.items() if given["ranks"] == ranks])
    return made


@pytest.mark.parametrize("name", CASES)
def test_all_ranks_have_the_losses_and_weights_of_the_modules_in_one_process(small, jobs, name):
    losses, weights = train_modules(small, jobs[name])
    epochs = pd.read_parquet(jobs[name].out / "epochs.parquet")
    for rank in range(CASES[name]["ranks"]):
        np.testing.assert_allclose(epochs.loss[epochs["rank"] == rank], losses, **TOLERANCE)
        for key, value in jobs[name].weights(rank).items():
            torch.testing.assert_close(
                value, weights[key], **WEIGHT_TOLERANCE, msg=lambda text, key=key: f"{key}: {text}"
            )


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_one_row_per_node_and_module(small, jobs, name):
    assert_bytes_are_predicted(jobs[name])
    metrics, rows = jobs[name].metrics(), (CASES[name]["ranks"] - 1) * small.graph.num_nodes
    assert metrics["predicted"]["sent_activations_bytes_per_epoch"] == rows * 8 * 4
    assert metrics["predicted"]["sent_gradients_bytes_per_epoch"] == (0 if "greedy" in name else rows * 8 * 4)
    assert metrics["setup_sent_bytes"]["activations"] == rows * 8 * 4


def test_what_is_carried_beside_the_rows_passes_between_modules(small, tmp_path, run_ranks):
    """gcnii needs H_0 in every layer, so it trains on each module's own input and the first module's H_0."""
    job = job_for(small, tmp_path / "job", method="decoupled", layer="gcnii", ranks=3, strategy={"epochs": 20})
    run_ranks(3, [job])
    assert_bytes_are_predicted(job)
    assert job.metrics()["predicted"]["sent_activations_bytes_per_epoch"] == 2 * small.graph.num_nodes * (8 + 8) * 4
    losses = pd.read_parquet(job.out / "epochs.parquet").query("rank == 0").loss
    assert losses.iloc[-1] < losses.iloc[0]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("layer", ["sage", "gcnii"])
def test_a_run_interrupted_after_every_epoch_ends_as_an_uninterrupted_one(small, tmp_path, run_ranks, layer):
    often, never = (
        job_for(small, tmp_path / str(every), layer=layer, **interrupted_settings("decoupled", ranks=2, every=every))
        for every in (1, 0)
    )
    run_ranks(2, [often], be_often_interrupted)
    run_ranks(2, [never])
    assert numbers(often) == numbers(never)
    assert often.metrics()["resumed_at"] == [1, 2, 3, 4]

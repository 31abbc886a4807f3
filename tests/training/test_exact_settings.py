"""Every approximate strategy has a setting in which it is exact: the losses and weights of the plain strategy.

A strategy's module states its exact settings (`EXACT`) and whose numbers they give (`BASE`, else `fullgraph`), so that
a new strategy is tested by being there.
"""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from training_cases import Job, job_for

from anatomy.training.options import LAYERS, STRATEGIES

EXACT = {
    f"{name}-{number}": (name, settings)
    for name, plugin in STRATEGIES.items()
    for number, settings in enumerate(plugin.constants.get("EXACT", ()))
}
RANKS = (1, 2, 3)
TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}
WEIGHT_TOLERANCE = {"rtol": 1e-3, "atol": 5e-4}
"""Adam divides a gradient by its own size, so that rounding decides the step where it is nearly 0; a step is 0.01."""


def layers_of(name: str) -> list[str]:
    """The layers that a strategy can train."""
    return [layer for layer in LAYERS if layer in STRATEGIES[name].constants.get("LAYERS", LAYERS)]


def base_of(name: str) -> str:
    """The plain strategy that an exact setting equals."""
    return STRATEGIES[EXACT[name][0]].constants.get("BASE", "fullgraph")


CASES = [
    (name, layer, ranks) for name, (method, _) in EXACT.items() for layer, ranks in product(layers_of(method), RANKS)
]


@pytest.fixture(scope="module")
def jobs(small, run_ranks, tmp_path_factory) -> dict[tuple[str, str, int], Job]:
    """Every exact setting, and the plain strategies themselves, trained on 1, 2 and 3 ranks."""
    folder = tmp_path_factory.mktemp("exact")
    settings = EXACT | {base: (base, {}) for base in map(base_of, EXACT)}
    made = {
        (name, layer, ranks): job_for(
            small,
            folder / f"{name}-{layer}-{ranks}",
            method=method,
            layer=layer,
            ranks=ranks,
            strategy=options,
        )
        for name, (method, options) in settings.items()
        for layer, ranks in product(layers_of(method), RANKS)
    }
    for ranks in RANKS:
        run_ranks(ranks, [job for key, job in made.items() if key[2] == ranks])
    return made


@pytest.mark.parametrize(("name", "layer", "ranks"), CASES)
def test_losses_and_weights_are_those_of_the_plain_strategy(jobs, name, layer, ranks):
    job, exact = jobs[name, layer, ranks], jobs[base_of(name), layer, ranks]
    epochs, expected = (pd.read_parquet(one.out / "epochs.parquet") for one in (job, exact))
    np.testing.assert_allclose(epochs["loss"], expected["loss"], **TOLERANCE)
    for column in ("train_accuracy", "val_accuracy", "test_accuracy"):
        np.testing.assert_allclose(epochs[column].astype(float), expected[column].astype(float), atol=0.06)
    for rank in range(ranks):
        for key, value in job.weights(rank).items():
            torch.testing.assert_close(
                value, exact.weights()[key], **WEIGHT_TOLERANCE, msg=lambda text, key=key: f"{key}: {text}"
            )


@pytest.mark.parametrize(("name", "layer", "ranks"), CASES)
def test_bytes_are_those_predicted(jobs, name, layer, ranks):
    assert_bytes_are_predicted(jobs[name, layer, ranks])


def assert_bytes_are_predicted(job: Job) -> None:
    """Every kind of bytes for which the strategy has a closed form is sent in just that number, in every epoch."""
    metrics = job.metrics()
    epochs = pd.read_parquet(job.out / "epochs.parquet").groupby("epoch").sum(numeric_only=True)
    for kind in ("features", "activations", "gradients", "weights"):
        predicted = metrics["predicted"][f"sent_{kind}_bytes_per_epoch"]
        if predicted is not None:
            assert epochs[f"sent_{kind}_bytes"].tolist() == [predicted] * len(epochs), kind
    once = metrics["predicted"]["sent_features_bytes_once"]
    assert once is None or metrics["setup_sent_bytes"]["features"] == once

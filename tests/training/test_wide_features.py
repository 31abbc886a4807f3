"""Features far wider than the hidden layers are projected before they are aggregated: that changes nothing but time."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from test_exact_settings import EXACT, TOLERANCE, assert_bytes_are_predicted, layers_of
from test_operators import BACKENDS, blocks
from training_cases import Job, job_for, small_case

from anatomy.tables.common.account import BY_BATCHES
from anatomy.training.layers._base import GraphLayer, Place
from anatomy.training.operators import load_operators
from anatomy.training.options import LAYERS, STRATEGIES, WIDE_FEATURES
from anatomy.training.specification import ModelSpecification

HIDDEN = 2
WIDTH = WIDE_FEATURES * HIDDEN + 1
WHOLE_GRAPH = {
    name: exact
    for name, exact in EXACT.items()
    if not BY_BATCHES & set(STRATEGIES[exact[0]].constants["OPTIONS"]["properties"])
}
"""Exact settings that are those of full-graph training."""
PROJECTING = ("gcn", "ressage", "sage")
TRAINED = ("gcn", "sage")
MODEL = {"name": "m", "hidden": HIDDEN, "num_layers": 2, "heads": 1, "dropout": 0.0, "initial_residual": 0.1}


def first_layer(kind: str, width: int) -> GraphLayer:
    model = ModelSpecification(**MODEL, layer=kind, identity_mapping=0.5)
    return LAYERS[kind].load().Layer(Place(0, width, HIDDEN, model))


@pytest.mark.parametrize("kind", PROJECTING)
def test_features_are_wide_above_a_multiple_of_the_output(kind):
    assert first_layer(kind, WIDTH - 1).aggregates_inputs
    assert not first_layer(kind, WIDTH).aggregates_inputs


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", PROJECTING)
@settings(max_examples=15)
@given(block=blocks)
def test_both_orders_give_the_same_rows_and_gradients(backend, kind, block):
    layer, operators = first_layer(kind, WIDTH), load_operators(backend)
    sources = torch.randn(block.num_sources, WIDTH)
    found = []
    for first in (False, True):
        layer.aggregates_inputs = first
        layer.zero_grad()
        rows, _ = layer(operators, block, sources)
        rows.pow(2).sum().backward()
        found.append([rows.detach(), *(parameter.grad.clone() for parameter in layer.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def jobs(run_ranks, tmp_path_factory) -> dict[tuple[str, str], Job]:
    """`fullgraph` on one rank, and it and every exact setting on two."""
    folder = tmp_path_factory.mktemp("wide")
    case = small_case(folder / "case", WIDTH)
    named = {"fullgraph": ("fullgraph", {})} | WHOLE_GRAPH

    def job(name: str, layer: str, ranks: int) -> Job:
        method, options = named[name]
        model = {"hidden": HIDDEN, "num_layers": 2}
        out = folder / f"{name}-{layer}-{ranks}"
        return job_for(case, out, method=method, layer=layer, ranks=ranks, strategy=options, model=model)

    alone = {("alone", layer): job("fullgraph", layer, 1) for layer in TRAINED}
    together = {
        (name, layer): job(name, layer, 2)
        for name, (method, _) in named.items()
        for layer in TRAINED
        if layer in layers_of(method)
    }
    run_ranks(1, list(alone.values()))
    run_ranks(2, list(together.values()))
    return alone | together


@pytest.mark.parametrize("name", ["fullgraph", *WHOLE_GRAPH])
def test_every_strategy_trains_as_one_rank_does(jobs, name):
    for layer in TRAINED:
        if (name, layer) in jobs:
            job, alone = jobs[name, layer], jobs["alone", layer]
            losses, expected = (pd.read_parquet(one.out / "epochs.parquet") for one in (job, alone))
            by_epoch = losses.groupby("epoch")["loss"].agg(["min", "max"])
            for column in by_epoch:
                np.testing.assert_allclose(by_epoch[column], expected["loss"], **TOLERANCE)
            assert_bytes_are_predicted(job)

"""Each deep layer against its formula on small dense matrices, how its weights start, and what it hands on."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_operators import BACKENDS, blocks, edge_counts, graph_arrays, random_block
from torch.nn import functional

from anatomy.graphs.build import build_graph
from anatomy.graphs.store import open_graph
from anatomy.training.layers import gcnii, ressage
from anatomy.training.layers._base import GraphLayer, Place
from anatomy.training.model import Model
from anatomy.training.operators import load_operators
from anatomy.training.operators.block import Block
from anatomy.training.options import LAYERS
from anatomy.training.sampling import NeighbourSampler, generator_for
from anatomy.training.specification import ModelSpecification

HIDDEN, FEATURES, CLASSES = 6, 5, 3
MODEL = {"name": "m", "heads": 2, "dropout": 0.0, "initial_residual": 0.1, "identity_mapping": 0.5, "hidden": HIDDEN}
DEEP = ("gcnii", "ressage")
places = st.sampled_from([(0, 1), (0, 3), (1, 3), (2, 3), (30, 32)])


def place_of(index: int, num_layers: int, **options: float) -> Place:
    specification = ModelSpecification(**MODEL | {"layer": "", "num_layers": num_layers} | options)
    width_in = FEATURES if index == 0 else HIDDEN
    return Place(index, width_in, CLASSES if index == num_layers - 1 else HIDDEN, specification)


def numbers(layer: GraphLayer) -> dict[str, np.ndarray]:
    """The weights in float64, after all were drawn anew, so that none is 0 or 1."""
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return {name: value.double().numpy() for name, value in layer.state_dict().items()}


def affine(rows: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    return rows @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=40)
@given(block=blocks, at=places, alpha=st.sampled_from([0.0, 0.1, 1.0]), strength=st.sampled_from([0.0, 0.5, 1.5]))
def test_gcnii_is_its_formula(backend, block, at, alpha, strength):
    """Chen et al. (2020), Eq. 5. `degrees` are the whole graph's, of which a block may hold a sample of the edges.

    Of d in-neighbours m are there: each stands for d / m. So row v of P has d_v / m_v / sqrt((d_v + 1) (d_u + 1)) at
    each of them, and 1 / (d_v + 1) at v itself.
    """
    place = place_of(*at, initial_residual=alpha, identity_mapping=strength)
    layer = gcnii.Layer(place)
    weights, own = numbers(layer), block.num_destinations
    sources, carried = torch.randn(block.num_sources, place.width_in), torch.randn(own + 2, HIDDEN)
    degrees = block.degrees.double().numpy()
    matrix = edge_counts(block).double().numpy()
    matrix *= (degrees[:own] / np.maximum(matrix.sum(1), 1))[:, None]
    matrix += np.eye(*matrix.shape)
    matrix /= np.sqrt(np.outer(degrees[:own] + 1, degrees + 1))

    rows, initial = sources.double().numpy(), carried.double().numpy()[:own]
    if place.first:
        rows = np.maximum(affine(rows, weights, "input"), 0)
        initial = rows[:own]
    beta = math.log(strength / (at[0] + 1) + 1)
    mapping = (1 - beta) * np.eye(HIDDEN) + beta * weights["linear.weight"].T
    expected = np.maximum(((1 - alpha) * matrix @ rows + alpha * initial) @ mapping, 0)
    if place.last:
        expected = affine(expected, weights, "output")

    found, passed = layer(load_operators(backend), block, sources, None if place.first else carried)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=2e-4, atol=2e-4)
    if place.last:
        assert passed is None
    else:
        np.testing.assert_allclose(passed.detach().numpy(), initial, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=40)
@given(block=blocks, at=places)
def test_residual_sage_is_its_formula(backend, block, at):
    place = place_of(*at)
    layer = ressage.Layer(place)
    weights, own = numbers(layer), block.num_destinations
    sources = torch.randn(block.num_sources, place.width_in)

    def activated(rows: np.ndarray, name: str) -> np.ndarray:
        deviation = np.sqrt(rows.var(1, keepdims=True) + 1e-5)
        normal = (rows - rows.mean(1, keepdims=True)) / deviation
        return np.maximum(normal * weights[f"{name}.weight"] + weights[f"{name}.bias"], 0)

    matrix = edge_counts(block).double().numpy()
    matrix /= np.maximum(matrix.sum(1, keepdims=True), 1)
    rows = sources.double().numpy()
    entered = rows if place.first else activated(rows, "norm")
    expected = affine(entered[:own], weights, "own") + affine(matrix @ entered, weights, "neighbours")
    if not place.first:
        expected = expected + rows[:own]
    if place.last:
        expected = affine(activated(expected, "output_norm"), weights, "output")

    found, passed = layer(load_operators(backend), block, sources)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=5e-4, atol=5e-4)
    assert passed is None


def test_gcnii_starts_as_in_its_authors_code():
    """Uniform within 1 / sqrt(inputs): standard deviation bound / sqrt(3), of 2500 draws known to about 1%."""
    specification = ModelSpecification(**MODEL | {"layer": "gcnii", "num_layers": 2, "hidden": 50})
    for name, value in Model(specification, 50, 50, seed=0).named_parameters():
        bound = 1 / math.sqrt(50)
        assert value.abs().max() <= bound, name
        if value.dim() == 2:
            assert value.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05), name


def test_residual_blocks_start_normalised_and_unshifted():
    state = Model(
        ModelSpecification(**MODEL | {"layer": "ressage", "num_layers": 3}), FEATURES, CLASSES, 0
    ).state_dict()
    assert all((value == 1).all() for name, value in state.items() if name.endswith("norm.weight"))
    assert all((value == 0).all() for name, value in state.items() if name.endswith("bias"))


def whole_graph(seed: int, num_nodes: int) -> tuple[Block, torch.Tensor]:
    """A random graph as a block of all its nodes, and features."""
    indptr, indices = graph_arrays(seed, num_nodes)
    return Block(indptr, indices, num_nodes, torch.diff(indptr).float()), torch.randn(num_nodes, FEATURES)


@pytest.mark.parametrize("layer", list(LAYERS))
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), num_nodes=st.integers(2, 25))
def test_a_batch_of_all_neighbours_is_scored_as_on_the_whole_graph(layer, seed, num_nodes):
    """Also what is carried is that of a block's own destinations, which become fewer from layer to layer."""
    block, features = whole_graph(seed, num_nodes)
    operators = load_operators("torch")
    model = Model(ModelSpecification(**MODEL | {"layer": layer, "num_layers": 3}), FEATURES, CLASSES, seed % 100)
    seeds = torch.randperm(num_nodes)[: max(1, num_nodes // 3)]
    sampler = NeighbourSampler(block.indptr, block.indices, [-1, -1, -1])
    batch = sampler.sample(seeds, generator_for(0))
    found = model(operators, batch.blocks, features[batch.input_nodes])
    torch.testing.assert_close(found, model(operators, [block] * 3, features)[seeds], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer", list(LAYERS))
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_model_may_be_cut_between_layers(layer, cut):
    """The pieces pass rows and what is carried, and the gradients of both back: together they are the whole model."""
    block, features = whole_graph(3, 20)
    operators = load_operators("torch")
    model = Model(ModelSpecification(**MODEL | {"layer": layer, "num_layers": 4}), FEATURES, CLASSES, 0)
    whole = model(operators, [block] * 4, features)
    outward = torch.randn_like(whole)
    wanted = torch.autograd.grad(whole, list(model.parameters()), outward)

    rows, carried = features, None
    for index in range(cut):
        rows, carried = model.layer(index, operators, block, rows, carried)
    sent = [rows] if carried is None else [rows, carried]
    assert [tensor.shape[1] for tensor in sent] == [
        width for width in (model.widths[cut], model.layers[cut - 1].carried_width) if width
    ]
    received = [tensor.detach().requires_grad_() for tensor in sent]
    rows, carried = received if len(received) == 2 else (received[0], None)
    for index in range(cut, 4):
        rows, carried = model.layer(index, operators, block, rows, carried)
    assert carried is None
    torch.testing.assert_close(rows, whole)
    rows.backward(outward)
    torch.autograd.backward(sent, [tensor.grad for tensor in received])
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], list(wanted))


@pytest.mark.parametrize("layer", DEEP)
def test_nothing_is_dropped_in_evaluation_and_something_in_training(layer):
    block, features = random_block(0, 12, 0, 0.4), torch.randn(12, FEATURES)
    options = {"layer": layer, "num_layers": 3, "dropout": 0.5}
    model, operators = Model(ModelSpecification(**MODEL | options), FEATURES, CLASSES, 0), load_operators("torch")
    assert not torch.equal(model(operators, [block] * 3, features), model(operators, [block] * 3, features))
    model.eval()
    assert torch.equal(model(operators, [block] * 3, features), model(operators, [block] * 3, features))


@pytest.fixture(scope="module")
def homophilous(tmp_path_factory):
    """A power-law graph of 1000 nodes of 4 classes: its whole block, features, labels and split."""
    out = tmp_path_factory.mktemp("homophilous") / "graph"
    options = {"num_nodes": 1000, "mean_degree": 8, "num_classes": 4, "num_features": 16, "homophily": 0.8}
    build_graph({"source": "powerlaw"} | options, out)
    graph = open_graph(out)
    arrays = (graph.indptr, graph.indices, graph.features, graph.labels, graph.split)
    indptr, indices, features, labels, split = (torch.from_numpy(np.array(array)) for array in arrays)
    return Block(indptr, indices, graph.num_nodes, torch.diff(indptr).float()), features, labels, split


def train(layer: str, num_layers: int, homophilous: tuple) -> tuple[list[float], float]:
    """Losses of 40 epochs by Adam in float32, and the accuracy of the test nodes after them."""
    block, features, labels, split = homophilous
    specification = ModelSpecification(**MODEL | {"layer": layer, "num_layers": num_layers, "hidden": 32})
    model, operators = Model(specification, 16, 4, seed=0), load_operators("torch")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(40):
        scores = model(operators, [block] * num_layers, features)
        loss = functional.cross_entropy(scores[split == 0], labels[split == 0])
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    scores = model(operators, [block] * num_layers, features)
    return losses, (scores.argmax(1) == labels)[split == 2].float().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("layer", DEEP)
def test_32_layers_train(layer, homophilous):
    """Twice as good as chance, which is 1 / 4, and no worse than half of what two layers reach."""
    _, shallow = train(layer, 2, homophilous)
    losses, deep = train(layer, 32, homophilous)
    assert max(losses) < 2 * losses[0]
    assert losses[-1] < losses[0] / 2
    assert deep > max(0.5, shallow / 2)

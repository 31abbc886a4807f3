"""Aggregation and sampling: both backends against dense arithmetic, and the sampler against its definition."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anatomy.training.operators import load_operators
from anatomy.training.operators.base import choose_distinct
from anatomy.training.operators.block import Block
from anatomy.training.sampling import NeighbourSampler, generator_for

BACKENDS = ("dgl", "torch")


def random_block(seed: int, num_destinations: int, num_others: int, density: float) -> Block:
    """A block in which some destinations may have no edge."""
    rng = np.random.default_rng(seed)
    linked = rng.random((num_destinations, num_destinations + num_others)) < density
    indptr = np.concatenate([[0], np.cumsum(linked.sum(1))])
    indices = np.nonzero(linked)[1]
    degrees = rng.integers(1, 9, linked.shape[1]).astype(np.float32)
    return Block(torch.from_numpy(indptr), torch.from_numpy(indices), linked.shape[1], torch.from_numpy(degrees))


def edge_counts(block: Block) -> torch.Tensor:
    """How many edges lead from each source to each destination, [destinations, sources]."""
    counts = torch.zeros(block.num_destinations, block.num_sources)
    return counts.index_put((block.edge_destinations, block.indices), torch.ones(block.num_edges), accumulate=True)


blocks = st.builds(
    random_block,
    seed=st.integers(0, 2**32 - 1),
    num_destinations=st.integers(1, 9),
    num_others=st.integers(0, 9),
    density=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@settings(max_examples=40, deadline=None)
@given(block=blocks)
def test_aggregate_and_its_gradient_equal_the_dense_product(backend, reduce, block):
    features = torch.randn(block.num_sources, 3, requires_grad=True)
    matrix = edge_counts(block)
    if reduce == "mean":
        matrix = matrix / matrix.sum(1, keepdim=True).clamp(min=1)
    outward = torch.randn(block.num_destinations, 3)
    result = load_operators(backend).aggregate(block, features, reduce)
    torch.testing.assert_close(result, matrix @ features)
    (gradient,) = torch.autograd.grad(result, features, outward)
    torch.testing.assert_close(gradient, matrix.T @ outward)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=40, deadline=None)
@given(block=blocks, heads=st.integers(1, 3))
def test_attention_and_its_gradient_equal_the_dense_softmax(backend, block, heads):
    operators = load_operators(backend)
    block = block.with_self_edges
    features = torch.randn(block.num_sources, heads, 2, requires_grad=True)
    scores = torch.randn(block.num_sources, heads, requires_grad=True)
    others = torch.randn(block.num_destinations, heads, requires_grad=True)

    result = operators.aggregate(block, features, "sum", operators.attention(block, scores, others))

    exponents = torch.nn.functional.leaky_relu(scores.T[:, None, :] + others.T[:, :, None], 0.2).exp() * edge_counts(
        block
    )
    expected = torch.einsum("hds,shw->dhw", exponents / exponents.sum(2, keepdim=True), features)
    torch.testing.assert_close(result, expected)
    outward = torch.randn_like(result)
    found = torch.autograd.grad(result, (features, scores, others), outward)
    wanted = torch.autograd.grad(expected, (features, scores, others), outward)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(population=st.integers(1, 40), size=st.integers(1, 12), seed=st.integers(0, 1000))
def test_chosen_numbers_are_distinct_and_in_range(population, size, seed):
    size = min(size, population)
    chosen = choose_distinct(torch.tensor([population, population + 3]), size, generator_for(seed))
    for row, limit in zip(chosen.tolist(), (population, population + 3), strict=True):
        assert len(set(row)) == size
        assert min(row) >= 0
        assert max(row) < limit


def test_every_subset_is_chosen_equally_often():
    """3 of 5: each of the 10 subsets in a tenth of the draws; a standard deviation is sqrt(20000 * 0.1 * 0.9) = 42."""
    chosen = choose_distinct(torch.full((20_000,), 5), 3, generator_for(1))
    _, counts = np.unique(np.sort(chosen.numpy(), 1), axis=0, return_counts=True)
    assert len(counts) == 10
    assert np.abs(counts - 2000).max() < 5 * 42


def graph_arrays(seed: int, num_nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    linked = rng.random((num_nodes, num_nodes)) < rng.random((num_nodes, 1))
    return torch.from_numpy(np.concatenate([[0], np.cumsum(linked.sum(1))])), torch.from_numpy(np.nonzero(linked)[1])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_nodes=st.integers(1, 25),
    fanouts=st.lists(st.sampled_from([-1, 1, 2, 5]), min_size=1, max_size=3),
)
def test_a_batch_holds_what_its_fanouts_say(seed, num_nodes, fanouts):
    indptr, indices = graph_arrays(seed, num_nodes)
    seeds = torch.randperm(num_nodes)[: max(1, num_nodes // 3)]
    sampler = NeighbourSampler(load_operators("torch"), indptr, indices, fanouts)
    batch = sampler.sample(seeds, generator_for(seed % 1000))
    nodes = batch.input_nodes
    for block, fanout in zip(batch.blocks, fanouts, strict=True):
        assert block.num_sources == len(nodes) == len(set(nodes.tolist()))
        torch.testing.assert_close(block.degrees, torch.diff(indptr)[nodes].float())
        for destination in range(block.num_destinations):
            node = nodes[destination]
            neighbours = indices[indptr[node] : indptr[node + 1]].tolist()
            sampled = nodes[block.indices[block.indptr[destination] : block.indptr[destination + 1]]].tolist()
            assert len(sampled) == (len(neighbours) if fanout < 0 else min(fanout, len(neighbours)))
            assert len(set(sampled)) == len(sampled)
            assert set(sampled) <= set(neighbours)
        nodes = nodes[: block.num_destinations]
    assert torch.equal(nodes, seeds)


def test_equal_generators_give_equal_batches_whatever_the_backend():
    indptr, indices = graph_arrays(3, 40)
    batches = [
        NeighbourSampler(load_operators(backend), indptr, indices, [3, 3]).sample(
            torch.arange(6), generator_for(0, 1, 2)
        )
        for backend in BACKENDS
    ]
    assert torch.equal(batches[0].input_nodes, batches[1].input_nodes)
    for left, right in zip(batches[0].blocks, batches[1].blocks, strict=True):
        assert torch.equal(left.indices, right.indices)


def test_sampled_graph_convolution_is_unbiased():
    """The mean over many samples of what a node aggregates is what it aggregates from all its neighbours."""
    from anatomy.training.layers._base import Place
    from anatomy.training.layers.gcn import Layer
    from anatomy.training.specification import ModelSpecification

    indptr, indices = graph_arrays(5, 30)
    features = torch.randn(30, 4)
    model = ModelSpecification("m", "gcn", 1, 8, 1, 0.0, 0.1, 0.5)
    layer, operators = Layer(Place(0, 4, 2, model)), load_operators("torch")

    def aggregate(fanout: int, generator: torch.Generator) -> torch.Tensor:
        batch = NeighbourSampler(operators, indptr, indices, [fanout]).sample(torch.arange(30), generator)
        return layer.aggregate(operators, batch.blocks[0], features[batch.input_nodes])

    generator = generator_for(0)
    samples = torch.stack([aggregate(3, generator) for _ in range(1500)])
    errors = (samples.mean(0) - aggregate(-1, generator)).abs()
    assert (errors < 5 * samples.std(0) / 1500**0.5 + 1e-6).all()

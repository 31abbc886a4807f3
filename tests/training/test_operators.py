"""Aggregation and sampling: both backends against dense arithmetic, and the sampler against its definition."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anatomy.training.layers._base import Place
from anatomy.training.layers.gcn import Layer as GcnLayer
from anatomy.training.layers.sage import Layer as SageLayer
from anatomy.training.operators import load_operators
from anatomy.training.operators.block import Block
from anatomy.training.sampling import NeighbourSampler, generator_for
from anatomy.training.specification import ModelSpecification

BACKENDS = ("dgl", "torch")
MODEL = ModelSpecification("m", "gcn", 1, 8, 1, 0.0, 0.1, 0.5)


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
@settings(max_examples=40)
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
@settings(max_examples=40)
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


def test_every_subset_is_chosen_equally_often():
    """3 of 5: each of the 10 subsets in a tenth of the draws; a standard deviation is sqrt(20000 * 0.1 * 0.9) = 42."""
    num_nodes = 20_000
    indptr = torch.cat([torch.arange(num_nodes + 1) * 5, torch.full((5,), num_nodes * 5)])
    indices = (num_nodes + torch.arange(5)).repeat(num_nodes)
    batch = NeighbourSampler(indptr, indices, [3]).sample(torch.arange(num_nodes), generator_for(1))
    chosen = batch.input_nodes[batch.blocks[0].indices].numpy().reshape(num_nodes, 3)
    _, counts = np.unique(np.sort(chosen, 1), axis=0, return_counts=True)
    assert len(counts) == 10
    assert np.abs(counts - 2000).max() < 5 * 42


def graph_arrays(seed: int, num_nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    linked = rng.random((num_nodes, num_nodes)) < rng.random((num_nodes, 1))
    return torch.from_numpy(np.concatenate([[0], np.cumsum(linked.sum(1))])), torch.from_numpy(np.nonzero(linked)[1])


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_nodes=st.integers(1, 25),
    fanouts=st.lists(st.sampled_from([-1, 1, 2, 5]), min_size=1, max_size=3),
)
def test_a_batch_holds_what_its_fanouts_say(seed, num_nodes, fanouts):
    indptr, indices = graph_arrays(seed, num_nodes)
    seeds = torch.randperm(num_nodes)[: max(1, num_nodes // 3)]
    sampler = NeighbourSampler(indptr, indices, fanouts)
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


def test_equal_generators_give_equal_batches_and_others_give_others():
    indptr, indices = graph_arrays(3, 40)
    sampler = NeighbourSampler(indptr, indices, [3, 3])
    first, again, other = (sampler.sample(torch.arange(6), generator_for(0, 1, last)) for last in (2, 2, 3))
    assert torch.equal(first.input_nodes, again.input_nodes)
    assert not torch.equal(first.input_nodes, other.input_nodes)
    for left, right in zip(first.blocks, again.blocks, strict=True):
        assert torch.equal(left.indptr, right.indptr)
        assert torch.equal(left.indices, right.indices)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=30)
@given(block=blocks, others=st.integers(0, 9), seed=st.integers(0, 2**32 - 1))
def test_a_layer_reads_its_sources_in_a_larger_table(backend, block, others, seed):
    """The same output and weight gradients, wherever in the table the sources' rows lie."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(block.num_sources + others, generator=generator)[: block.num_sources]
    table = torch.full((block.num_sources + others, 4), torch.nan)
    table[rows] = torch.randn(block.num_sources, 4, generator=generator)
    layer, operators = SageLayer(Place(0, 4, 2, MODEL)), load_operators(backend)
    found, _ = layer(operators, block.within(table, rows), table)
    expected, _ = layer(operators, block, table[rows])
    torch.testing.assert_close(found, expected)
    outward = torch.randn_like(found)
    gradients = [torch.autograd.grad(one, layer.parameters(), outward) for one in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_sampled_graph_convolution_is_unbiased():
    """The mean over many samples of what a node aggregates is what it aggregates from all its neighbours."""
    indptr, indices = graph_arrays(5, 30)
    features = torch.randn(30, 4)
    layer, operators = GcnLayer(Place(0, 4, 2, MODEL)), load_operators("torch")

    def aggregate(fanout: int, generator: torch.Generator) -> torch.Tensor:
        batch = NeighbourSampler(indptr, indices, [fanout]).sample(torch.arange(30), generator)
        return layer.aggregate(operators, batch.blocks[0], features[batch.input_nodes])

    generator = generator_for(0)
    samples = torch.stack([aggregate(3, generator) for _ in range(1500)])
    errors = (samples.mean(0) - aggregate(-1, generator)).abs()
    assert (errors < 5 * samples.std(0) / 1500**0.5 + 1e-6).all()

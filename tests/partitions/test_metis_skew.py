"""METIS told to make unequal parts does: part by part, their shares are those asked for."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anatomy.partitions.build import assign
from anatomy.partitions.methods._metis_process import sizes
from anatomy.partitions.options import complete_options

NUM_NODES = 600


def shares_of(nodes: np.ndarray, num_parts: int) -> np.ndarray:
    return np.bincount(nodes, minlength=num_parts) / len(nodes)


@given(num_parts=st.integers(1, 9), skew=st.floats(0, 0.99))
def test_sizes_fall_evenly_around_their_mean(num_parts, skew):
    found = sizes(num_parts, skew)
    if num_parts > 1:
        assert found.mean() == pytest.approx(1)
        assert found[[0, -1]].tolist() == pytest.approx([1 + skew, 1 - skew])
    assert np.ptp(np.diff(found)) == pytest.approx(0, abs=1e-12) if num_parts > 2 else True


def test_two_parts_of_skew_two_fifths_are_seven_and_three_tenths():
    assert (sizes(2, 0.4) / 2).tolist() == pytest.approx([0.7, 0.3])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    num_parts=st.integers(2, 6),
    skew=st.floats(0, 0.8),
    seed=st.integers(0, 5),
    balance_train=st.booleans(),
    objective=st.sampled_from(["cut", "volume"]),
)
def test_parts_have_the_shares_asked_for(graph_of, metis_here, skewed, num_parts, skew, seed, balance_train, objective):
    """Of all nodes, within METIS's tolerance and a node; with `balance_train` of training nodes and others each."""
    train = np.random.default_rng(seed).random(NUM_NODES) < 0.3
    graph = graph_of(NUM_NODES, skewed(seed, NUM_NODES, 3000), split=np.where(train, 0, 1))
    given_options = {"method": "metis", "seed": seed, "skew": skew, "attempts": 1, "objective": objective}
    nodes = assign(graph, complete_options(given_options | {"balance_train": balance_train}), num_parts).nodes
    wanted = sizes(num_parts, skew) / num_parts
    for group in [train, ~train] if balance_train else [np.ones(NUM_NODES, bool)]:
        found = np.bincount(nodes[group], minlength=num_parts)
        assert (found <= 1.03 * wanted * group.sum() + 1).all()


def test_without_a_skew_nothing_is_asked_for(graph_of, metis_here, skewed):
    graph = graph_of(NUM_NODES, skewed(0, NUM_NODES, 3000))
    plain, even = ({"method": "metis", "seed": 0, **options} for options in ({}, {"skew": 0}))
    assert "skew" not in complete_options(plain), "partitions made before are still theirs"
    found = [assign(graph, complete_options(options), 3).nodes for options in (plain, even)]
    assert (found[0] == found[1]).all()

"""The table of memory by owner, from a partition and a model whose sizes are worked out by hand."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anatomy.tables.common.account import Model, Part, account, parts_of

PEAK = 1_000_000
WEIGHTS = 4 * 4 * 10
"""10 parameters, each with its gradient and two moments, float32."""


@pytest.fixture
def owners_of(results, built):
    """Bytes by rank and owner of a run of `sage` with widths 5, 8, 3 on two parts.

    Part 0 has 3 nodes, 9 in-edges of which 4 come from 2 nodes of part 1; part 1 has 2 nodes, 5 in-edges of which 3
    come from 3 nodes of part 0.
    """
    results.partition("ring", "metis-2", [0, 0, 0, 1, 1], [[0, 3], [2, 0]], edges=[(9, 4), (5, 3)])

    def build(**run) -> pd.DataFrame:
        epochs = [{"rank": rank, "peak_memory_bytes": PEAK + rank} for rank in (0, 1)]
        name = results.run(epochs=epochs, layer_dims=[5, 8, 3], **run)
        table = built("memory", results.study(name))
        return table.pivot(index="rank", columns="owner", values="bytes")

    return build


def test_plain_training_by_hand(owners_of):
    rank = owners_of().loc[0]
    own, halo, sent, edges = 3, 2, 3, 9
    assert rank["features"] == 4 * 5 * (own + halo)
    # indptr and counts, indices, degrees; by source: indptr, and per edge destination, number and place
    forwards = 8 * (own + 1 + own) + 8 * edges + 4 * (own + halo)
    assert rank["structure"] == forwards + 8 * (own + halo + 1) + 3 * 8 * edges
    # the aggregate of features and the first layer's output; the last layer projects first, since it is narrower
    assert rank["activations"] == 4 * own * (5 + 8)
    # one table, rows sent forwards at widths 5 and 8, gradients received at 8, and added up for the own nodes
    assert rank["exchange"] == 4 * ((own + halo) * 8 + sent * (5 + 8) + sent * 8 + own * 8)
    assert rank["evaluation"] == 4 * own * 5
    assert rank["parameters"] == WEIGHTS
    assert rank["rest"] == PEAK - rank.drop("rest").sum()


def test_the_account_of_every_rank_adds_up_to_its_peak(owners_of):
    for options in ({}, {"method": "bns", "options": {"rate": 0.5, "first_layer": "sent"}}):
        assert owners_of(**options).sum(axis=1).tolist() == [PEAK, PEAK + 1]


def test_a_sample_is_smaller_but_stands_beside_what_evaluation_needs(owners_of):
    plain, ours = owners_of().loc[1], owners_of(method="bns", options={"rate": 0.5, "first_layer": "sent"}).loc[1]
    own, halo, sent, edges = 2, 3, 2, 5
    drawn, sent_drawn = int(0.5 * halo), int(0.5 * sent)
    edges_drawn = (edges - 3) + round(3 * drawn / halo)
    assert ours["features"] == plain["features"] + 4 * 5 * (own + drawn)
    whole = 8 * (own + 1 + own) + 8 * edges + 4 * (own + halo)
    sample = 8 * (own + 1 + own) + 8 * edges_drawn + 4 * (own + drawn) + 4 * (own + drawn)
    assert ours["structure"] == whole + sample + 8 * (own + drawn + 1) + 3 * 8 * edges_drawn
    assert ours["exchange"] == 4 * ((own + drawn) * 8 + sent_drawn * (5 + 8) + sent_drawn * 8 + own * 8)
    assert ours["evaluation"] == plain["evaluation"] + 4 * ((own + halo) * 8 + sent * (5 + 8))


def test_of_wide_features_no_aggregate_is_kept():
    part = Part(own=10, halo=4, sent=3, edges=50)
    narrow, wide = (
        account(part, part, Model("sage", [width, 8, 3], 100), {"method": "fullgraph"})
        for width in (16 * 8, 16 * 8 + 1)
    )
    assert (narrow["evaluation"], wide["evaluation"]) == (4 * 10 * 128, 0)
    assert narrow["activations"] - wide["activations"] == 4 * 10 * 128


def test_mini_batches_have_parameters_what_is_kept_and_a_rest(owners_of):
    assert set(owners_of(method="minibatch", options={"fanouts": [2, 2]}).columns) == {"parameters", "kept", "rest"}


def test_what_a_strategy_keeps_is_as_its_ranks_found_it(owners_of):
    plain, keeping = owners_of(), owners_of(seed=1, kept_bytes=[70, 90])
    assert keeping["kept"].tolist() == [70, 90]
    assert (plain["rest"] - keeping["rest"]).tolist() == [70, 90]


def test_on_gpus_there_is_no_rest(results, built):
    results.partition("ring", "metis-2", [0, 0, 0, 1, 1], [[0, 3], [2, 0]], edges=[(9, 4), (5, 3)])
    epochs = [{"rank": rank} for rank in (0, 1)]
    name = results.run(epochs=epochs, device="cuda")
    assert "rest" not in set(built("memory", results.study(name))["owner"])


def test_a_failed_run_is_one_row_without_numbers(results, built):
    table = built("memory", results.study(results.run(status="out of memory")))
    assert (len(table), table["status"][0], table["bytes"].isna().all()) == (1, "out of memory", True)


sizes = st.integers(0, 10**6)


@given(sizes, sizes, sizes, sizes, st.lists(st.integers(1, 512), min_size=2, max_size=9))
def test_a_larger_part_never_needs_less(own, halo, sent, edges, widths):
    model = Model("sage", widths, 100)
    for strategy in ({"method": "fullgraph"}, {"method": "pipegcn", "variant": "plain"}, {"method": "chunked"}):
        small, large = Part(own, halo, sent, edges), Part(own + 1, halo + 2, sent + 3, edges + 4)
        less, more = (account(part, part, model, strategy) for part in (small, large))
        assert all(0 <= less[owner] <= more[owner] for owner in less)
        assert less.keys() == more.keys()


@given(st.integers(1, 5), st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_a_sample_is_a_part_of_the_part(num_parts, seed, rate):
    random = np.random.default_rng(seed)
    halo = random.integers(0, 100, (num_parts, num_parts))
    np.fill_diagonal(halo, 0)
    parts = [{"nodes": 7, "edges": 500, "cut_edges": int(cut)} for cut in random.integers(0, 500, num_parts)]
    manifest = {"parts": parts, "halo_matrix": halo.tolist()}
    whole, sample = parts_of(manifest), parts_of(manifest, rate)
    for part, drawn in zip(whole, sample, strict=True):
        assert (drawn.own, drawn.is_one_of_several) == (part.own, num_parts > 1)
        assert drawn.halo <= part.halo
        assert drawn.sent <= part.sent
        assert drawn.edges <= part.edges
    assert sum(part.sent for part in whole) == sum(part.halo for part in whole) == halo.sum()

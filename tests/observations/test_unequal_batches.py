"""What unequal batches win back, beyond what all observations are tested for."""

import pytest

from anatomy.observations.common.reading import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED


def test_what_is_won_back_is_of_what_equal_batches_waste(planted, verdict_on):
    table = planted.table("unequal_batches_use_fast_ranks", holds=True)
    estimate = verdict_on("unequal_batches_use_fast_ranks", table).estimate
    assert estimate == pytest.approx((1 / 100 - 1 / 140) / (1 / 100 - 1 / 150), abs=0.1)
    # Were the rank 4 times slower, 10 ms in place of 5 would be computing for 5/3 ms, which 2 ranks could do in 8/3.
    slower = verdict_on("unequal_batches_use_fast_ranks", table, {"factor": 4})
    assert slower.estimate == pytest.approx((1 / 100 - 1 / 140) / (4 * 5e-3 / 3 - 8e-3 / 3), abs=0.1)


@pytest.mark.parametrize(("won_back", "verdict"), [(1.0, SUPPORTED), (0.2, NOT_SUPPORTED)])
def test_time_that_no_slowness_stretches_is_not_wasted(planted, verdict_on, won_back, verdict):
    """Of 6 ms, 4 are waiting for links whatever the rank: it makes 8 of them, and sharing the work can make 6.67."""
    table = planted.table("unequal_batches_use_fast_ranks", holds=True)
    slow, equal = table["condition"].notna(), table["strategy"] == "minibatch"
    table.loc[equal & ~slow, "train_nodes_per_s"] = 1 / 6e-3
    table.loc[equal & slow, "train_nodes_per_s"] = 1 / 8e-3
    table.loc[~equal & slow, "train_nodes_per_s"] = 1 / (8e-3 - won_back * (2 - 2 / 1.5) * 2e-3)
    judgement = verdict_on("unequal_batches_use_fast_ranks", table)
    assert judgement.estimate == pytest.approx(won_back)
    assert judgement.verdict == verdict


def test_nothing_to_compare_with_is_inconclusive(planted, verdict_on):
    table = planted.table("unequal_batches_use_fast_ranks", holds=True)
    undisturbed = (table["strategy"] == "minibatch") & table["condition"].isna()
    judgement = verdict_on("unequal_batches_use_fast_ranks", table[~(undisturbed & (table["seed"] == 1))])
    assert judgement.verdict == INCONCLUSIVE
    assert "balanced.sage.c-slow-2x.s1" in judgement.reason


def test_a_slow_rank_that_costs_nothing_is_inconclusive(planted, verdict_on):
    table = planted.table("unequal_batches_use_fast_ranks", holds=True)
    equal = (table["strategy"] == "minibatch") & table["condition"].notna()
    table.loc[equal, "train_nodes_per_s"] = 220.0
    judgement = verdict_on("unequal_batches_use_fast_ranks", table)
    assert judgement.verdict == INCONCLUSIVE
    assert judgement.reason.startswith("the slow rank costs equal batches nothing beside ")

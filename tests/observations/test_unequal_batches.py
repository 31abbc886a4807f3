"""What unequal batches win back, beyond what all observations are tested for."""

import pytest

from anatomy.observations.common.reading import INCONCLUSIVE, NOT_SUPPORTED


def test_what_is_won_back_is_of_what_equal_batches_waste(planted, verdict_on):
    table = planted.table("unequal_batches_use_fast_ranks", holds=True)
    estimate = verdict_on("unequal_batches_use_fast_ranks", table).estimate
    assert estimate == pytest.approx((140 - 100) / (150 - 100), abs=0.1)
    halved = verdict_on("unequal_batches_use_fast_ranks", table, {"factor": 1.01})
    assert halved.estimate == pytest.approx(40 / 99, abs=0.1)
    assert halved.verdict == NOT_SUPPORTED


def test_nothing_to_compare_with_is_inconclusive(planted, verdict_on):
    table = planted.table("unequal_batches_use_fast_ranks", holds=True)
    undisturbed = (table["strategy"] == "minibatch") & table["condition"].isna()
    judgement = verdict_on("unequal_batches_use_fast_ranks", table[~(undisturbed & (table["seed"] == 1))])
    assert judgement.verdict == INCONCLUSIVE
    assert "balanced.sage.c-slow-2x.s1" in judgement.reason


def test_equal_batches_that_waste_nothing_are_inconclusive(planted, verdict_on):
    table = planted.table("unequal_batches_use_fast_ranks", holds=True)
    equal = (table["strategy"] == "minibatch") & table["condition"].notna()
    table.loc[equal, "train_nodes_per_s"] = 180.0
    judgement = verdict_on("unequal_batches_use_fast_ranks", table)
    assert judgement.verdict == INCONCLUSIVE
    assert judgement.reason.startswith("equal batches waste nothing beside ")

"""Controls of every observation: true claims are found, and false ones never pass for supported.

An observation that is added is tested here too: its planted table is the one thing to write, in conftest.py.
"""

import numpy as np
import pandas as pd
import pytest

from anatomy.observations import OBSERVATIONS
from anatomy.observations.common.reading import INCONCLUSIVE, NOT_MEASURABLE, NOT_SUPPORTED, SUPPORTED

every_observation = pytest.mark.parametrize("observation", list(OBSERVATIONS))

LABELS = {
    "preparation_dominates": ["group", "phase"],
    "partitioner_cuts_volume": ["partitioner"],
    "partitioner_cuts_fetches": ["partitioner"],
    "volume_predicted": ["kind", "predicted_bytes_per_epoch"],
    "strong_scaling_efficiency": ["efficiency"],
    "weak_scaling_efficiency": ["efficiency"],
    "slow_links_dominate": ["link_mbit"],
    "cache_catches_refetches": ["policy", "capacity_share"],
    "minibatch_reaches_accuracy_sooner": ["method"],
    "strategies_hide_communication": ["method"],
    "buckets_hide_synchronisation": ["policy"],
    "sampling_saves_memory": ["method"],
    "chunks_fill_the_pipeline": ["chunks"],
    "colocation_sends_least": ["together"],
    "pipelining_wins_when_deep": ["chunks", "num_layers"],
    "repartitioning_restores_accuracy": ["period", "turns"],
    "coverage_correction_restores_accuracy": ["correction"],
    "balancing_lifts_the_worst_rank": ["sampler"],
    "gossip_outruns_slow_ranks": ["slow_factor"],
    "unequal_batches_use_fast_ranks": ["method"],
}
"""The columns that tie a number to what it is said to be a number of."""

SWAPPED = {
    "preparation_dominates": {
        "group": {"preparation": "compute", "compute": "preparation"},
        "phase": {"fetch": "sync", "sync": "fetch"},
    },
    "partitioner_cuts_volume": {"partitioner": {"metis": "random", "random": "metis"}},
    "partitioner_cuts_fetches": {"partitioner": {"metis": "random", "random": "metis"}},
    "slow_links_dominate": {"link_mbit": {100: 1000, 1000: 100}},
    "minibatch_reaches_accuracy_sooner": {"method": {"minibatch": "fullgraph", "fullgraph": "minibatch"}},
    "strategies_hide_communication": {"method": {"pipegcn": "fullgraph", "fullgraph": "pipegcn"}},
    "buckets_hide_synchronisation": {"policy": {"buckets": "dense", "dense": "buckets"}},
    "sampling_saves_memory": {"method": {"bns": "fullgraph", "fullgraph": "bns"}},
    "chunks_fill_the_pipeline": {"chunks": {2: 8, 8: 2}},
    "colocation_sends_least": {"together": {True: False, False: True}},
    "pipelining_wins_when_deep": {"num_layers": {2: 8, 8: 2}},
    "repartitioning_restores_accuracy": {"turns": {16: 1, 1: 16}, "period": {1: 16, 16: 1}},
    "coverage_correction_restores_accuracy": {"correction": {"none": "shrinkage", "shrinkage": "none"}},
    "balancing_lifts_the_worst_rank": {"sampler": {"balanced": "all", "all": "balanced"}},
    "gossip_outruns_slow_ranks": {"slow_factor": {2: 4, 4: 2}},
}
"""Labels exchanged: what was true is now false."""

SWAPPED_COLUMNS = {
    "volume_predicted": ("compared_bytes_per_epoch", "communication_volume"),
    "strong_scaling_efficiency": ("efficiency", "epoch_s"),
    "weak_scaling_efficiency": ("efficiency", "epoch_s"),
    "sync_is_waiting": ("sync_wait_s_per_step", "compute_s_per_step"),
    "cache_catches_refetches": ("hits", "capacity_nodes"),
    "staleness_costs_no_accuracy": ("accuracy_lost", "accuracy_lost_in_time"),
    "saved_time_is_accuracy": ("accuracy_lost_in_time", "accuracy_lost"),
    "entropy_lowers_accuracy": ("test_accuracy", "run_test_accuracy"),
    "gossip_costs_no_accuracy": ("accuracy_lost", "gain"),
}
"""Columns exchanged; the second is filled with numbers of another kind."""


def decisive_run(table: pd.DataFrame) -> str:
    """The last run on two ranks, for which there are cores, or, where a claim is about more ranks, the last."""
    on_two = table[table["ranks"] == 2]
    return (table if on_two.empty else on_two)["run"].iloc[-1]


@every_observation
def test_a_true_claim_is_supported(observation, planted, verdict_on):
    judgement = verdict_on(observation, planted.table(observation, holds=True))
    assert (judgement.verdict, judgement.reason) == (SUPPORTED, None)
    assert judgement.interval.low <= judgement.estimate <= judgement.interval.high


@every_observation
def test_a_false_claim_is_not_supported(observation, planted, verdict_on):
    assert verdict_on(observation, planted.table(observation, holds=False)).verdict == NOT_SUPPORTED


@every_observation
def test_the_contrary_threshold_turns_a_true_claim_down(observation, planted, verdict_on):
    unreachable = {">": 1e9, "<": -1e9, "<=": -1.0}[OBSERVATIONS[observation].constants["DIRECTION"]]
    table = planted.table(observation, holds=True)
    assert verdict_on(observation, table, {"threshold": unreachable}).verdict == NOT_SUPPORTED


@pytest.mark.parametrize("observation", SWAPPED)
def test_exchanged_labels_are_not_supported(observation, planted, verdict_on):
    table = planted.table(observation, holds=True)
    for column, exchange in SWAPPED[observation].items():
        table[column] = table[column].replace(exchange)
    assert verdict_on(observation, table).verdict == NOT_SUPPORTED


@pytest.mark.parametrize("observation", SWAPPED_COLUMNS)
def test_exchanged_columns_are_not_supported(observation, planted, verdict_on):
    first, second = SWAPPED_COLUMNS[observation]
    table = planted.table(observation, holds=True)
    if table[second].isna().all():
        table[second] = 0.01
    table[[first, second]] = table[[second, first]].to_numpy()
    assert verdict_on(observation, table).verdict == NOT_SUPPORTED


@pytest.mark.parametrize("observation", LABELS)
@pytest.mark.parametrize("shuffle", range(4))
def test_shuffled_labels_are_not_supported(observation, shuffle, planted, verdict_on):
    table = planted.table(observation, holds=True)
    order = np.random.default_rng(shuffle).permutation(len(table))
    table[LABELS[observation]] = table[LABELS[observation]].to_numpy()[order]
    assert verdict_on(observation, table).verdict != SUPPORTED


@pytest.mark.parametrize("shuffle", range(4))
def test_waiting_and_transfer_mixed_up_at_random_are_not_supported(shuffle, planted, verdict_on):
    table = planted.table("sync_is_waiting", holds=True)
    mixed_up = np.random.default_rng(shuffle).permutation(len(table)) < len(table) / 2
    transfer = table["sync_s_per_step"] - table["sync_wait_s_per_step"]
    table["sync_wait_s_per_step"] = table["sync_wait_s_per_step"].mask(mixed_up, transfer)
    assert verdict_on("sync_is_waiting", table).verdict != SUPPORTED


@every_observation
def test_a_failed_run_makes_it_inconclusive_and_is_named(observation, planted, verdict_on):
    table = planted.table(observation, holds=True)
    decisive = decisive_run(table)
    table.loc[table["run"] == decisive, "status"] = "out of memory"
    judgement = verdict_on(observation, table)
    assert judgement.verdict == INCONCLUSIVE
    assert f"{decisive} (out of memory)" in judgement.reason


@every_observation
def test_a_failed_run_is_a_row_of_missing_values_and_still_seen(observation, planted, verdict_on):
    table = planted.table(observation, holds=True)
    decisive = decisive_run(table)
    failed = table[table["run"] == decisive].iloc[:1].copy()
    lead = list(table.columns).index("status")
    failed[failed.columns[lead + 1 :]] = pd.NA
    if "mode" in failed:
        failed["mode"] = table.loc[failed.index, "mode"]
    failed["status"] = "time limit"
    table = pd.concat([table[table["run"] != decisive], failed.astype(table.dtypes)], ignore_index=True)
    judgement = verdict_on(observation, table)
    assert (judgement.verdict, judgement.reason) == (INCONCLUSIVE, f"runs without numbers: {decisive} (time limit)")


@every_observation
@pytest.mark.parametrize("num_seeds", [1, 2])
def test_too_few_repetitions_are_inconclusive(observation, num_seeds, planted, verdict_on):
    table = planted.table(observation, holds=True)
    judgement = verdict_on(observation, table[table["seed"] < num_seeds])
    assert judgement.verdict == INCONCLUSIVE
    assert judgement.reason == f"only {num_seeds} repetitions, at least 3 are needed"


@every_observation
def test_no_run_at_all_is_inconclusive(observation, planted, verdict_on):
    table = planted.table(observation, holds=True)
    assert verdict_on(observation, table.iloc[:0]).verdict == INCONCLUSIVE
    judgement = verdict_on(observation, table, {"where": {"graph": "another"}})
    assert judgement.verdict == INCONCLUSIVE
    assert "graph = another" in judgement.reason
    assert "no column 'colour'" in verdict_on(observation, table, {"where": {"colour": "red"}}).reason


@every_observation
def test_two_platforms_are_never_mixed(observation, planted, verdict_on):
    table = planted.table(observation, holds=True)
    table.loc[table["seed"] == 0, "platform"] = "GPU and NCCL"
    judgement = verdict_on(observation, table)
    assert judgement.verdict == INCONCLUSIVE
    assert "several platforms" in judgement.reason
    one = verdict_on(observation, table, {"where": {"platform": "CPU and Gloo"}})
    assert one.verdict == SUPPORTED


@every_observation
def test_traces_recorded_elsewhere_are_no_evidence(observation, planted, verdict_on):
    table = planted.table(observation, holds=True)
    unknown = ["graph", "partitioner", "num_parts", "strategy", "method", "model", "hosts", "link_mbit", "condition"]
    unknown += ["seed", "oversubscribed"]
    elsewhere = planted.table(observation, holds=False).assign(**dict.fromkeys(unknown, pd.NA))
    elsewhere = elsewhere.assign(run="mine", platform="GPU and NCCL").astype(table.dtypes.to_dict())
    both = pd.concat([table, elsewhere], ignore_index=True)
    assert verdict_on(observation, both) == verdict_on(observation, table)


@every_observation
def test_order_of_rows_changes_nothing(observation, planted, verdict_on):
    table = planted.table(observation, holds=True)
    shuffled = table.sample(frac=1, random_state=1, ignore_index=True)
    first, second = verdict_on(observation, table), verdict_on(observation, shuffled)
    assert first.estimate == pytest.approx(second.estimate, rel=1e-12)
    assert first.interval.low == pytest.approx(second.interval.low, rel=1e-12)


@every_observation
def test_a_second_configuration_in_which_the_claim_is_false_prevents_support(observation, planted, verdict_on):
    true, false = planted.table(observation, holds=True), planted.table(observation, holds=False)
    false["model"] = "gat"
    false["run"] = false["run"].str.replace("sage", "gat")
    both = pd.concat([true, false], ignore_index=True)
    assert verdict_on(observation, both).verdict == NOT_SUPPORTED
    assert verdict_on(observation, both, {"where": {"model": "sage"}}).verdict == SUPPORTED


@every_observation
def test_a_configuration_with_fewer_seeds_is_inconclusive(observation, planted, verdict_on):
    table = planted.table(observation, holds=True)
    more = table[table["seed"] < 4].assign(model="gat")
    more["run"] = more["run"].str.replace("sage", "gat")
    judgement = verdict_on(observation, pd.concat([table, more], ignore_index=True))
    assert judgement.verdict == INCONCLUSIVE
    assert "seeds differ between configurations" in judgement.reason


@pytest.mark.parametrize(
    "observation",
    [
        "preparation_dominates",
        "strong_scaling_efficiency",
        "weak_scaling_efficiency",
        "sync_is_waiting",
        "slow_links_dominate",
        "minibatch_reaches_accuracy_sooner",
        "strategies_hide_communication",
        "buckets_hide_synchronisation",
        "saved_time_is_accuracy",
        "chunks_fill_the_pipeline",
        "pipelining_wins_when_deep",
        "gossip_outruns_slow_ranks",
    ],
)
def test_times_of_oversubscribed_runs_decide_nothing(observation, planted, verdict_on):
    table = planted.table(observation, holds=True)
    table.loc[table["ranks"] > 1, "oversubscribed"] = True
    judgement = verdict_on(observation, table)
    assert judgement.verdict == NOT_MEASURABLE
    assert judgement.reason == "already 2 ranks are more than this machine has cores or GPUs for"


@pytest.mark.parametrize(
    "observation",
    [
        "partitioner_cuts_volume",
        "volume_predicted",
        "cache_catches_refetches",
        "staleness_costs_no_accuracy",
        "sampling_saves_memory",
        "gossip_costs_no_accuracy",
    ],
)
def test_bytes_and_accuracies_of_oversubscribed_runs_are_as_good_as_any(observation, planted, verdict_on):
    table = planted.table(observation, holds=True).assign(oversubscribed=True).astype({"oversubscribed": "boolean"})
    assert verdict_on(observation, table).verdict == SUPPORTED

"""What single observations do beyond what all of them do."""

import subprocess
import sys

import pandas as pd
import pytest

from anatomy.errors import StudyError
from anatomy.observations import OBSERVATIONS
from anatomy.observations.common.reading import INCONCLUSIVE, NOT_MEASURABLE, NOT_SUPPORTED, SUPPORTED
from anatomy.options import complete_options
from anatomy.tables import TABLES


def test_every_observation_says_what_it_must():
    assert len(OBSERVATIONS) >= 6
    for name, plugin in OBSERVATIONS.items():
        said = plugin.constants
        assert said["TABLE"] in TABLES, name
        assert all(
            isinstance(said[key], str) and said[key] for key in ("CLAIM", "SOURCE", "STATISTIC", "UNIT", "FIGURE")
        )
        assert said["DIRECTION"] in (">", "<", "<=")
        defaults = complete_options({}, said["OPTIONS"], name)
        assert defaults["threshold"] == said["THRESHOLD"]
        assert all(described["description"] for described in said["OPTIONS"]["properties"].values())


def test_an_unknown_observation_is_answered_with_those_that_there_are():
    with pytest.raises(StudyError, match=r"observation 'gossip' does not exist; there are: .*cache_catches_refetches"):
        OBSERVATIONS["gossip"]


def test_the_registries_load_neither_pandas_nor_scipy(scripts):
    code = (
        "import sys, anatomy.tables, anatomy.observations;"
        "dict(anatomy.observations.OBSERVATIONS); print(*{'pandas', 'scipy', 'numpy'} & {*sys.modules})"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=scripts, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == ""


def test_judging_needs_neither_torch_nor_dgl_nor_matplotlib(scripts):
    code = (
        "import sys;"
        "sys.meta_path.insert(0, type('', (), {'find_spec': lambda name, *_: exec('raise ImportError(name)')"
        " if name in ('torch', 'dgl', 'matplotlib') else None}));"
        "from anatomy.observations import OBSERVATIONS; from anatomy.tables import TABLES;"
        "import anatomy.observations.common.store, anatomy.observations.common.terminal, anatomy.tables.common.store;"
        "[plugin.load() for plugins in (OBSERVATIONS, TABLES) for plugin in plugins.values()]"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=scripts, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


class TestPreparation:
    def test_communication_counts_only_where_features_are_fetched(self, planted, verdict_on):
        table = planted.table("preparation_dominates", holds=True)
        estimate = verdict_on("preparation_dominates", table).estimate
        # sample 0.45 and fetch 0.3 of sample, fetch, backward 0.15 and sync 0.1
        assert estimate == pytest.approx(0.75, abs=0.02)

    def test_full_graph_runs_are_not_meant(self, planted, verdict_on):
        table = planted.table("preparation_dominates", holds=True).assign(method="fullgraph")
        assert verdict_on("preparation_dominates", table).reason.startswith("no run with method = minibatch")


class TestPredictedVolume:
    def test_a_prediction_that_only_training_makes_counts_too(self, planted, verdict_on):
        table = planted.table("volume_predicted", holds=True)
        table["predicted_bytes_per_epoch"] = pd.array([pd.NA] * len(table), dtype="Float64")
        assert verdict_on("volume_predicted", table).verdict == SUPPORTED
        table.loc[0, "declared_bytes_per_epoch"] += 1
        assert verdict_on("volume_predicted", table).verdict == NOT_SUPPORTED

    def test_no_prediction_or_no_measurement_is_no_success(self, planted, verdict_on):
        table = planted.table("volume_predicted", holds=True)
        unmeasured = table.assign(compared_bytes_per_epoch=pd.array([pd.NA] * len(table), dtype="Float64"))
        assert verdict_on("volume_predicted", unmeasured).verdict == INCONCLUSIVE
        alone = table.assign(ranks=1)
        assert verdict_on("volume_predicted", alone).verdict == INCONCLUSIVE


class TestScaling:
    def test_the_largest_number_of_ranks_with_cores_decides(self, planted, verdict_on):
        table = planted.table("strong_scaling_efficiency", holds=True)
        table.loc[table["ranks"] == 4, "oversubscribed"] = False
        assert verdict_on("strong_scaling_efficiency", table).verdict == NOT_SUPPORTED  # 0.3 at 4 ranks

    def test_a_missing_baseline_is_inconclusive(self, planted, verdict_on):
        table = planted.table("strong_scaling_efficiency", holds=True)
        table.loc[(table["ranks"] == 2) & (table["seed"] == 0), "efficiency"] = pd.NA
        judgement = verdict_on("strong_scaling_efficiency", table)
        assert judgement.verdict == INCONCLUSIVE
        assert "no completed 1-rank run to compare with" in judgement.reason

    def test_one_rank_alone_shows_no_scaling(self, planted, verdict_on):
        table = planted.table("weak_scaling_efficiency", holds=True)
        assert verdict_on("weak_scaling_efficiency", table[table["ranks"] == 1]).verdict == INCONCLUSIVE

    def test_a_failed_oversubscribed_run_decides_nothing_either(self, planted, verdict_on):
        table = planted.table("strong_scaling_efficiency", holds=True)
        table.loc[table["ranks"] == 4, "status"] = "time limit"
        assert verdict_on("strong_scaling_efficiency", table).verdict == SUPPORTED


class TestWaiting:
    def test_unmatched_collectives_are_inconclusive(self, planted, verdict_on):
        table = planted.table("sync_is_waiting", holds=True)
        table.loc[3, "sync_wait_s_per_step"] = pd.NA
        judgement = verdict_on("sync_is_waiting", table)
        assert judgement.verdict == INCONCLUSIVE
        assert "sync_wait_s_per_step" in judgement.reason

    def test_ranks_are_weighted_by_their_time(self, planted, verdict_on):
        table = planted.table("sync_is_waiting", holds=True)
        table["sync_s_per_step"] = table["rank"].map({0: 9.0, 1: 1.0}).astype("Float64")
        table["sync_wait_s_per_step"] = table["rank"].map({0: 0.9, 1: 1.0}).astype("Float64")
        assert verdict_on("sync_is_waiting", table).estimate == pytest.approx(1.9 / 10)


class TestSlowLinks:
    def test_one_strategy_that_hides_enough_is_the_counterexample(self, planted, verdict_on):
        table = planted.table("slow_links_dominate", holds=False)
        assert verdict_on("slow_links_dominate", table).verdict == NOT_SUPPORTED
        assert verdict_on("slow_links_dominate", table, {"where": {"method": "fullgraph"}}).verdict == SUPPORTED

    def test_another_bandwidth_may_be_asked_for(self, planted, verdict_on):
        table = planted.table("slow_links_dominate", holds=True)
        assert verdict_on("slow_links_dominate", table, {"link_mbit": 1000}).estimate == pytest.approx(0.1, rel=0.03)

    def test_runs_over_other_links_decide_nothing_even_if_they_fail(self, planted, verdict_on):
        table = planted.table("slow_links_dominate", holds=True)
        others = table["link_mbit"].isna() & (table["seed"] == 3)
        table.loc[others, "status"] = "time limit"
        table.loc[others, ["exposed_s_per_step", "epoch_s"]] = pd.NA
        assert verdict_on("slow_links_dominate", table).verdict == SUPPORTED

    def test_notes_tell_strategies_and_links_apart(self, planted):
        module, table = OBSERVATIONS["slow_links_dominate"].load(), planted.table("slow_links_dominate", holds=True)
        of_two_links = module.notes(table[table["link_mbit"].fillna(0) != 1000], {})["share_by_configuration"]
        assert list(of_two_links) == ["fullgraph 100", "fullgraph unshaped", "minibatch 100", "minibatch unshaped"]
        shares = module.notes(table, {})["share_by_configuration"]
        found = {name: pytest.approx(share, rel=0.03) for name, share in shares.items()}
        assert found == {
            **{"fullgraph 100": 0.9, "fullgraph 1000": 0.2, "fullgraph unshaped": 0.1},
            **{"minibatch 100": 0.7, "minibatch 1000": 0.1, "minibatch unshaped": 0.1},
        }


class TestTimeToAccuracy:
    def curves(self, planted, **reached: float) -> pd.DataFrame:
        """Planted curves, of which those of a method end at the given accuracy."""
        table = planted.table("minibatch_reaches_accuracy_sooner", holds=True)
        for method, accuracy in reached.items():
            limit = table["method"].map({method: accuracy}).fillna(1.0).astype("Float64")
            table["val_accuracy"] = table[["val_accuracy"]].assign(limit=limit).min(axis=1)
        return table

    def test_the_target_is_a_share_of_what_both_reach(self, planted, verdict_on):
        table = self.curves(planted, fullgraph=0.6)
        judgement = verdict_on("minibatch_reaches_accuracy_sooner", table)
        # 0.95 x 0.6 = 0.57 is passed in epoch 1 (0.6) by both, at about 2 x 3 s and 2 x 1 s
        assert judgement.verdict == SUPPORTED
        assert judgement.estimate == pytest.approx(3, rel=0.05)

    def test_a_slower_run_that_never_gets_there_is_a_lower_bound_and_supports(self, planted, verdict_on):
        table = self.curves(planted, fullgraph=0.6)
        judgement = verdict_on("minibatch_reaches_accuracy_sooner", table, {"target_accuracy": 0.7})
        # full-graph: more than 8 x 3 s; mini-batch: 3 x 1 s in epoch 2 (0.7)
        assert judgement.verdict == SUPPORTED
        assert judgement.estimate == pytest.approx(8, rel=0.05)

    def test_a_lower_bound_refutes_nothing(self, planted, verdict_on):
        table = self.curves(planted, fullgraph=0.6)
        options = {"target_accuracy": 0.7, "threshold": 20}
        judgement = verdict_on("minibatch_reaches_accuracy_sooner", table, options)
        assert judgement.verdict == INCONCLUSIVE
        assert "only known to be at least" in judgement.reason

    def test_an_upper_bound_supports_nothing(self, planted, verdict_on):
        table = self.curves(planted, minibatch=0.6)
        options = {"target_accuracy": 0.7, "threshold": 0.1}
        judgement = verdict_on("minibatch_reaches_accuracy_sooner", table, options)
        assert judgement.verdict == INCONCLUSIVE
        assert "only known to be at most" in judgement.reason

    def test_a_target_that_nobody_reaches_is_inconclusive(self, planted, verdict_on):
        judgement = verdict_on("minibatch_reaches_accuracy_sooner", self.curves(planted), {"target_accuracy": 0.99})
        assert judgement.verdict == INCONCLUSIVE
        assert "neither run reaches the target" in judgement.reason

    def test_a_run_without_its_pair_is_inconclusive(self, planted, verdict_on):
        table = self.curves(planted)
        table = table[(table["method"] == "minibatch") | (table["seed"] > 0)]
        judgement = verdict_on("minibatch_reaches_accuracy_sooner", table)
        assert judgement.verdict == INCONCLUSIVE
        assert "no counterpart for" in judgement.reason


class TestStrategies:
    def test_the_strategy_that_hides_least_decides_unless_others_are_asked_for(self, planted, verdict_on):
        table = planted.table("strategies_hide_communication", holds=False)
        judgement = verdict_on("strategies_hide_communication", table)
        assert judgement.verdict == NOT_SUPPORTED
        assert judgement.estimate == pytest.approx(0.8, rel=0.03)
        alone = verdict_on("strategies_hide_communication", table, {"methods": ["bns"]})
        assert alone.verdict == SUPPORTED
        assert alone.estimate == pytest.approx(0.2, rel=0.03)

    def test_no_strategy_of_the_methods_is_said_by_name(self, planted, verdict_on):
        table = planted.table("strategies_hide_communication", holds=True)
        judgement = verdict_on("strategies_hide_communication", table, {"methods": ["cached", "chunked"]})
        assert judgement.reason == "no run with method = cached or chunked and at least 2 ranks in the table"

    @pytest.mark.parametrize(
        ("observation", "measure"),
        [
            ("strategies_hide_communication", "exposed_ratio"),
            ("staleness_costs_no_accuracy", "accuracy_lost"),
            ("saved_time_is_accuracy", "accuracy_lost_in_time"),
            ("sampling_saves_memory", "memory_ratio"),
            ("pipelining_wins_when_deep", "gain"),
            ("gossip_outruns_slow_ranks", "gain"),
            ("gossip_costs_no_accuracy", "accuracy_lost"),
        ],
    )
    def test_without_a_baseline_or_a_number_it_is_inconclusive(self, observation, measure, planted, verdict_on):
        table = planted.table(observation, holds=True)
        last = table["run"].iloc[-1]
        unknown = table.assign(**{measure: table[measure].mask(table["run"] == last)})
        assert verdict_on(observation, unknown).reason == f"{measure} is missing for {last}"
        table["baseline_run"] = table["baseline_run"].mask(table["run"] == last)
        reason = f"no completed baseline of the same graph, model, ranks and seed for {last}"
        judgement = verdict_on(observation, table)
        assert (judgement.verdict, judgement.reason) == (INCONCLUSIVE, reason)

    def test_ranks_that_are_too_many_are_left_out_of_times_but_not_of_accuracy(self, planted, verdict_on):
        for observation, verdict in (
            ("saved_time_is_accuracy", SUPPORTED),
            ("staleness_costs_no_accuracy", NOT_SUPPORTED),
        ):
            two, four = planted.table(observation, holds=True), planted.table(observation, holds=False)
            crowded = four.assign(ranks=4, num_parts=4, oversubscribed=True, run=four["run"] + ".4")
            both = pd.concat([two, crowded.astype(two.dtypes)], ignore_index=True)
            assert verdict_on(observation, both).verdict == verdict

    def test_notes_tell_strategies_and_ranks_apart(self, planted):
        module, two = OBSERVATIONS["sampling_saves_memory"].load(), planted.table("sampling_saves_memory", holds=True)
        two["peak_memory_bytes"] = 700
        four = two.assign(ranks=4, memory_ratio=0.4, peak_memory_bytes=500).astype(two.dtypes)
        notes = module.notes(pd.concat([two, four], ignore_index=True), {})
        by_ranks = {"bns, 2 ranks": pytest.approx(0.6, rel=0.03), "bns, 4 ranks": pytest.approx(0.4)}
        assert notes["ratio_by_strategy_and_ranks"] == by_ranks
        assert notes["ratio_by_strategy"] == {"bns": pytest.approx((0.6 + 0.4) / 2, rel=0.03)}
        assert notes["peak_memory_bytes_by_strategy_and_ranks"] == {"bns, 2 ranks": 700.0, "bns, 4 ranks": 500.0}


class TestPipelines:
    def test_only_pipelines_of_so_many_chunks_decide(self, planted, verdict_on):
        table = planted.table("chunks_fill_the_pipeline", holds=True)
        # 2 and 8 chunks on 2 stages expose 0.8 and 0.3 of a step.
        assert verdict_on("chunks_fill_the_pipeline", table).estimate == pytest.approx(0.3, rel=0.03)
        one_each = verdict_on("chunks_fill_the_pipeline", table, {"chunks_per_stage": 1})
        assert (one_each.verdict, one_each.estimate) == (NOT_SUPPORTED, pytest.approx(0.8, rel=0.03))
        none = verdict_on("chunks_fill_the_pipeline", table, {"chunks_per_stage": 3})
        assert "no run with method = pipeline and chunks_per_stage = 3" in none.reason

    def test_several_ranks_may_share_a_stage(self, planted, verdict_on):
        table = planted.table("chunks_fill_the_pipeline", holds=True)
        assert verdict_on("chunks_fill_the_pipeline", table.assign(stages=1)).verdict == INCONCLUSIVE
        shared = verdict_on("chunks_fill_the_pipeline", table.assign(ranks=4).astype(table.dtypes))
        assert shared.estimate == pytest.approx(0.3, rel=0.03)

    def test_a_run_of_other_chunks_that_failed_decides_nothing(self, planted, verdict_on):
        table = planted.table("chunks_fill_the_pipeline", holds=True)
        failed = (table["chunks"] == 2) & (table["seed"] == 1)
        table.loc[failed, "status"] = "time limit"
        table.loc[failed, ["exposed_share", "most_exposed_share"]] = pd.NA
        assert verdict_on("chunks_fill_the_pipeline", table).verdict == SUPPORTED

    def test_notes_say_where_and_with_how_many_chunks_stages_wait(self, planted):
        table = planted.table("chunks_fill_the_pipeline", holds=True)
        table.loc[table["seed"] == 0, "most_exposed_rank"] = 0
        notes = OBSERVATIONS["chunks_fill_the_pipeline"].load().notes(table, {})
        near = {"2 ranks, 2 chunks": pytest.approx(0.8, rel=0.03), "2 ranks, 8 chunks": pytest.approx(0.3, rel=0.03)}
        assert notes["share_by_ranks_and_chunks"] == near
        # 8 seeds of 2 pipelines each; seed 0 waits most on rank 0
        assert notes["runs_by_ranks_and_most_exposed_rank"] == {"2 ranks, rank 0": 2, "2 ranks, rank 1": 14}

    def test_shallow_models_decide_nothing_unless_they_are_called_deep(self, planted, verdict_on):
        table = planted.table("pipelining_wins_when_deep", holds=True)
        assert verdict_on("pipelining_wins_when_deep", table).estimate == pytest.approx(1.4, rel=0.03)
        judgement = verdict_on("pipelining_wins_when_deep", table, {"min_layers": 2})
        assert (judgement.verdict, judgement.estimate) == (NOT_SUPPORTED, pytest.approx(0.5, rel=0.03))

    def test_notes_tell_depths_apart(self, planted):
        table = planted.table("pipelining_wins_when_deep", holds=True)
        notes = OBSERVATIONS["pipelining_wins_when_deep"].load().notes(table, {})
        # of 8 layers, 2 and 8 chunks gain 0.6 and 1.4
        by_depth = {"2 layers, 2 ranks": 0.5, "8 layers, 2 ranks": (0.6 + 1.4) / 2}
        assert notes["gain_by_layers_and_ranks"] == {
            name: pytest.approx(gain, rel=0.03) for name, gain in by_depth.items()
        }


def test_a_partitioner_that_is_not_in_the_table_is_named(planted, verdict_on):
    table = planted.table("partitioner_cuts_volume", holds=True)
    judgement = verdict_on("partitioner_cuts_volume", table, {"partitioner": "ldg"})
    assert (judgement.verdict, judgement.reason) == (INCONCLUSIVE, "no run with partitioner = ldg to compare")


def test_a_cache_size_that_the_table_lacks_is_named(planted, verdict_on):
    table = planted.table("cache_catches_refetches", holds=True)
    judgement = verdict_on("cache_catches_refetches", table, {"capacity_share": 0.5})
    assert judgement.verdict == INCONCLUSIVE
    assert "capacity_share = 0.5" in judgement.reason
    assert verdict_on("cache_catches_refetches", table, {"policy": "accesses"}).verdict == NOT_SUPPORTED


def test_not_measurable_is_for_the_machine_only(planted, verdict_on):
    table = planted.table("preparation_dominates", holds=True)
    unknown = table.assign(oversubscribed=pd.array([pd.NA] * len(table), dtype="boolean"))
    assert verdict_on("preparation_dominates", unknown).verdict == SUPPORTED
    assert verdict_on("preparation_dominates", table.assign(oversubscribed=True)).verdict == NOT_MEASURABLE

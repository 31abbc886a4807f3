"""Tables that need timed runs only: runs, convergence, scaling, partitions."""

import pandas as pd
import pytest

from anatomy.errors import StudyError


def two_ranks(epoch: int, first_s: float, second_s: float, warmup: bool = False, **values) -> list[dict]:
    shared = {"epoch": epoch, "warmup": warmup, "train_nodes": 50, "steps": 5} | values
    return [{"rank": 0, "wall_s": first_s} | shared, {"rank": 1, "wall_s": second_s} | shared]


def test_epoch_time_is_the_median_of_the_slowest_rank_after_warm_up(results, built):
    epochs = [*two_ranks(0, 9, 9, warmup=True), *two_ranks(1, 1, 2), *two_ranks(2, 4, 1), *two_ranks(3, 1, 3)]
    table = built("runs", results.study(results.run(epochs=epochs)))
    assert table["epoch_s"].tolist() == [3.0]  # median of max(1, 2), max(4, 1), max(1, 3)
    assert table["train_nodes_per_s"].tolist() == [pytest.approx(100 / 3)]  # median of 100/2, 100/4, 100/3
    assert table["timed_step_s"].tolist() == [3 / 5]
    assert table["epochs"].tolist() == [4]
    assert table["profiling_cost"].isna().all()


def test_the_cost_of_profiling_is_measured(results, built):
    run = results.run(epochs=two_ranks(0, 1, 2))
    wall_ns = [500_000_000, 800_000_000, 600_000_000, 400_000_000]
    results.traces(run, steps=pd.DataFrame({"rank": [0, 1, 0, 1], "step": [2, 2, 3, 3], "wall_ns": wall_ns}))
    row = built("runs", results.study(run)).iloc[0]
    assert row["profiled_step_s"] == pytest.approx((0.8 + 0.6) / 2)
    assert row["profiling_cost"] == pytest.approx(0.7 / (2 / 5))


def test_a_failed_run_is_kept_with_its_reason(results, built):
    study = results.study(results.run(status="out of memory"), results.run(seed=1, epochs=two_ranks(0, 1, 1)))
    table = built("runs", study)
    assert table["status"].tolist() == ["out of memory", "completed"]
    assert table["reason"].fillna("").tolist() == ["out of memory: as planned", ""]
    assert table["epoch_s"].isna().tolist() == [True, False]


@pytest.mark.parametrize(
    "table",
    [
        *("convergence", "scaling", "bandwidth", "volume", "cache"),
        *("phases", "imbalance", "collectives", "operators", "queueing"),
    ],
)
def test_every_table_of_runs_keeps_failed_ones_as_one_row(results, built, table):
    results.graph("ring", [[1], [0]])
    results.partition("ring", "metis-2", [0, 1], [[0, 1], [1, 0]])
    frame = built(table, results.study(results.run(status="time limit")))
    assert frame["status"].tolist() == ["time limit"]


def test_more_ranks_than_cores_are_marked(results, built):
    study = results.study(*(results.run(ranks=ranks, epochs=two_ranks(0, 1, 1)) for ranks in (2, 3)))
    table = built("runs", study)
    assert table["oversubscribed"].tolist() == [False, True]
    assert table["platform"].tolist() == ["CPU and Gloo"] * 2


def test_an_unknown_machine_leaves_oversubscription_missing(results, built):
    table = built("runs", results.study(results.run(epochs=two_ranks(0, 1, 1), machine=None)))
    assert table["oversubscribed"].isna().all()


def test_training_time_adds_up_the_slowest_ranks_warm_up_in(results, built):
    epochs = [*two_ranks(0, 1, 2, warmup=True, loss=3.0), *two_ranks(1, 4, 1, loss=2.0)]
    epochs[2]["val_accuracy"] = 0.5  # only rank 0 of epoch 1 evaluates
    table = built("convergence", results.study(results.run(epochs=epochs)))
    assert table["train_s"].tolist() == [2.0, 6.0]
    assert table["loss"].tolist() == [3.0, 2.0]
    assert table["val_accuracy"].isna().tolist() == [True, False]
    assert table["val_accuracy"].iloc[1] == 0.5


class TestScaling:
    def runs(self, results, graphs=("ring", "ring"), nodes=(100, 100), seconds=(4.0, 2.5), seed=0) -> list[str]:
        rows = (
            {"rank": 0, "train_nodes": count, "wall_s": wall_s} for count, wall_s in zip(nodes, seconds, strict=True)
        )
        return [
            results.run(graph=graph, partitioner=partitioner, ranks=ranks, seed=seed, epochs=[row])
            for graph, partitioner, ranks, row in zip(graphs, ("single", "metis"), (1, 2), rows, strict=True)
        ]

    def test_strong_compares_epoch_times_on_the_same_graph(self, results, built):
        one, two = self.runs(results)
        table = built("scaling", results.study(f"strong_scaling:{one}", f"strong_scaling:{two}"))
        assert table["mode"].tolist() == ["strong", "strong"]
        assert table["speedup"].tolist() == [1.0, 4.0 / 2.5]
        assert table["efficiency"].tolist() == [1.0, 4.0 / 2.5 / 2]

    def test_weak_compares_throughput_on_graphs_that_grow(self, results, built):
        one, two = self.runs(results, graphs=("ring1", "ring2"), nodes=(100, 210), seconds=(4.0, 5.0))
        table = built("scaling", results.study(f"weak_scaling:{one}", f"weak_scaling:{two}"))
        assert table["mode"].tolist() == ["weak", "weak"]
        assert table["efficiency"].tolist() == [1.0, (210 / 5) / (100 / 4) / 2]

    def test_strong_series_of_different_graphs_are_not_compared(self, results, built):
        one, two = self.runs(results, graphs=("ring1", "ring2"))
        table = built("scaling", results.study(one, two))
        assert table["efficiency"].isna().tolist() == [False, True]

    def test_runs_are_compared_with_the_same_seed_only(self, results, built):
        (one, _), (_, two) = self.runs(results, seed=0), self.runs(results, seed=1)
        table = built("scaling", results.study(one, two))
        assert table["efficiency"].isna().tolist() == [False, True]

    def test_a_run_in_both_modes_has_a_row_for_each(self, results, built):
        one, _ = self.runs(results)
        table = built("scaling", results.study(f"a:{one}", f"b:{one}"), strong=["a"], weak=["b"])
        assert table["mode"].tolist() == ["strong", "weak"]

    def test_a_failed_baseline_leaves_the_efficiency_missing(self, results, built):
        _, two = self.runs(results)
        failed = results.run(partitioner="single", ranks=1, status="time limit")
        table = built("scaling", results.study(failed, two))
        assert table["efficiency"].isna().all()
        assert table["epoch_s"].isna().tolist() == [True, False]

    def test_an_experiment_of_neither_mode_is_refused(self, results, built):
        one, _ = self.runs(results)
        with pytest.raises(StudyError, match="experiment 'sideways' is neither"):
            built("scaling", results.study(f"sideways:{one}"))


def test_partitions_of_runs_and_by_name_appear_once(results, built):
    results.partition("ring", "metis-2", [0, 0, 1, 1], [[0, 1], [2, 0]])
    results.partition("ring", "random-2", [0, 1, 0, 1], [[0, 2], [2, 0]])
    run = results.run(epochs=two_ranks(0, 1, 1))
    table = built("partitions", results.study(run, partitions=["ring/random-2", "ring/metis-2"]))
    assert table["partitioner"].tolist() == ["random", "metis"]
    assert table["communication_volume"].tolist() == [4, 3]
    assert table["replication_factor"].tolist() == [2.0, 7 / 4]


def test_a_misspelt_partition_is_named(results, built):
    with pytest.raises(StudyError, match="expected GRAPH/PARTITIONER-PARTS"):
        built("partitions", results.study(partitions=["ring"]))
    with pytest.raises(StudyError, match=r"partition\.json: not found"):
        built("partitions", results.study(partitions=["ring/metis-3"]))


class TestResumed:
    """A run that was interrupted and went on from a checkpoint has a curve, and no times."""

    def run(self, results, **changes) -> str:
        epochs = [*two_ranks(0, 9, 9, warmup=True, loss=3.0), *two_ranks(1, 1, 2, loss=2.0)]
        return results.run(epochs=epochs, **changes)

    def test_its_times_are_missing_and_its_accuracy_is_there(self, results, built):
        row = built("runs", results.study(self.run(results, resumed_at=[1]))).iloc[0]
        assert row[["epoch_s", "train_nodes_per_s", "timed_step_s", "profiling_cost"]].isna().all()
        assert row["resumptions"] == 1
        assert (row["status"], row["epochs"], row["final_loss"]) == ("completed", 2, 0.5)

    def test_an_uninterrupted_one_says_so(self, results, built):
        row = built("runs", results.study(self.run(results, resumed_at=[]))).iloc[0]
        assert (row["resumptions"], row["epoch_s"]) == (0, 2.0)

    def test_its_curve_has_no_training_time(self, results, built):
        table = built("convergence", results.study(self.run(results, resumed_at=[1])))
        assert table["loss"].tolist() == [3.0, 2.0]
        assert table["train_s"].isna().all()

    def test_it_scales_neither_itself_nor_others(self, results, built):
        runs = [self.run(results, ranks=1, resumed_at=[1]), self.run(results, ranks=2)]
        table = built("scaling", results.study(*runs)).set_index("ranks")
        assert table["epoch_s"].isna().tolist() == [True, False]
        assert table["speedup"].isna().all()

    def test_its_bytes_count(self, results, built):
        results.graph("ring", [[1], [0]])
        results.partition("ring", "metis-2", [0, 1], [[0, 1], [1, 0]])
        epochs = [*two_ranks(0, 1, 1, warmup=True), *two_ranks(1, 1, 1, sent_weights_bytes=12)]
        table = built("volume", results.study(results.run(epochs=epochs, resumed_at=[1]))).set_index("kind")
        assert table["measured_bytes_per_epoch"]["weights"] == 24

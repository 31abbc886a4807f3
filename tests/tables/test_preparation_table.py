"""The table of what brings mini-batches together, from traces and epochs worked out by hand."""

import pandas as pd
import pytest

BATCHES = {"batch_size": 4, "fanouts": [2]}
CACHE = {"cache": {"policy": "degree", "fraction": 0.5}, "prefetch": 2}


@pytest.fixture
def row_of(results, built):
    """The row of a run of `minibatch` on two ranks, of whose three epochs the first is warm-up."""
    results.graph("ring", [[1], [0]], num_features=5)
    results.partition("ring", "metis-2", [0, 1], [[0, 1], [1, 0]])

    def build(status: str = "completed", profiled: bool = True, **options) -> pd.Series:
        epochs = [
            {
                "rank": rank,
                "epoch": epoch,
                "warmup": epoch == 0,
                "wall_s": 1.0 + rank,
                "remote_nodes": (100, 6, 8)[epoch] + rank,
                "cache_hits": (100, 2, 4)[epoch],
                "cache_bytes": 1000 * rank,
            }
            for rank in (0, 1)
            for epoch in (0, 1, 2)
        ]
        name = results.run(method="minibatch", status=status, epochs=epochs, options=BATCHES | options)
        steps = pd.DataFrame({"rank": [0, 1], "step": [0, 0], "wall_ns": [9_000_000, 11_000_000]})
        phases = pd.DataFrame(
            {
                "phase": ["sample", "fetch", "gather", "sync", "sample", "fetch"],
                "preparation_ns": [1_000_000, 200_000, 300_000, 0, 2_000_000, 400_000],
                "comm_ns": [0, 700_000, 0, 5_000_000, 0, 900_000],
            }
        )
        tables = {"steps": steps, "phases": phases} if profiled else {}
        results.traces(name, status="completed" if profiled else "not profiled", **tables)
        return built("preparation", results.study(name)).iloc[0]

    return build


def test_phases_of_a_step_by_hand(row_of):
    row = row_of()
    assert row["profiled_step_s"] == pytest.approx(0.010)
    assert row["sample_s_per_step"] == pytest.approx(0.0015)
    assert row["fetch_s_per_step"] == pytest.approx((0.2 + 0.7 + 0.4 + 0.9) / 2 / 1000)
    assert row["gather_s_per_step"] == pytest.approx(0.00015)
    assert row["copy_s_per_step"] == 0
    assert row["preparation_s_per_step"] == pytest.approx(0.0015 + 0.0011 + 0.00015)


def test_hits_bytes_and_memory_by_hand(row_of):
    row = row_of(**CACHE)
    assert row["fetched_rows_per_epoch"] == (6 + 7 + 8 + 9) / 2
    assert row["cache_hits_per_epoch"] == (2 + 2 + 4 + 4) / 2
    assert row["hit_rate"] == pytest.approx(6 / 21)
    assert row["saved_bytes_per_epoch"] == 6 * 5 * 4
    assert row["cache_bytes"] == 1000
    assert (row["cache_policy"], row["cache_fraction"], row["prefetch"]) == ("degree", 0.5, 2)
    assert row["epoch_s"] == 2


def test_without_a_cache_a_policy_is_missing_and_its_size_is_nothing(row_of):
    row = row_of()
    assert pd.isna(row["cache_policy"])
    assert (row["cache_fraction"], row["prefetch"]) == (0, 0)


def test_a_run_without_traces_has_no_step_and_a_failed_one_no_numbers(row_of, results, built):
    row = row_of(profiled=False)
    assert pd.isna(row["preparation_s_per_step"])
    assert row["hit_rate"] == pytest.approx(6 / 21)
    failed = built("preparation", results.study(results.run(method="minibatch", status="time limit", options=BATCHES)))
    assert failed["hit_rate"].isna().all()
    assert failed["prefetch"].tolist() == [0]


def test_runs_on_the_whole_graph_have_no_rows(results, built):
    assert built("preparation", results.study(results.run(epochs=[{}]))).empty

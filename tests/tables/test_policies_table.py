"""The table of policies of gradients beside one all-reduce per step, from runs worked out by hand."""

import pandas as pd
import pytest

BUCKETS = {"gradients": {"policy": "buckets", "bucket_mb": 0.5}}


def epochs(wall_s: float, sent: int, num: int = 3) -> list[dict]:
    measured = {"wall_s": wall_s, "sent_weights_bytes": sent, "sent_features_bytes": 999}
    return [{"rank": rank, "epoch": epoch, "warmup": epoch == 0} | measured for rank in (0, 1) for epoch in range(num)]


def final(accuracy: float) -> dict:
    return {"loss": 0.1, "val_accuracy": accuracy, "test_accuracy": None}


def trace(sync_ns: int) -> dict[str, pd.DataFrame]:
    """Two ranks and one step of 1 ms each; `sync_ns` of rank 0, and twice as much of rank 1."""
    steps = {"comm_exposed_ns": 7, "comm_exposed_wait_ns": 0, "comm_overlapped_ns": 3000, "wall_ns": 1_000_000}
    spent = {"sync": sync_ns, "backward": 500_000}
    return {
        "steps": pd.DataFrame([{"rank": rank, "step": 1} | steps for rank in (0, 1)]).astype("Int64"),
        "phases": pd.DataFrame(
            [
                {"rank": rank, "step": 1, "phase": phase, "total_ns": (1 + rank) * total}
                for rank in (0, 1)
                for phase, total in spent.items()
            ]
        ),
    }


def renamed(results, run: str, strategy: str) -> str:
    """The run under another name, as a strategy's other entries in the configuration have."""
    name = run.replace(".minibatch.", f".{strategy}.")
    (results.folder / "runs" / run).rename(results.folder / "runs" / name)
    for file in (results.folder / "runs" / name).rglob("*.json"):
        file.write_text(file.read_text().replace(run, name))
    return name


@pytest.fixture
def rows(results, built):
    """Rows by the strategy's name: a baseline, buckets of the same strategy, and buckets of one without a baseline."""

    def run(strategy: str, wall_s: float, sent: int, accuracy: float, **options) -> str:
        own = {"name": strategy, "batch_size": 8} | options
        made = results.run(method="minibatch", options=own, epochs=epochs(wall_s, sent), final=final(accuracy))
        return renamed(results, made, strategy)

    dense = run("plain", 2.0, 40, 0.8)
    ours = run("bucketed", 1.0, 30, 0.7, **BUCKETS)
    alone = run("large-batches", 1.0, 30, 0.7, batch_size=16, **BUCKETS)
    results.traces(dense, **trace(100_000))
    results.traces(ours, **trace(40_000))
    return built("policies", results.study(dense, ours, alone)).set_index("strategy")


def test_numbers_are_beside_the_baseline(rows):
    ours = rows.loc["bucketed"]
    assert (ours["policy"], ours["bucket_mb"]) == ("buckets", 0.5)
    assert ours["baseline_run"] == rows.loc["plain", "run"]
    assert (ours["epoch_s"], ours["epoch_ratio"]) == (1.0, 0.5)
    assert ours["sync_s_per_step"] == pytest.approx((40e-6 + 80e-6) / 2)
    assert ours["sync_share"] == pytest.approx(0.06)
    assert ours["sync_ratio"] == pytest.approx(0.4)
    assert ours["hidden_s_per_step"] == pytest.approx(3e-6)
    assert (ours["sent_weights_bytes_per_epoch"], ours["sent_ratio"]) == (60, 0.75)
    assert ours["accuracy_lost"] == pytest.approx(0.1)


def test_the_baseline_is_beside_itself(rows):
    plain = rows.loc["plain"]
    assert (plain["policy"], plain["epoch_ratio"], plain["sync_ratio"], plain["accuracy_lost"]) == ("dense", 1, 1, 0)
    assert pd.isna(plain["bucket_mb"])


def test_another_strategy_is_no_baseline(rows):
    alone = rows.loc["large-batches"]
    assert alone["epoch_s"] == 1.0
    assert alone[["baseline_run", "epoch_ratio", "sync_ratio", "sync_s_per_step", "accuracy_lost"]].isna().all()


def test_a_run_that_failed_keeps_its_row(results, built):
    failed = results.run(method="minibatch", status="out of memory", options=BUCKETS)
    table = built("policies", results.study(failed)).set_index("run")
    assert table.loc[failed, "policy"] == "buckets"
    assert pd.isna(table.loc[failed, "epoch_s"])

"""The table of runs with a slow rank, from runs whose numbers are worked out by hand."""

import pytest

SLOW = {"name": "slow-4x", "slow": {"rank": 1, "factor": 4, "from_step": 0}}
OTHER = {"name": "noisy", "slow_at_random": {"factor": 2, "probability": 0.5}}


def epochs(walls_s: tuple[float, float], blocked_s: tuple[float, float], nodes: tuple[int, int]) -> list[dict]:
    """Three epochs of two ranks, of which the first is warm-up and slow."""
    return [
        {
            "rank": rank,
            "epoch": epoch,
            "warmup": epoch == 0,
            "wall_s": walls_s[rank] + 100 * (epoch == 0),
            "blocked_s": blocked_s[rank],
            "train_nodes": nodes[rank],
        }
        for rank in (0, 1)
        for epoch in range(3)
    ]


def final(accuracy: float) -> dict:
    return {"loss": 0.1, "val_accuracy": accuracy, "test_accuracy": None}


@pytest.fixture
def rows(results, built):
    together = {"method": "clustergcn"}
    runs = [
        results.run(**together, epochs=epochs((2.0, 2.0), (0.5, 0.5), (50, 50)), final=final(0.8)),
        results.run(**together, condition=SLOW, epochs=epochs((8.0, 8.0), (6.0, 0.0), (50, 50)), final=final(0.81)),
        results.run(method="gossip", epochs=epochs((2.0, 2.0), (0.1, 0.1), (50, 50)), final=final(0.79)),
        results.run(
            method="gossip", condition=SLOW, epochs=epochs((3.0, 4.0), (0.5, 0.0), (80, 20)), final=final(0.75)
        ),
        results.run(method="gossip", condition=OTHER, epochs=epochs((3.0, 4.0), (0.0, 0.0), (80, 20))),
        results.run(method="gossip", seed=1, status="time limit"),
    ]
    return built("slowdown", results.study(*runs)).assign(condition=lambda table: table["condition"].fillna("-"))


def test_speed_idleness_and_shares(rows):
    found = rows[rows["seed"] == 0].set_index(["method", "condition"])
    slow = found.loc["gossip", "slow-4x"]
    assert (slow["slow_factor"], slow["epoch_s"], slow["speed_kept"]) == (4, 4.0, 0.5)
    # Of 2 ranks x 4 s, rank 0 was blocked for 0.5 s and had ended 1 s before.
    assert slow["idle_share"] == pytest.approx(1.5 / 8)
    assert slow["slow_rank_nodes_share"] == 0.2
    assert found.loc["clustergcn", "slow-4x"]["idle_share"] == pytest.approx(6 / 16)
    assert found.loc["clustergcn", "slow-4x"]["speed_kept"] == 0.25
    assert found.loc["gossip", "-"]["slow_factor"] == 1
    assert found.loc["gossip", "-"]["speed_kept"] == 1


def test_runs_are_compared_under_the_same_condition(rows):
    found = rows[rows["seed"] == 0].set_index(["method", "condition"])
    slow, plain = found.loc["gossip", "slow-4x"], found.loc["gossip", "-"]
    assert (slow["gain"], plain["gain"]) == (2.0, 1.0)
    assert slow["accuracy_lost"] == pytest.approx(0.81 - 0.75)
    assert plain["accuracy_lost"] == pytest.approx(0.8 - 0.79)
    assert slow["baseline_run"] == found.loc["clustergcn", "slow-4x"]["run"]


def test_what_has_no_counterpart_or_no_factor_is_missing(rows):
    noisy = rows[rows["condition"] == "noisy"].iloc[0]
    assert noisy[["slow_factor", "baseline_run", "gain", "accuracy_lost", "slow_rank_nodes_share"]].isna().all()
    assert noisy["speed_kept"] == 0.5
    failed = rows[rows["seed"] == 1].iloc[0]
    assert failed["status"] == "time limit"
    assert failed["slow_factor"] == 1
    assert failed[["epoch_s", "idle_share"]].isna().all()

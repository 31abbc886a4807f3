"""The table of slow links: its rows, exposed communication, and the bandwidth that large collectives had."""

import pandas as pd
import pytest

STEPS = {"rank": [0, 1, 0, 1], "step": [2, 2, 3, 3], "wall_ns": [400, 400, 600, 600]}
NO_CALLS = pd.DataFrame(columns=["kind", "bytes", "bandwidth_of", "algorithm_bandwidth", "bus_bandwidth"])


def steps(exposed: list, waits: list) -> pd.DataFrame:
    times = {"comm_exposed_ns": exposed, "comm_exposed_wait_ns": waits, "comm_overlapped_ns": exposed}
    return pd.DataFrame({**STEPS, **times}).astype(dict.fromkeys(times, "Int64"))


def calls(*rows: tuple) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(NO_CALLS))


@pytest.fixture
def row_of(results, built):
    """The row of a profiled run, from its trace tables."""

    def make(exposed=(100, 100, 300, 500), waits=(0, 100, 100, 0), collectives=NO_CALLS, **run) -> pd.Series:
        epochs = [{"rank": rank, "epoch": 1, "wall_s": 2.0 + rank} for rank in (0, 1)]
        name = results.run(**{"epochs": epochs} | run)
        results.traces(name, steps=steps(list(exposed), list(waits)), collectives=collectives)
        return built("bandwidth", results.study(name)).iloc[0]

    return make


def test_shares_are_of_sums_over_ranks_and_steps(row_of):
    row = row_of(link_mbit=500)
    assert (row["link_mbit"], row["hosts"], row["epoch_s"]) == (500, 2, 3.0)
    assert row["exposed_share"] == pytest.approx((100 + 100 + 300 + 500) / (400 + 400 + 600 + 600))
    assert row["wait_share"] == pytest.approx((0 + 100 + 100 + 0) / 1000)
    assert row["profiled_step_s"] == pytest.approx(2000e-9 / 4)
    assert row["exposed_s_per_step"] == pytest.approx(1000e-9 / 4)


def test_links_as_they_are_have_no_bandwidth(row_of):
    assert pd.isna(row_of()["link_mbit"])


def test_waiting_that_is_not_known_is_missing(row_of):
    row = row_of(waits=(0, None, 100, 0))
    assert pd.isna(row["wait_share"])
    assert row["exposed_share"] == 0.5


def test_without_communication_nothing_is_exposed_and_it_is_missing(row_of):
    row = row_of(exposed=(None,) * 4, waits=(None,) * 4)
    assert row[["exposed_s_per_step", "exposed_share", "wait_share"]].isna().all()
    assert row["profiled_step_s"] == pytest.approx(500e-9)


def test_bytes_are_summed_over_ranks_and_kinds_and_averaged_over_epochs(row_of):
    epochs = [
        {"rank": 0, "epoch": 0, "warmup": True, "sent_weights_bytes": 9000},
        {"rank": 0, "epoch": 1, "sent_weights_bytes": 10, "sent_features_bytes": 100},
        {"rank": 1, "epoch": 1, "sent_requests_bytes": 5},
        {"rank": 0, "epoch": 2, "sent_activations_bytes": 20},
        {"rank": 1, "epoch": 2, "sent_gradients_bytes": 25},
    ]
    assert row_of(epochs=epochs)["sent_bytes_per_epoch"] == ((10 + 100 + 5) + (20 + 25)) / 2


def test_the_bandwidth_seen_is_that_of_large_collectives_whose_transfer_is_known(row_of):
    megabyte, mbit = 1_000_000, 1e6 / 8
    collectives = calls(
        ("all_reduce", megabyte, "transfer", 1, 300 * mbit),
        ("all_to_all", 2 * megabyte, "transfer", 100 * mbit, 1),
        ("all_to_all", megabyte, "transfer", 200 * mbit, 1),
        ("all_to_all", megabyte - 1, "transfer", 7 * mbit, 1),
        ("all_to_all", megabyte, "duration", 7 * mbit, 1),
        ("broadcast", megabyte, "transfer", 7 * mbit, 7 * mbit),
    )
    assert row_of(collectives=collectives)["seen_mbit"] == pytest.approx(200), "median of 300, 100 and 200"
    assert pd.isna(row_of(seed=1, collectives=collectives.tail(3))["seen_mbit"])


def test_a_run_that_was_not_profiled_has_its_time_alone(results, built):
    name = results.run(epochs=[{"rank": 0, "wall_s": 2.0}], link_mbit=100)
    row = built("bandwidth", results.study(name)).iloc[0]
    assert (row["epoch_s"], row["status"]) == (2.0, "completed")
    assert row[["exposed_share", "seen_mbit"]].isna().all()


def test_traces_recorded_elsewhere_have_shares_alone(results, built):
    facts = {"trace_kind": "cuda-nccl", "ranks": [0, 1], "world_size": 2, "num_steps": 4}
    results.traces("mine", facts=facts, steps=steps([100, 100, 300, 500], [0] * 4), collectives=NO_CALLS)
    row = built("bandwidth", results.study("mine")).iloc[0]
    assert (row["exposed_share"], row["wait_share"], row["platform"]) == (0.5, 0.0, "GPU and NCCL")
    assert row[["epoch_s", "sent_bytes_per_epoch", "link_mbit"]].isna().all()

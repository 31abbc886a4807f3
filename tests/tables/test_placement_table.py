"""The table of what travels under each placement, from counts worked out by hand."""

import pytest

NUM_FEATURES = 5
COUNTS = [{"rows": [10, 4], "batch_bytes": 1000}, {"rows": [3, 20], "batch_bytes": 2000}]
"""What the batches of ranks 0 and 1 had, in every epoch: nodes of each part, and bytes."""
STEPS = 2


def traffic_of(sent: list[list[int]], epochs: int = 3) -> list[dict]:
    """The first epoch is warm-up and sends a hundred times as much."""
    return [
        {"rank": rank, "epoch": epoch, "warmup": epoch == 0, "steps": STEPS, "sent_to_bytes": row} | COUNTS[rank]
        for epoch in range(epochs)
        for rank, row in enumerate([[100 * size for size in sizes] if epoch == 0 else sizes for sizes in sent])
    ]


@pytest.fixture
def placed(results):
    """Make a run of a placement that sent so much; returns its name."""

    def make(name: str, sent: list[list[int]], **options) -> str:
        options = {
            "epochs": 3,
            "fanouts": [2, 2],
            "batch_size": 8,
            "name": name,
            "samplers": None,
            "stores": None,
        } | options
        return results.run(
            method=name,
            options=options,
            epochs=[{"rank": 0}],
            layer_dims=[NUM_FEATURES, 3, 2],
            traffic=traffic_of(sent),
        )

    return make


def by_pair(table, run):
    rows = table[table["run"] == run].set_index(["sender", "receiver"])
    return {name: rows[f"{name}_bytes_per_epoch"].to_dict() for name in ("measured", "predicted")}


def test_what_travels_is_predicted_from_the_run_with_all_together(placed, results, built):
    together = placed("placed", [[0, 7], [9, 0]])
    apart = placed("placed-stores", [[0, 70], [90, 0]], stores=[1, 0])
    table = built("placement", results.study(together, apart))
    assert by_pair(table, together)["measured"] == {(0, 1): 7, (1, 0): 9}
    # Announcements of 8 bytes per step; then requests and features.
    announced, row = 8 * STEPS, 4 * NUM_FEATURES
    assert by_pair(table, together)["predicted"] == {
        (0, 1): announced + 4 * 4 + row * 3,
        (1, 0): announced + 4 * 3 + row * 4,
    }
    assert by_pair(table, apart)["measured"] == {(0, 1): 70, (1, 0): 90}
    # Rank 0 now keeps part 1, so that what each rank needs of its own part travels.
    assert by_pair(table, apart)["predicted"] == {
        (0, 1): announced + 4 * 10 + row * 20,
        (1, 0): announced + 4 * 20 + row * 10,
    }
    assert table.set_index("run")["together"].to_dict() == {together: True, apart: False}


def test_batches_travel_from_their_sampler(placed, results, built):
    together = placed("placed", [[0, 7], [9, 0]])
    apart = placed("placed-samplers", [[0, 70], [90, 0]], samplers=[1, 0])
    table = built("placement", results.study(together, apart))
    predicted = by_pair(table, together)["predicted"]
    assert by_pair(table, apart)["predicted"] == {
        (0, 1): predicted[0, 1] + 2000,
        (1, 0): predicted[1, 0] + 1000,
    }


def test_without_a_run_with_all_together_nothing_is_predicted(placed, results, built):
    table = built("placement", results.study(placed("placed-stores", [[0, 70], [90, 0]], stores=[1, 0])))
    assert table["predicted_bytes_per_epoch"].isna().all()
    assert table["measured_bytes_per_epoch"].tolist() == [70, 90]


def test_runs_that_count_no_traffic_are_one_row_without_numbers(results, built):
    table = built("placement", results.study(results.run(method="minibatch", epochs=[{"rank": 0}])))
    assert len(table) == 1
    assert table["measured_bytes_per_epoch"].isna().all()

"""Bandwidths by the definitions of nccl-tests."""

import numpy as np
import pytest

from anatomy.traces.columns import MISSING, concatenated
from anatomy.traces.job.bandwidth import add_bandwidths


def rows(**changes):
    """One rank's part, of 1 MB and 250 us, 150 of which it waited, in a collective of 4 ranks; others as changed."""
    row = {
        "collective": 0,
        "kind": "all_reduce",
        "group_size": 4,
        "bytes": 1_000_000,
        "matched": True,
        "start_ns": 0,
        "end_ns": 250_000,
        "transfer_ns": 100_000,
    }
    return {
        name: np.array([value], dtype=object if name == "kind" else None) for name, value in (row | changes).items()
    }


def bandwidths(**changes):
    found = add_bandwidths(rows(**changes))
    return tuple(found[name][0] for name in ("algorithm_bandwidth", "bus_bandwidth", "bandwidth_of"))


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("all_reduce", 2 * 3 / 4),  # each rank sends and receives all but its own quarter, twice
        ("all_gather", 3 / 4),
        ("reduce_scatter", 3 / 4),
        ("all_to_all", 3 / 4),
        ("broadcast", 1),
        ("reduce", 1),
        ("send_recv", 1),
    ],
)
def test_bandwidths_over_the_transfer(kind, factor):
    algorithm = 1_000_000 / 100e-6
    assert bandwidths(kind=kind) == (pytest.approx(algorithm), pytest.approx(algorithm * factor), "transfer")


def test_where_the_transfer_is_unknown_all_of_the_time_counts():
    algorithm = 1_000_000 / 250e-6
    assert bandwidths(transfer_ns=MISSING, matched=False) == (
        pytest.approx(algorithm),
        pytest.approx(algorithm * 2 * 3 / 4),
        "duration",
    )


@pytest.mark.parametrize("changes", [{"bytes": MISSING}, {"transfer_ns": 0}, {"bytes": 0}, {"kind": "barrier"}])
def test_what_can_not_be_known_is_missing(changes):
    algorithm, bus, over = bandwidths(**changes)
    assert np.isnan(algorithm)
    assert np.isnan(bus)
    assert over is None


def test_a_kind_that_is_not_known_has_no_bus_bandwidth():
    algorithm, bus, _ = bandwidths(kind="other")
    assert algorithm == pytest.approx(1e10)
    assert np.isnan(bus)


def test_the_number_of_ranks_is_that_of_the_matched_ones_where_none_is_stated():
    found = add_bandwidths(concatenated([rows(group_size=MISSING), rows(group_size=MISSING)]))
    assert found["bus_bandwidth"].tolist() == [pytest.approx(1e10 * 2 * 1 / 2)] * 2
    alone = bandwidths(group_size=MISSING, matched=False, transfer_ns=MISSING)
    assert alone[0] == pytest.approx(4e9)
    assert np.isnan(alone[1])
    # A broadcast's needs no number of ranks.
    assert bandwidths(kind="broadcast", group_size=MISSING, matched=False)[1] == pytest.approx(1e10)

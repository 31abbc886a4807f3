"""What a rank does while it communicates, against a count of instants one by one."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anatomy.traces.columns import MISSING, concatenated
from anatomy.traces.job.waiting import impossible_notes, split, split_waiting

HORIZON = 40


def collectives(spans):
    """A rank's rows from (start, length, waited or None where it is not known)."""
    known = [(start, start + length, MISSING if waited is None else waited) for start, length, waited in spans]
    columns = np.array(known, dtype=np.int64).reshape(-1, 3).T
    return dict(zip(("start_ns", "end_ns", "wait_ns"), columns, strict=True))


def pieces(spans):
    """Columns from (step, phase, overlapped, start, end)."""
    names = ("step", "phase", "overlapped", "start_ns", "end_ns")
    columns = zip(*spans, strict=True) if spans else [()] * len(names)
    return {
        name: np.array(list(values), dtype=bool if name == "overlapped" else np.int64)
        for name, values in zip(names, columns, strict=True)
    }


def states(spans, rows, gpu=True):
    """Waiting, transfer and unknown by step, phase and overlapped."""
    found = split(pieces(spans), collectives(rows), gpu)
    found = pd.DataFrame(found).groupby(["step", "phase", "overlapped"]).sum()
    return {index: tuple(row) for index, row in zip(found.index, found.to_numpy().tolist(), strict=True)}


def test_waiting_then_transfer():
    # Of [10, 50), it waits until 30; the rank computes from 20 to 40.
    spans = [(1, 3, False, 10, 20), (1, 3, True, 20, 40), (1, 3, False, 40, 50)]
    assert states(spans, [(10, 40, 20)]) == {(1, 3, False): (10, 10, 0), (1, 3, True): (10, 10, 0)}


def test_any_transfer_decides_then_what_is_unknown():
    # Transfer in [10, 20) and [25, 30), unknown in [15, 35), waiting in [0, 10) and [5, 25).
    rows = [(0, 20, 10), (5, 25, 20), (15, 20, None)]
    assert states([(1, 0, False, 0, 40)], rows) == {(1, 0, False): (10, 15, 10 + 5)}


@pytest.mark.parametrize(("gpu", "expected"), [(True, (0, 0, 10)), (False, (0, 10, 0))])
def test_where_no_collective_is_in_flight(gpu, expected):
    assert states([(1, 0, False, 0, 10)], [], gpu) == {(1, 0, False): expected}


def test_no_communication_is_no_row():
    assert states([], [(0, 10, 5)]) == {}


@st.composite
def rank_pieces(draw):
    bounds = sorted(draw(st.sets(st.integers(0, HORIZON), max_size=12)))
    labels = st.tuples(st.integers(1, 2), st.integers(0, 1), st.booleans(), st.booleans())
    return [
        (step, phase, overlapped, start, end)
        for start, end in pairwise(bounds)
        for step, phase, overlapped, kept in [draw(labels)]
        if kept
    ]


@st.composite
def rank_collectives(draw):
    start, length = draw(st.integers(0, HORIZON)), draw(st.integers(0, HORIZON))
    return (start, length, draw(st.none() | st.integers(0, length)))


@settings(max_examples=200)
@given(spans=rank_pieces(), rows=st.lists(rank_collectives(), max_size=6), gpu=st.booleans())
def test_every_instant_is_in_one_state(spans, rows, gpu):
    expected = {(step, phase, overlapped): [0, 0, 0] for step, phase, overlapped, _, _ in spans}
    for step, phase, overlapped, start, end in spans:
        for instant in range(start, end):
            flying = [row for row in rows if row[0] <= instant < row[0] + row[1]]
            if any(wait is not None and instant >= begin + wait for begin, _, wait in flying):
                state = 1
            elif any(wait is None for _, _, wait in flying):
                state = 2
            elif flying:
                state = 0
            else:
                state = 2 if gpu else 1
            expected[step, phase, overlapped][state] += 1
    assert states(spans, rows, gpu) == {label: tuple(counts) for label, counts in expected.items()}


def met(*arrivals, matched=True, collective=0):
    """One collective by (start, end) of ranks 0, 1, …"""
    number = len(arrivals)
    start, end = np.array(arrivals, dtype=np.int64).T
    return {
        "collective": np.full(number, collective),
        "rank": np.arange(number),
        "kind": np.full(number, "all_reduce", dtype=object),
        "matched": np.full(number, matched),
        "start_ns": start,
        "end_ns": end,
    }


def test_arrivals_are_compared_by_the_common_clock():
    # Rank 1's clock is 500 ahead: it comes at 150, not at 650.
    rows = split_waiting(met((100, 200), (650, 705)), {0: 0, 1: 500})
    assert rows["arrival_ns"].tolist() == [100, 150]
    assert rows["wait_ns"].tolist() == [50, 0]
    assert rows["transfer_ns"].tolist() == [50, 55]
    assert rows["straggler"].tolist() == [1, 1]


def test_waiting_ends_with_the_collective():
    rows = split_waiting(met((100, 200), (300, 310)), {0: 0, 1: 0})
    assert rows["wait_ns"].tolist() == [100, 0]
    assert rows["transfer_ns"].tolist() == [0, 10]


def test_of_two_that_come_last_together_the_lower_rank_counts():
    assert split_waiting(met((1, 9), (5, 9), (5, 9)), dict.fromkeys(range(3), 0))["straggler"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(("offsets", "matched"), [({0: 0}, True), ({0: 0, 1: 0}, False)])
def test_what_can_not_be_compared_is_missing(offsets, matched):
    rows = split_waiting(met((100, 200), (150, 200), matched=matched), offsets)
    assert all((rows[name] == MISSING).all() for name in ("wait_ns", "transfer_ns", "straggler"))
    assert rows["arrival_ns"].tolist() == [100, 150 if 1 in offsets else MISSING]


def test_collectives_are_numbered_by_first_arrival():
    both = concatenated([met((100, 200), (650, 700)), met((90, 99), (800, 810), collective=1)])
    rows = split_waiting(both, {0: 0, 1: 600})
    # Rank 1 came to the first at 50, before rank 0 came to the second at 90.
    assert rows["collective"].tolist() == [0, 0, 1, 1]
    assert rows["start_ns"].tolist() == [100, 650, 90, 800]
    rows = split_waiting(both, {0: 0, 1: 0})
    assert rows["start_ns"].tolist() == [90, 800, 100, 650]


def test_collectives_that_arrive_together_keep_their_order():
    # Of (collective, first arrival) 5, 50; 3, 50; 8, 40, those at 50 stay as they come, whatever their numbers.
    parts = [met((at, at + 9), (at, at + 9), collective=number) for number, at in ((5, 50), (3, 50), (8, 40))]
    rows = split_waiting(concatenated([part | {"was": part["collective"]} for part in parts]), {0: 0, 1: 0})
    assert rows["collective"].tolist() == [0, 0, 1, 1, 2, 2]
    assert rows["was"].tolist() == [8, 8, 5, 5, 3, 3]


def test_the_input_stays_as_it_is():
    rows = met((100, 200), (650, 705))
    before = {name: column.copy() for name, column in rows.items()}
    split_waiting(rows, {0: 0, 1: 500})
    assert list(rows) == list(before)
    assert all((rows[name] == before[name]).all() for name in rows)


def test_clocks_that_can_not_be_right_are_noted():
    zero = {0: 0, 1: 0}
    (note,) = impossible_notes(split_waiting(met((1000, 2000), (500_000, 510_000)), zero))
    assert note.startswith("1 of 1 matched collectives end on one rank before another arrives")
    assert impossible_notes(split_waiting(met((1000, 450_000), (500_000, 510_000)), zero)) == []  # within 100 us

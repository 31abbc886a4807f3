"""Offsets of clocks: planted in jobs whose truth is known, and found again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anatomy.traces.columns import MISSING, concatenated, take
from anatomy.traces.job.clocks import applied_offsets, estimate_clocks
from anatomy.traces.job.matching import match_collectives
from anatomy.traces.job.waiting import impossible_notes, split_waiting

START = 1_700_000_000_000_000_000
RANKS = 4


def columns(group, ranks, starts, ends, kind="all_reduce"):
    """What `find_collectives` would say of one rank's collectives in one group."""
    number = len(starts)
    constant = {"step": 1, "group_size": len(ranks), "sequence": -1, "source": -1, "destination": -1, "bytes": 1000}
    texts = {name: np.full(number, value, dtype=object) for name, value in (("group", group), ("kind", kind))}
    members = np.empty(number, dtype=object)
    members[:] = [tuple(ranks)] * number
    return {
        **{name: np.full(number, value, dtype=np.int64) for name, value in constant.items()},
        **texts,
        "group_ranks": members,
        "point_to_point": np.zeros(number, dtype=bool),
        "start_ns": np.asarray(starts, dtype=np.int64),
        "end_ns": np.asarray(ends, dtype=np.int64),
    }


def job(seed, number=30, ranks=range(RANKS), group="0", offsets=None, kind="all_reduce"):
    """Collectives of ranks that come at different times and leave at about the same, by ranks' own clocks."""
    rng = np.random.default_rng(seed)
    offsets = offsets or dict.fromkeys(ranks, 0)
    begin = START + np.cumsum(rng.integers(1_000_000, 5_000_000, number))
    arrivals = begin[:, None] + rng.integers(0, 500_000, (number, len(ranks)))
    transfer = rng.integers(20_000, 100_000, (number, 1)) + rng.integers(0, 10_000, (number, len(ranks)))
    ends = arrivals.max(axis=1, keepdims=True) + transfer
    return {
        rank: columns(group, ranks, arrivals[:, place] + offsets[rank], ends[:, place] + offsets[rank], kind)
        for place, rank in enumerate(ranks)
    }


def estimated(by_rank, recorded=None, world=None):
    rows, _ = match_collectives(by_rank, world or sorted(by_rank))
    return rows, estimate_clocks(rows, by_rank, recorded)


def offsets_of(clocks):
    return clocks["offset_ns"].tolist()


def clock_of(clocks, rank):
    """Offset, uncertainty, method and number of collectives of a rank."""
    (row,) = np.flatnonzero(clocks["rank"] == rank)
    return [clocks[name][row] for name in ("offset_ns", "uncertainty_ns", "method", "collectives")]


def exchange(rank, at, offset_ns, uncertainty_ns=10_000):
    return {"rank": rank, "at": at, "local_ns": START, "offset_ns": offset_ns, "uncertainty_ns": uncertainty_ns}


planted = st.lists(st.integers(-(10**10), 10**10), min_size=RANKS - 1, max_size=RANKS - 1)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), ahead=planted)
def test_planted_offsets_are_found_within_the_stated_uncertainty(seed, ahead):
    truth = dict(enumerate([0, *ahead]))
    _, (clocks, _) = estimated(job(seed, offsets=truth))
    assert clocks["rank"].tolist() == list(truth)
    assert (abs(clocks["offset_ns"] - list(truth.values())) <= clocks["uncertainty_ns"]).all()
    # Half of the ranks' shortest transfers bound it from both sides; the longest takes 110 us.
    assert clocks["uncertainty_ns"].max() <= 250_000


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), ahead=planted)
def test_corrected_waiting_is_that_of_one_clock(seed, ahead):
    truth = dict(enumerate([0, *ahead]))
    _, (clocks, _) = estimated(job(seed, offsets=truth))
    by_clocks, _ = match_collectives(job(seed, offsets=truth), range(RANKS))
    by_clocks = split_waiting(by_clocks, applied_offsets(clocks))
    by_truth = split_waiting(match_collectives(job(seed), range(RANKS))[0], dict.fromkeys(range(RANKS), 0))
    # The difference of two clocks is off by what both are.
    allowed = 2 * clocks["uncertainty_ns"].max()
    assert abs(by_clocks["wait_ns"] - by_truth["wait_ns"]).max() <= allowed
    assert (by_clocks["wait_ns"] + by_clocks["transfer_ns"] == by_clocks["end_ns"] - by_clocks["start_ns"]).all()
    assert impossible_notes(by_clocks) == []


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_ranks_of_one_clock_are_not_moved(seed):
    _, (clocks, notes) = estimated(job(seed))
    assert offsets_of(clocks) == [0] * RANKS
    assert clocks["method"].tolist() == ["reference", *["collectives"] * (RANKS - 1)]
    assert clocks["collectives"].tolist() == [0, 30, 30, 30]
    assert len(notes) == 1
    assert notes[0].startswith("3 of 3 clocks can't be told from the reference's")


def test_the_bounds_of_one_collective():
    # Rank 1, 5 ms ahead, comes at 100 us and waits until 300 us for rank 0; both end at 320 us.
    ahead = 5_000_000
    by_rank = {
        0: columns("0", (0, 1), [START + 300_000], [START + 320_000]),
        1: columns("0", (0, 1), [START + 100_000 + ahead], [START + 320_000 + ahead]),
    }
    _, (clocks, notes) = estimated(by_rank)
    # By the ends it is 5 ms; rank 0 started 20 us before rank 1's end, and rank 1 220 us before rank 0's. Where time
    # stamps are rounded, 1 us more on either side.
    assert clock_of(clocks, 1) == [ahead, 221_000, "collectives", 1]
    assert any("the most that of rank 1, by 5.000 ms (± 0.221 ms)" in note for note in notes)


def test_large_offsets_keep_their_nanoseconds():
    century = 3_155_760_000_000_000_001
    truth = {0: 0, 1: century - 4_000_000_000_000_000_000}
    _, (clocks, _) = estimated(job(1, ranks=range(2), offsets=truth))
    assert abs(int(clocks["offset_ns"][1]) - truth[1]) < 10_000
    rows, _ = match_collectives(job(1, ranks=range(2), offsets=truth), range(2))
    moved = split_waiting(rows, truth)
    still = split_waiting(match_collectives(job(1, ranks=range(2)), range(2))[0], {0: 0, 1: 0})
    assert moved["wait_ns"].tolist() == still["wait_ns"].tolist()
    assert moved["arrival_ns"].tolist() == still["arrival_ns"].tolist()


def test_groups_lead_from_rank_to_rank():
    # 0 and 1 share a group, 1 and 2 another; 3 is only with itself.
    truth = {0: 0, 1: 7_000_000, 2: -3_000_000, 3: 1_000_000}
    first, second, third = (
        job(seed, ranks=ranks, group=str(seed), offsets=truth) for seed, ranks in enumerate([(0, 1), (1, 2), (3,)])
    )
    rows, (clocks, notes) = estimated({0: first[0], 1: concatenated([first[1], second[1]]), 2: second[2], 3: third[3]})
    for rank in (1, 2):
        offset, uncertainty, *_ = clock_of(clocks, rank)
        assert abs(offset - truth[rank]) <= uncertainty
    assert clocks["uncertainty_ns"][2] > clocks["uncertainty_ns"][1]
    assert clocks["method"].tolist() == ["reference", "collectives", "collectives", "unknown"]
    assert clock_of(clocks, 3) == [MISSING, MISSING, "unknown", 0]
    assert any("clocks of ranks 3 can't be compared" in note for note in notes)
    split = split_waiting(rows, applied_offsets(clocks))
    alone = take(split, split["rank"] == 3)
    assert all((alone[name] == MISSING).all() for name in ("arrival_ns", "wait_ns", "transfer_ns", "straggler"))
    assert (split["wait_ns"][split["rank"] != 3] >= 0).all()


def test_broadcasts_synchronise_nobody():
    _, (clocks, _) = estimated(job(2, kind="broadcast"))
    assert clocks["method"].tolist() == ["reference", *["unknown"] * (RANKS - 1)]


def test_an_all_to_all_that_holds_nobody_up_does_not_count():
    reduces = job(3, ranks=(0, 1))
    # Rank 1 comes 4 ms after rank 0 has gone: they had nothing to send to each other.
    alone = [
        columns("0", (0, 1), [START + 9_000_000_000 + late], [START + 9_000_050_000 + late], "all_to_all")
        for late in (0, 4_000_000)
    ]
    _, (clocks, _) = estimated({rank: concatenated([reduces[rank], alone[rank]]) for rank in (0, 1)})
    offset, uncertainty, _, number = clock_of(clocks, 1)
    assert (offset, number) == (0, 30)
    assert uncertainty < 250_000


def test_clocks_that_drift_are_as_uncertain_as_they_drift():
    # Rank 1 gains 2 ms between the first and the last collective, so that no single offset is right.
    steady = job(4, ranks=(0, 1))
    gained = np.linspace(10_000_000, 12_000_000, 30).astype(np.int64)
    drifting = steady[1] | {name: steady[1][name] + gained for name in ("start_ns", "end_ns")}
    _, (clocks, _) = estimated({0: steady[0], 1: drifting})
    offset, uncertainty, *_ = clock_of(clocks, 1)
    assert abs(offset - gained).max() <= uncertainty
    assert 1_000_000 < uncertainty < 1_300_000
    assert offset > 10_000_000


class TestExchange:
    def test_the_middle_of_start_and_end_counts(self):
        recorded = {
            "reference": 0,
            "exchanges": [exchange(1, "start", 5_000_000), exchange(1, "end", 5_200_000, 30_000)],
        }
        _, (clocks, _) = estimated(job(5, ranks=(0, 1), offsets={0: 0, 1: 9_000_000}), recorded)
        # (5.0 + 5.2) / 2, give or take the larger uncertainty and half of the drift
        assert clock_of(clocks, 1) == [5_100_000, 130_000, "exchange", 0]

    def test_an_offset_below_its_uncertainty_is_none(self):
        recorded = {"reference": 0, "exchanges": [exchange(1, "start", 8_000), exchange(1, "end", -2_000)]}
        _, (clocks, _) = estimated(job(6, ranks=(0, 1)), recorded)
        # 3 us, give or take 10 + 5: anything between -12 and 18
        assert clock_of(clocks, 1) == [0, 18_000, "exchange", 0]

    def test_ranks_without_exchange_are_estimated(self):
        recorded = {"reference": 0, "exchanges": [exchange(1, "start", 5_000_000)]}
        truth = {0: 0, 1: 5_000_000, 2: 7_000_000, 3: 0}
        _, (clocks, _) = estimated(job(7, offsets=truth), recorded)
        assert clocks["method"].tolist() == ["reference", "exchange", "collectives", "collectives"]
        offset, uncertainty, *_ = clock_of(clocks, 2)
        assert abs(offset - 7_000_000) <= uncertainty

    @pytest.mark.parametrize("recorded", [None, {"reference": 0, "exchanges": []}, {"reference": 9, "exchanges": []}])
    def test_nothing_recorded_is_nothing_used(self, recorded):
        _, (clocks, _) = estimated(job(8), recorded)
        assert offsets_of(clocks) == [0] * RANKS

    def test_clocks_are_known_without_a_matched_collective(self):
        recorded = {"reference": 0, "exchanges": [exchange(1, "start", 5_000_000)]}
        _, (clocks, notes) = estimated(job(9, number=0, ranks=(0, 1)), recorded)
        assert applied_offsets(clocks) == {0: 0, 1: 5_000_000}
        assert len(notes) == 2

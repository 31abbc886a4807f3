"""Messages on the CPU, alone and as one annotated collective, on traces written by hand."""

import numpy as np
import pytest

from anatomy.traces.job.bandwidth import add_bandwidths
from anatomy.traces.job.matching import match_collectives
from anatomy.traces.job.waiting import split_waiting
from anatomy.traces.options import ParseOptions
from anatomy.traces.rank.annotations import PHASES, PhaseTimeline, find_phases, find_steps
from anatomy.traces.rank.communication import find_collectives
from anatomy.traces.rank.decomposition import CATEGORIES
from anatomy.traces.reading.trace import read_trace

ROW_BYTES = 32


@pytest.fixture
def found(tmp_path):
    """What `find_collectives` says of a trace."""

    def run(trace):
        events = read_trace(trace.write(tmp_path, "trace.json"), ParseOptions()).events
        return find_collectives(events, find_steps(events), PhaseTimeline(find_phases(events)))

    return run


@pytest.fixture
def two_ranks(new_trace):
    """Two ranks with a step of 1000 us."""
    traces = [new_trace(rank, 2) for rank in range(2)]
    for trace in traces:
        trace.step(1, 1000, 2000)
    return traces


def message(trace, way, peer, start, end, rows=1, **operator):
    """A message as torch 2.2 writes it: the call returns soon, the event lasts until somebody has waited for it."""
    shapes = {"Input Dims": [[[rows, 8]], [], [], []], "Input type": ["TensorList", "", "Scalar", "Scalar"]}
    called = {"Concrete Inputs": ["", "", str(peer), "0"], **shapes} | operator
    name = {"send": "c10d::send", "recv": "c10d::recv_"}[way]
    trace.event("cpu_op", name, start - 1, start + 1, **called)
    sizes = {"Input Dims": [[rows, 8]], "Input type": ["float"]}
    trace.event("user_annotation", f"gloo:{way}", start, end, **sizes)


def exchange(trace, start, end, ranks=""):
    trace.event("user_annotation", "collective:all_to_all_v" + ranks, start, end)


class TestAlone:
    def test_the_operator_names_the_other_rank(self, found, two_ranks):
        message(two_ranks[0], "send", 1, 1010, 1020)
        message(two_ranks[0], "recv", 1, 1030, 1040)
        rows = found(two_ranks[0])
        assert rows["kind"].tolist() == ["send_recv", "send_recv"]
        assert rows["point_to_point"].tolist() == [True, True]
        assert list(zip(rows["source"].tolist(), rows["destination"].tolist(), strict=True)) == [(-1, 1), (1, -1)]
        assert rows["bytes"].tolist() == [ROW_BYTES, ROW_BYTES]

    @pytest.mark.parametrize("stated", [[], ["", "", "-1", "0"], ["", "", "", "0"], "0", ["", "", 1, 0]])
    def test_an_operator_that_does_not_say_leaves_it_open(self, found, two_ranks, stated):
        message(two_ranks[0], "send", 1, 1010, 1020, **{"Concrete Inputs": stated})
        rows = found(two_ranks[0])
        assert (rows["source"][0], rows["destination"][0]) == (-1, -1)

    def test_two_ranks_are_matched_and_waiting_is_until_the_later_one(self, found, two_ranks):
        message(two_ranks[0], "recv", 1, 1010, 1100)
        message(two_ranks[1], "send", 0, 1080, 1090)
        rows, _ = match_collectives(dict(enumerate(map(found, two_ranks))), range(2))
        rows = split_waiting(rows, {0: 0, 1: 0})
        assert rows["matched"].tolist() == [True, True]
        assert dict(zip(rows["rank"].tolist(), rows["wait_ns"].tolist(), strict=True)) == {0: 70_000, 1: 0}


class TestOneCollective:
    def test_its_messages_are_one_piece_until_the_last_of_them_ends(self, found, two_ranks):
        trace = two_ranks[0]
        trace.phase("exchange", 1005, 1040)
        exchange(trace, 1010, 1030)
        message(trace, "recv", 1, 1012, 1500, rows=2)
        message(trace, "recv", 2, 1014, 1300, rows=3)
        message(trace, "send", 1, 1016, 1320, rows=4)
        message(trace, "send", 2, 1400, 1420)  # none of them
        rows = found(trace)
        assert rows["kind"].tolist() == ["all_to_all_v", "send_recv"]
        assert rows["point_to_point"].tolist() == [False, True]
        assert rows["start_ns"].tolist() == [1_010_000, 1_400_000]
        assert rows["end_ns"].tolist() == [1_500_000, 1_420_000]
        assert rows["bytes"].tolist() == [max(2 + 3, 4) * ROW_BYTES, ROW_BYTES]
        assert [PHASES[phase] for phase in rows["phase"]] == ["exchange", "other"]

    def test_one_without_messages_is_a_piece_too(self, found, two_ranks):
        exchange(two_ranks[0], 1010, 1012)
        rows = found(two_ranks[0])
        assert rows["kind"].tolist() == ["all_to_all_v"]
        assert rows["bytes"].tolist() == [0]

    def test_a_message_of_unknown_size_leaves_the_sum_unknown(self, found, two_ranks):
        exchange(two_ranks[0], 1010, 1030)
        message(two_ranks[0], "recv", 1, 1012, 1050)
        two_ranks[0].event("user_annotation", "gloo:send", 1014, 1020)
        assert found(two_ranks[0])["bytes"].tolist() == [-1]

    def test_exchanges_in_flight_at_the_same_time_stay_apart(self, found, two_ranks):
        trace = two_ranks[0]
        for number in range(3):
            begin = 1010 + 20 * number
            exchange(trace, begin, begin + 10)
            message(trace, "recv", 1, begin + 2, 1900 - 100 * number, rows=number + 1)
        rows = found(trace)
        assert rows["end_ns"].tolist() == [1_900_000, 1_800_000, 1_700_000]
        assert rows["bytes"].tolist() == [ROW_BYTES, 2 * ROW_BYTES, 3 * ROW_BYTES]

    def test_ranks_are_matched_and_the_bandwidth_is_that_of_the_link(self, found, two_ranks):
        """Rank 1 comes 40 us late; then 1,000 rows take 100 us each way."""
        for trace, start in zip(two_ranks, (1010, 1050), strict=True):
            exchange(trace, start, start + 5)
            other = 1 - trace.content["distributedInfo"]["rank"]
            message(trace, "recv", other, start + 1, 1150, rows=1000)
            message(trace, "send", other, start + 3, 1150, rows=1000)
        rows, _ = match_collectives(dict(enumerate(map(found, two_ranks))), range(2))
        rows = add_bandwidths(split_waiting(rows, {0: 0, 1: 0}))
        assert rows["wait_ns"].tolist() == [40_000, 0]
        assert rows["transfer_ns"].tolist() == [100_000, 100_000]
        np.testing.assert_allclose(rows["bus_bandwidth"], 1000 * ROW_BYTES / 100e-6)

    def test_ranks_that_exchange_among_themselves_are_matched_among_themselves(self, found, new_trace):
        """Of two groups, one exchanges twice and the other once; rank 3 comes 20 us after rank 2."""
        rows = {}
        for rank in range(4):
            trace = new_trace(rank, 4)
            trace.step(1, 1000, 2000)
            first, other = rank - rank % 2, rank + 1 - 2 * (rank % 2)
            for start in (1010, 1200) if first == 0 else (1010 + 20 * (rank % 2),):
                exchange(trace, start, start + 5, f" [{first}, {first + 1}]")
                message(trace, "recv", other, start + 1, start + 100)
            rows[rank] = found(trace)
        assert rows[0]["kind"].tolist() == ["all_to_all_v"] * 2
        matched, _ = match_collectives(rows, range(4))
        waited = split_waiting(matched, dict.fromkeys(range(4), 0))
        assert matched["matched"].all()
        assert (matched["group_size"] == 2).all()
        by_rank = {rank: waited["wait_ns"][waited["rank"] == rank].tolist() for rank in range(4)}
        assert by_rank == {0: [0, 0], 1: [0, 0], 2: [20_000], 3: [0]}

    @pytest.mark.parametrize("text", [" [0, x]", " []", " [0,1]", " [99999999999999999999, 1]"])
    def test_ranks_that_cannot_be_read_are_unknown(self, found, two_ranks, text):
        exchange(two_ranks[0], 1010, 1030, text)
        assert found(two_ranks[0])["group_ranks"].tolist() == [None]

    def test_of_random_messages_nothing_is_lost(self, found, new_trace):
        """Bytes each way, ends and pieces outside against sums over the list that the trace was written from."""
        rng = np.random.default_rng(3)
        for _ in range(20):
            trace = new_trace(0, 4)
            trace.step(1, 1000, 9000)
            expected, now = [], 1010
            for _ in range(rng.integers(1, 5)):
                count, begin = int(rng.integers(0, 6)), now
                sizes, ends, ways = rng.integers(1, 50, count), [begin], {"send": 0, "recv": 0}
                for rows in sizes.tolist():
                    now += 4
                    way = str(rng.choice(["send", "recv"]))
                    ends.append(now + int(rng.integers(1, 3000)))
                    ways[way] += rows * ROW_BYTES
                    message(trace, way, int(rng.integers(1, 4)), now, ends[-1], rows=rows)
                now += 4
                exchange(trace, begin, now)
                expected.append((begin * 1000, max(*ends, now) * 1000, max(ways.values())))
                now += 10
            rows = found(trace)
            names = ("start_ns", "end_ns", "bytes")
            assert list(zip(*(rows[name].tolist() for name in names), strict=True)) == expected


def test_a_blocking_exchange_is_exposed_communication(examined, two_ranks):
    """1,000 us in all: 300 in an operator, 500 in the exchange, the rest between."""
    trace = two_ranks[0]
    trace.op("aten::mm", 1000, 1300)
    trace.phase("exchange", 1400, 1900)
    exchange(trace, 1400, 1900)
    message(trace, "recv", 1, 1402, 1890, rows=2)
    message(trace, "send", 1, 1404, 1880, rows=2)
    sums = examined(trace).sums
    spent = {name: int(sums["ns"][sums["category"] == place].sum()) for place, name in enumerate(CATEGORIES)}
    assert spent == dict.fromkeys(CATEGORIES, 0) | {"compute": 300_000, "communication": 500_000, "other": 200_000}


def test_what_is_in_flight_is_exposed_only_while_somebody_waits_for_it(examined, two_ranks):
    """1,000 us in all: 10 for posting and 100 for waiting are exposed; 300 in an operator and 590 between are not."""
    trace = two_ranks[0]
    trace.phase("exchange", 1000, 1010)
    exchange(trace, 1000, 1010)
    message(trace, "recv", 1, 1002, 2000, rows=2)
    trace.op("aten::mm", 1200, 1500)
    trace.phase("exchange", 1900, 2000)
    trace.event("user_annotation", "wait:collective", 1900, 2000)
    record = examined(trace)
    sums = record.sums
    spent = {name: int(sums["ns"][sums["category"] == place].sum()) for place, name in enumerate(CATEGORIES)}
    assert spent == dict.fromkeys(CATEGORIES, 0) | {"compute": 300_000, "communication": 110_000, "other": 590_000}
    pieces = record.communicating
    lengths = pieces["end_ns"] - pieces["start_ns"]
    assert lengths[pieces["overlapped"]].sum() == 890_000
    assert lengths[~pieces["overlapped"]].sum() == 110_000

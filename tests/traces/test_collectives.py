"""Communication of one rank, and its matching across ranks, on traces small enough to work out by hand."""

import numpy as np
import pytest

from anatomy.traces.columns import MISSING, take
from anatomy.traces.job.bandwidth import add_bandwidths
from anatomy.traces.job.clocks import applied_offsets, estimate_clocks
from anatomy.traces.job.matching import match_collectives, unmatched_share
from anatomy.traces.job.waiting import split_waiting
from anatomy.traces.options import ParseOptions
from anatomy.traces.rank.annotations import PHASES, PhaseTimeline, find_phases, find_steps
from anatomy.traces.rank.communication import find_collectives, is_call, is_work, payload_bytes
from anatomy.traces.reading.trace import read_trace

GROUP = {"Process Group Name": "3", "Process Group Ranks": "[0, 1]", "Group size": 2}


@pytest.fixture
def events_of(tmp_path):
    """Write a trace and read its events."""
    return lambda trace: read_trace(trace.write(tmp_path, "trace.json"), ParseOptions()).events


@pytest.fixture
def found(events_of):
    """What `find_collectives` says of a trace."""

    def run(trace):
        events = events_of(trace)
        return find_collectives(events, find_steps(events), PhaseTimeline(find_phases(events)))

    return run


@pytest.fixture
def matched(found):
    """Rows of traces, of ranks 0, 1, … of the job, matched and split by one clock, and notes; `world` is its size."""

    def run(*traces, world=None):
        rows, notes = match_collectives(dict(enumerate(map(found, traces))), range(world or len(traces)))
        rows = split_waiting(rows, dict.fromkeys(range(len(traces)), 0))
        return rows, notes

    return run


@pytest.fixture
def two_ranks(new_trace):
    """Two ranks with a step of 100 us."""
    traces = [new_trace(rank, 2) for rank in range(2)]
    for trace in traces:
        trace.step(1, 1000, 1100)
    return traces


def nccl(trace, start, end, name="AllReduce_Sum_f32_RING_LL", **args):
    """A kernel launched 5 us before it starts."""
    trace.kernel(f"ncclDevKernel_{name}(ncclDevComm*)", start, end, stream=20, launch=start - 5, **args)


def are_missing(rows, *names):
    return all((rows[name] == MISSING).all() for name in names)


class TestOneRank:
    def test_work_is_not_its_call(self, events_of, two_ranks):
        trace = two_ranks[0]
        trace.op("c10d::allreduce_", 1001, 1004)
        trace.gloo("all_reduce", 1003, 1020)
        trace.op("aten::mm", 1030, 1040)
        events = events_of(trace)
        names = np.array(events.names)[events.name]
        assert names[is_work(events)].tolist() == ["gloo:all_reduce"]
        assert names[is_call(events)].tolist() == ["c10d::allreduce_"]

    def test_a_kernel_belongs_to_step_and_phase_of_its_launch(self, found, two_ranks):
        trace = two_ranks[0]
        trace.step(2, 1100, 1200)
        trace.phase("sync", 1090, 1099)
        nccl(trace, 1103, 1111)  # launched at 1098
        columns = found(trace)
        assert columns["step"].tolist() == [1]
        assert [PHASES[phase] for phase in columns["phase"]] == ["sync"]
        assert columns["start_ns"].tolist() == [1_103_000]
        assert columns["stream"].tolist() == [20]

    def test_what_is_launched_outside_of_the_steps_is_left_out(self, found, two_ranks):
        nccl(two_ranks[0], 1001, 1010)  # launched at 996
        columns = found(two_ranks[0])
        assert {name: len(column) for name, column in columns.items()} == dict.fromkeys(columns, 0)

    def test_arguments_of_a_kernel_say_it_all(self, found, two_ranks):
        sizes = {"In msg nelems": 10, "Out msg nelems": 10, "dtype": "Float"}
        nccl(two_ranks[0], 1010, 1020, "SendRecv", Seq=7, **{"Collective name": "alltoall"}, **GROUP, **sizes)
        columns = found(two_ranks[0])
        names = ("group", "group_ranks", "group_size", "sequence", "kind", "point_to_point", "bytes")
        assert [columns[name][0] for name in names] == ["3", (0, 1), 2, 7, "all_to_all", False, 40]

    def test_the_calls_around_the_launch_say_what_the_kernel_does_not(self, found, two_ranks):
        trace = two_ranks[0]
        trace.event("cpu_op", "record_param_comms", 1001, 1009, **{"Collective name": "allreduce", "Seq": 4}, **GROUP)
        trace.event("cpu_op", "record_param_comms", 1002, 1003, **{"Collective name": "wait", "Seq": 3}, **GROUP)
        trace.event("user_annotation", "nccl:all_reduce", 1003, 1008, **{"Input Dims": [[6]], "Input type": ["float"]})
        nccl(trace, 1012, 1020, "Generic")  # launched at 1007, within the first and the last of them
        nccl(trace, 1030, 1040, "Generic")  # launched within none
        columns = found(trace)
        assert columns["kind"].tolist() == ["all_reduce", "other"]
        assert columns["sequence"].tolist() == [4, -1]
        assert columns["group_ranks"].tolist() == [(0, 1), None]
        assert columns["bytes"].tolist() == [24, -1]

    def test_a_launch_on_another_thread_is_not_within_a_call(self, found, two_ranks):
        two_ranks[0].event("user_annotation", "nccl:all_to_all", 1001, 1020, thread=300)
        nccl(two_ranks[0], 1010, 1020, "SendRecv")
        assert found(two_ranks[0])["kind"].tolist() == ["send_recv"]

    def test_an_all_gather_is_as_large_as_its_output(self, found, two_ranks):
        trace = two_ranks[0]
        shapes = {"Input Dims": [[64], [16], []], "Input type": ["float", "float", ""]}
        trace.event("cpu_op", "c10d::_allgather_base_", 1001, 1009, **shapes)
        trace.event("user_annotation", "nccl:_all_gather_base", 1002, 1008, **{"Input Dims": [[16]]})
        nccl(trace, 1010, 1020, "AllGather")
        columns = found(trace)
        assert columns["kind"].tolist() == ["all_gather"]
        assert columns["bytes"].tolist() == [64 * 4]

    @pytest.mark.parametrize(
        ("args", "expected"),
        [
            ({"Process Group Ranks": "[4, 6]", "Group size": 2}, (4, 6)),
            # Newer profilers abridge long lists.
            ({"Process Group Ranks": "[0, 1, ...]", "Group size": 64}, None),
            ({"Process Group Ranks": "[]", "Group size": 2}, None),
            ({"Process Group Ranks": "[0, ...]", "Group size": 4, "Global rank start": 1, "Global rank stride": 2},
             (1, 3, 5, 7)),
            ({"Group size": 4, "Global rank start": 1, "Global rank stride": -1}, None),
            ({}, None),
        ],
    )  # fmt: skip
    def test_ranks_of_a_group(self, found, two_ranks, args, expected):
        nccl(two_ranks[0], 1010, 1020, **args)
        assert found(two_ranks[0])["group_ranks"].tolist() == [expected]

    @pytest.mark.parametrize(
        ("annotation", "args", "expected"),
        [
            ("nccl:send 0->1", GROUP | {"Process Group Ranks": "[4, 6]"}, (4, 6)),
            ("nccl:recv 1<-0", GROUP | {"Process Group Ranks": "[4, 6]"}, (4, 6)),
            ("nccl:send 2->3", {}, (2, 3)),
            ("nccl:send", {"Collective name": "send", "Dst Rank": 5}, (-1, 5)),
            ("nccl:recv", {"Collective name": "recv", "Src Rank": 5}, (5, -1)),
            ("nccl:coalesced", {}, (-1, -1)),
        ],
    )
    def test_the_sides_of_a_message(self, found, two_ranks, annotation, args, expected):
        two_ranks[0].event("user_annotation", annotation, 1001, 1009)
        nccl(two_ranks[0], 1010, 1020, "SendRecv", **args)
        columns = found(two_ranks[0])
        assert columns["kind"].tolist() == ["send_recv"]
        assert columns["point_to_point"].tolist() == [True]
        assert (columns["source"][0], columns["destination"][0]) == expected

    @pytest.mark.parametrize(
        ("args", "kind", "expected"),
        [
            ({"In msg nelems": 10, "Out msg nelems": 20, "dtype": "Float"}, "all_gather", 80),
            ({"In msg nelems": 53, "Out msg nelems": 53, "dtype": "Long"}, "broadcast", 424),
            ({"In msg nelems": 53, "Out msg nelems": 53, "dtype": "Unheard"}, "broadcast", None),
            ({"Input Dims": [[500, 500]], "Input type": ["float"]}, "all_reduce", 1_000_000),
            ({"Input Dims": [[3], [2, 2]], "Input type": ["long int", "int"]}, "all_reduce", 40),
            ({"Input Dims": [[10]], "Input type": ["float"], "Group size": 4}, "all_gather", 160),
            ({"Input Dims": [[10]], "Input type": ["float"]}, "all_gather", None),
            ({}, "all_reduce", None),
        ],
    )
    def test_bytes_are_those_of_the_larger_buffer(self, args, kind, expected):
        assert payload_bytes(args, kind) == expected


class TestMatching:
    def test_waiting_lasts_until_the_last_arrival(self, matched, two_ranks):
        two_ranks[0].gloo("all_reduce", 1010, 1060)
        two_ranks[1].gloo("all_reduce", 1040, 1065)
        rows, notes = matched(*two_ranks)
        assert rows["wait_ns"].tolist() == [30_000, 0]  # 1040 - 1010; the last to arrive does not wait
        assert rows["transfer_ns"].tolist() == [20_000, 25_000]  # 1060 - 1040, 1065 - 1040
        assert rows["straggler"].tolist() == [1, 1]
        assert rows["collective"].tolist() == [0, 0]
        assert rows["matched_by"].tolist() == ["order", "order"]
        assert unmatched_share(rows) == 0
        assert notes == [
            "2 of 2 pieces of communication have no sequence number and are matched by their order within group and "
            "step"
        ]

    def test_matching_is_by_order_within_a_step(self, matched, two_ranks):
        for trace in two_ranks:
            trace.step(2, 1100, 1200)
            trace.step(3, 1200, 1300)
            trace.gloo("all_reduce", 1210, 1220)
        two_ranks[0].gloo("all_to_all", 1010, 1030)
        two_ranks[0].gloo("all_reduce", 1040, 1050)
        two_ranks[1].gloo("all_to_all", 1020, 1031)
        two_ranks[1].gloo("all_reduce", 1045, 1051)
        two_ranks[0].gloo("all_reduce", 1110, 1120)  # missing on rank 1, which spoils step 2 only
        two_ranks[0].gloo("all_reduce", 1130, 1140)
        two_ranks[1].gloo("all_reduce", 1131, 1141)
        rows, notes = matched(*two_ranks)
        first, second, third = (take(rows, rows["step"] == step) for step in (1, 2, 3))
        assert [step["matched"].tolist() for step in (first, second, third)] == [[True] * 4, [False] * 3, [True] * 2]
        assert first["kind"].tolist() == ["all_to_all", "all_to_all", "all_reduce", "all_reduce"]
        assert first["wait_ns"].tolist() == [10_000, 0, 5_000, 0]
        assert are_missing(second, "wait_ns", "transfer_ns", "straggler")
        assert second["matched_by"].tolist() == [None] * 3
        assert unmatched_share(rows) == 3 / 9
        assert any("3 of 9 pieces of communication (33%) are not matched" in note for note in notes)

    def test_different_kinds_in_one_place_are_not_matched(self, matched, two_ranks):
        two_ranks[0].gloo("all_to_all", 1010, 1030)
        two_ranks[1].gloo("all_reduce", 1010, 1030)
        rows, notes = matched(*two_ranks)
        assert not rows["matched"].any()
        assert rows["collective"].tolist() == [0, 1]
        assert any("2 of 2 pieces of communication (100%) are not matched" in note for note in notes)

    def test_a_missing_rank_leaves_waiting_unknown(self, matched, two_ranks):
        two_ranks[0].gloo("all_reduce", 1010, 1060)
        rows, notes = matched(two_ranks[0], world=2)
        assert are_missing(rows, "wait_ns", "transfer_ns", "straggler")
        assert any("1 of 2 ranks have no trace" in note for note in notes)

    def test_no_communication_is_no_share(self, matched, two_ranks):
        rows, notes = matched(*two_ranks)
        assert len(rows["rank"]) == 0
        assert unmatched_share(rows) is None
        assert notes == []
        clocks, _ = estimate_clocks(rows, range(2))
        assert applied_offsets(clocks) == {0: 0}
        assert len(add_bandwidths(rows)["bus_bandwidth"]) == 0

    def test_sequence_numbers_go_before_order(self, matched, two_ranks):
        nccl(two_ranks[0], 1010, 1020, Seq=7, **GROUP)
        nccl(two_ranks[0], 1030, 1040, Seq=8, **GROUP)
        nccl(two_ranks[1], 1032, 1041, Seq=8, **GROUP)  # number 7 fell out of rank 1's trace
        rows, notes = matched(*two_ranks)
        assert rows["sequence"].tolist() == [7, 8, 8]
        assert rows["matched_by"].tolist() == [None, "sequence", "sequence"]
        assert rows["wait_ns"].tolist() == [MISSING, 2_000, 0]
        assert not any("matched by their order" in note for note in notes)

    def test_kernels_of_one_call_share_its_number(self, matched, two_ranks):
        for delay, trace in enumerate(two_ranks):
            nccl(trace, 1010 + delay, 1020, Seq=7, **GROUP)
            nccl(trace, 1030, 1040, Seq=7, **GROUP)
        rows, _ = matched(*two_ranks)
        assert rows["matched"].all()
        assert rows["collective"].tolist() == [0, 0, 1, 1]

    def test_groups_are_matched_apart(self, matched, two_ranks):
        nccl(two_ranks[0], 1010, 1020, **GROUP)
        nccl(two_ranks[1], 1015, 1020, **GROUP)
        # The same name for another group on each rank, as where ranks make their groups on their own.
        nccl(two_ranks[0], 1030, 1040, **{"Process Group Name": "5", "Process Group Ranks": "[0]", "Group size": 1})
        nccl(two_ranks[1], 1035, 1040, **{"Process Group Name": "5", "Process Group Ranks": "[1]", "Group size": 1})
        rows, _ = matched(*two_ranks)
        assert rows["matched"].all()
        assert rows["group"].tolist() == ["3", "3", "5", "5"]
        assert rows["collective"].tolist() == [0, 0, 1, 2]
        assert rows["wait_ns"].tolist() == [5_000, 0, 0, 0]

    def test_a_group_whose_members_are_unknown_is_not_matched(self, matched, two_ranks):
        for trace in two_ranks:
            nccl(trace, 1010, 1020, **{"Process Group Name": "5", "Group size": 2})
        assert not matched(*two_ranks, world=4)[0]["matched"].any()
        assert matched(*two_ranks, world=2)[0]["matched"].all()

    def test_messages_that_name_both_sides_are_matched_by_order(self, matched, two_ranks):
        for place in (1010, 1030):
            nccl(two_ranks[0], place, place + 8, "SendRecv", **{"Collective name": "send", "Dst Rank": 1}, **GROUP)
            nccl(two_ranks[1], place + 5, place + 9, "SendRecv", **{"Collective name": "recv", "Src Rank": 0}, **GROUP)
        rows, _ = matched(*two_ranks)
        assert rows["collective"].tolist() == [0, 0, 1, 1]
        assert rows["wait_ns"].tolist() == [5_000, 0, 5_000, 0]
        assert (rows["source"].tolist(), rows["destination"].tolist()) == ([0] * 4, [1] * 4)

    def test_messages_that_name_one_side_or_another_rank_are_not_matched(self, matched, two_ranks):
        nccl(two_ranks[0], 1010, 1020, "SendRecv", **{"Collective name": "send", "Dst Rank": 1}, **GROUP)
        nccl(two_ranks[1], 1010, 1020, "SendRecv", **{"Collective name": "recv"}, **GROUP)
        nccl(two_ranks[1], 1030, 1040, "SendRecv", **{"Collective name": "recv", "Src Rank": 2}, **GROUP)
        rows, notes = matched(*two_ranks)
        assert not rows["matched"].any()
        assert any("3 are messages between two ranks that do not name each other" in note for note in notes)

    def test_messages_do_not_shift_the_order(self, matched, two_ranks):
        two_ranks[0].gloo("send", 1005, 1008, thread=100)
        two_ranks[0].gloo("all_reduce", 1010, 1060)
        two_ranks[1].gloo("all_reduce", 1040, 1065)
        rows, _ = matched(*two_ranks)
        assert rows["kind"].tolist() == ["send_recv", "all_reduce", "all_reduce"]
        assert rows["matched"].tolist() == [False, True, True]

    def test_numbers_that_are_not_known_are_missing(self, matched, two_ranks):
        two_ranks[0].gloo("barrier", 1010, 1060)
        rows, _ = matched(*two_ranks)
        assert are_missing(rows, "group_size", "sequence", "bytes")

    def test_a_job_of_a_million_ranks_of_which_two_have_traces(self, matched, two_ranks):
        for trace in two_ranks:
            trace.gloo("barrier", 1010, 1060)
        rows, notes = matched(*two_ranks, world=1_000_000)
        assert not rows["matched"].any()
        assert any("999998 of 1000000 ranks have no trace" in note for note in notes)

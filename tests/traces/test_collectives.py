"""Matching across ranks: waiting, transfer and stragglers on traces small enough to work out by hand."""

import pandas as pd
import pytest

from anatomy.traces.communication import payload_bytes
from anatomy.traces.discovery import read_job
from anatomy.traces.parsing import analyse


@pytest.fixture
def analysed(tmp_path):
    """Write traces by rank, read them, and return tables and facts."""

    def run(*traces):
        for rank, trace in enumerate(traces):
            trace.write(tmp_path / "traces", f"rank{rank}.json")
        return analyse(read_job(tmp_path / "traces", None))

    return run


@pytest.fixture
def two_ranks(new_trace):
    """Two ranks with a step of 100 us."""
    traces = [new_trace(rank, 2) for rank in range(2)]
    for trace in traces:
        trace.step(1, 1000, 1100)
    return traces


def test_waiting_lasts_until_the_last_arrival(analysed, two_ranks):
    two_ranks[0].gloo("all_reduce", 1010, 1060)
    two_ranks[1].gloo("all_reduce", 1040, 1065)
    tables, facts = analysed(*two_ranks)
    rows = tables["collectives"].set_index("rank")
    assert rows["wait_ns"].tolist() == [30_000, 0]  # 1040 - 1010; the last to arrive does not wait
    assert rows["transfer_ns"].tolist() == [20_000, 25_000]  # 1060 - 1040, 1065 - 1040
    assert rows["straggler"].tolist() == [1, 1]
    assert rows["collective"].tolist() == [0, 0]
    steps = tables["steps"].set_index("rank")
    assert steps["comm_exposed_wait_ns"].tolist() == [30_000, 0]
    assert steps["comm_exposed_transfer_ns"].tolist() == [20_000, 25_000]
    assert facts["unmatched_share"] == 0


def test_only_the_exposed_part_of_waiting_is_exposed_waiting(analysed, two_ranks):
    # Rank 0 computes from 1020 to 1035 while its all-reduce waits from 1010 to 1040.
    two_ranks[0].gloo("all_reduce", 1010, 1060)
    two_ranks[0].op("aten::mm", 1020, 1035)
    two_ranks[1].gloo("all_reduce", 1040, 1065)
    step = analysed(*two_ranks)[0]["steps"].iloc[0]
    assert step["comm_exposed_wait_ns"] == 15_000  # 30 - 15
    assert step["comm_overlapped_ns"] == 15_000
    assert step["compute_ns"] == 15_000


def test_collectives_are_matched_in_order_within_a_step(analysed, two_ranks):
    for trace in two_ranks:
        trace.step(2, 1100, 1200)
    two_ranks[0].gloo("all_to_all", 1010, 1030)
    two_ranks[0].gloo("all_reduce", 1040, 1050)
    two_ranks[1].gloo("all_to_all", 1020, 1031)
    two_ranks[1].gloo("all_reduce", 1045, 1051)
    two_ranks[0].gloo("all_reduce", 1110, 1120)  # step 2: missing on rank 1, which spoils step 2 only
    rows = analysed(*two_ranks)[0]["collectives"]
    assert rows["kind"].tolist() == ["all_to_all", "all_to_all", "all_reduce", "all_reduce", "all_reduce"]
    assert rows["matched"].tolist() == [True, True, True, True, False]
    assert rows["wait_ns"].tolist()[:4] == [10_000, 0, 5_000, 0]
    assert rows["wait_ns"].isna().tolist() == [False] * 4 + [True]


def test_different_kinds_in_one_place_are_not_matched(analysed, two_ranks):
    two_ranks[0].gloo("all_to_all", 1010, 1030)
    two_ranks[1].gloo("all_reduce", 1010, 1030)
    tables, facts = analysed(*two_ranks)
    assert not tables["collectives"]["matched"].any()
    assert tables["collectives"]["collective"].nunique() == 2
    assert tables["steps"]["comm_exposed_ns"].tolist() == [20_000, 20_000]
    assert tables["steps"]["comm_exposed_wait_ns"].isna().all()
    assert any("2 of 2 pieces of communication are not matched" in note for note in facts["notes"])


def test_a_missing_rank_leaves_waiting_unknown(analysed, two_ranks):
    two_ranks[0].gloo("all_reduce", 1010, 1060)
    tables, facts = analysed(two_ranks[0])
    assert facts["missing_ranks"] == [1]
    assert tables["steps"]["comm_exposed_ns"].tolist() == [50_000]
    assert tables["steps"][["comm_exposed_wait_ns", "comm_exposed_transfer_ns"]].isna().all(axis=None)
    assert tables["collectives"][["wait_ns", "transfer_ns", "straggler"]].isna().all(axis=None)


def test_messages_between_two_ranks_do_not_shift_the_order(analysed, two_ranks):
    two_ranks[0].gloo("send", 1005, 1008, thread=100)
    two_ranks[0].gloo("all_reduce", 1010, 1060)
    two_ranks[1].gloo("all_reduce", 1040, 1065)
    rows = analysed(*two_ranks)[0]["collectives"]
    assert rows["kind"].tolist() == ["send_recv", "all_reduce", "all_reduce"]
    assert rows["matched"].tolist() == [False, True, True]


def nccl(trace, start, end, **args):
    trace.kernel(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", start, end, stream=20, launch=start - 5, **args
    )


def test_sequence_numbers_go_before_order_and_groups_are_matched_apart(analysed, two_ranks):
    group = {"Process Group Name": "3", "Process Group Ranks": "[0, 1]", "Group size": 2}
    nccl(two_ranks[0], 1010, 1020, Seq=7, **group)
    nccl(two_ranks[0], 1030, 1040, Seq=8, **group)
    nccl(two_ranks[1], 1032, 1041, Seq=8, **group)  # number 7 fell out of rank 1's trace
    nccl(two_ranks[0], 1050, 1060, **{"Process Group Name": "5", "Process Group Ranks": "[0]", "Group size": 1})
    rows = analysed(*two_ranks)[0]["collectives"]
    assert rows["sequence"].fillna(-1).tolist() == [7, 8, 8, -1]
    assert rows["matched"].tolist() == [False, True, True, True]
    assert rows["wait_ns"].fillna(-1).tolist() == [-1, 2_000, 0, 0]
    assert rows["group"].tolist() == ["3", "3", "3", "5"]
    assert rows["group_size"].tolist() == [2, 2, 2, 1]


def test_a_kernel_belongs_to_the_step_that_launched_it(analysed, two_ranks):
    for trace in two_ranks:
        trace.step(2, 1100, 1200)
    nccl(two_ranks[0], 1098, 1110)
    nccl(two_ranks[1], 1103, 1111)  # launched at 1098, in step 1
    rows = analysed(*two_ranks)[0]["collectives"]
    assert rows["step"].tolist() == [1, 1]
    assert rows["matched"].all()


def test_clocks_that_can_not_be_right_are_noted(analysed, two_ranks):
    for trace in two_ranks:
        trace.step(2, 1100, 9000)
    two_ranks[0].gloo("all_reduce", 1110, 1120)
    two_ranks[1].gloo("all_reduce", 5000, 5010)
    notes = analysed(*two_ranks)[1]["notes"]
    assert any("1 of 1 matched collectives end on one rank before another arrives" in note for note in notes)


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
def test_bytes_are_those_of_the_larger_buffer(args, kind, expected):
    assert payload_bytes(args, kind) == expected


def test_the_launching_annotation_names_the_collective(analysed, two_ranks):
    for trace in two_ranks:
        trace.event("user_annotation", "nccl:all_to_all", 1003, 1008, **{"Input Dims": [[6]], "Input type": ["float"]})
        trace.kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", 1010, 1020, stream=20, launch=1005)
    rows = analysed(*two_ranks)[0]["collectives"]
    assert rows["kind"].tolist() == ["all_to_all", "all_to_all"]
    assert rows["bytes"].tolist() == [24, 24]
    assert pd.isna(rows["sequence"]).all()

"""Traces of real jobs; what is expected is written as it follows from events in the JSON, in microseconds."""

import gzip
import json
import shutil

import pandas as pd
import pytest

from anatomy.traces.parsing import parse_traces

pytestmark = pytest.mark.shared_data


def parsed(folder, out):
    """Tables by name, and the manifest."""
    manifest = parse_traces(folder, out)
    return {table: pd.read_parquet(out / f"{table}.parquet") for table in manifest["tables"]}, manifest


@pytest.fixture(scope="module")
def dlrm(shared_data, tmp_path_factory):
    """Eight ranks on one host of V100s, step 10."""
    return parsed(shared_data / "traces" / "dlrm-8rank", tmp_path_factory.mktemp("dlrm"))


@pytest.fixture(scope="module")
def nccl_data(shared_data, tmp_path_factory):
    """Rank 0 of two on A100s, steps 4 to 6; time stamps carry nanoseconds."""
    folder = tmp_path_factory.mktemp("nccl")
    shutil.copy(shared_data / "traces" / "hta" / "nccl_data.json.gz", folder)
    return parsed(folder, tmp_path_factory.mktemp("nccl-tables"))


@pytest.fixture(scope="module")
def sampled(shared_data, tmp_path_factory):
    """Ranks 0 and 1 of 128, steps 551 and 552, of which only a sample of the events is kept."""
    folder = tmp_path_factory.mktemp("sampled")
    for rank in range(2):
        shutil.copy(shared_data / "traces" / "hta" / f"sampled_rank-{rank}.json.gz", folder)
    return parsed(folder, tmp_path_factory.mktemp("sampled-tables"))


def collective(tables, rank, place):
    """The place-th piece of communication of a rank."""
    rows = tables["collectives"]
    return rows[rows["rank"] == rank].sort_values("start_ns").iloc[place]


def step(tables, rank, number):
    rows = tables["steps"]
    return rows[(rows["rank"] == rank) & (rows["step"] == number)].iloc[0]


def busy_us(path, window_us, chosen):
    """Time within a window covered by chosen events of a trace, counted without the code under test."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    reached, total = window_us[0], 0.0
    spans = sorted(
        (event["ts"], event["ts"] + event["dur"]) for event in events if event["ph"] == "X" and chosen(event)
    )
    for start, end in spans:
        total += max(0.0, min(end, window_us[1]) - max(start, reached))
        reached = max(reached, end)
    return total


class TestDlrm:
    """ncclKernel_SendRecv are all-to-alls: each is launched within an annotation nccl:all_to_all."""

    def test_each_rank_has_five_all_to_alls_and_three_all_reduces(self, dlrm):
        counts = dlrm[0]["collectives"].groupby(["rank", "kind"]).size()
        assert counts.to_dict() == {
            (rank, kind): number for rank in range(8) for kind, number in (("all_to_all", 5), ("all_reduce", 3))
        }

    def test_kernels_run_on_three_streams_and_transfers_on_a_fourth(self, dlrm):
        streams = dlrm[0]["intervals"]["stream"].unique()
        # 'stream' of kernels: 7, 24 and 84; of gpu_memcpy 'Memcpy HtoD': also 22
        assert sorted(set(streams) - {"rank"}) == [f"gpu stream {number}" for number in (22, 24, 7, 84)]

    def test_wall_time_is_that_of_the_annotation(self, dlrm):
        # ProfilerStep#10: dur 14455 on rank 0, 19901 on rank 1, 12509 on rank 7
        assert [step(dlrm[0], rank, 10)["wall_ns"] for rank in (0, 1, 7)] == [14_455_000, 19_901_000, 12_509_000]

    def test_the_first_all_to_all_is_waiting_on_all_but_the_last_rank(self, dlrm):
        # ts of the first ncclKernel_SendRecv, less 1694128201400000: rank 7 comes last, at 31930
        arrivals = [29795, 24306, 31422, 25808, 27058, 27261, 31425, 31930]
        durations = [2146, 7635, 518, 6132, 4882, 4679, 514, 10]
        for rank, (arrival, duration) in enumerate(zip(arrivals, durations, strict=True)):
            first = collective(dlrm[0], rank, 0)
            assert first["wait_ns"] == (31930 - arrival) * 1000
            assert first["transfer_ns"] == (duration - (31930 - arrival)) * 1000
            assert first["transfer_ns"] <= 11_000
            assert first["straggler"] == 7
            assert first["matched"]

    def test_the_longest_wait(self, dlrm):
        # 7635 us = 'dur' of ncclKernel_SendRecv on rank 1, of which 31930 - 24306 = 7624 before rank 7 arrives
        assert collective(dlrm[0], 1, 0)[["wait_ns", "transfer_ns"]].tolist() == [7_624_000, 11_000]

    def test_bytes_are_those_of_the_launching_annotation(self, dlrm):
        # nccl:all_to_all 'Input Dims' [[6144]] float, [[24]] long int; nccl:all_reduce [[394241]] float
        assert [collective(dlrm[0], 0, place)["bytes"] for place in (0, 1, 4)] == [6144 * 4, 24 * 8, 394241 * 4]

    def test_rank_5_is_last_to_the_second_all_reduce(self, dlrm):
        # ts of the AllReduce of [[112]]: rank 5 at ...438887, rank 0 at ...438305, 'dur' 601 on rank 0
        second = collective(dlrm[0], 0, 6)
        assert second[["bytes", "straggler"]].tolist() == [448, 5]
        assert second[["wait_ns", "transfer_ns"]].tolist() == [(38887 - 38305) * 1000, (601 - 582) * 1000]

    def test_exposed_and_overlapped_are_all_communication(self, dlrm):
        # 'dur' of rank 0's NCCL kernels, which are on one stream and do not overlap
        total = 2146 + 1032 + 176 + 131 + 246 + 514 + 601 + 952
        found = step(dlrm[0], 0, 10)
        assert found["comm_exposed_ns"] + found["comm_overlapped_ns"] == total * 1000

    def test_the_waiting_is_not_transfer_in_the_step_either(self, dlrm):
        # On rank 1 nothing is computed during the first all-to-all, whose 7624 us of waiting are therefore exposed.
        found = step(dlrm[0], 1, 10)
        assert found["comm_exposed_wait_ns"] >= 7_624_000
        waits = [collective(dlrm[0], 1, place)["wait_ns"] for place in range(8)]
        assert found["comm_exposed_wait_ns"] + found["comm_overlapped_wait_ns"] == sum(waits)

    def test_one_host_has_one_clock(self, dlrm):
        clocks = dlrm[0]["clocks"]
        assert clocks["offset_ns"].tolist() == [0] * 8
        assert clocks["method"].tolist() == ["reference"] + ["collectives"] * 7

    def test_the_critical_path_goes_through_the_last_rank_to_arrive(self, dlrm):
        path = dlrm[0]["critical_path"]
        assert (path["start_ns"].to_numpy()[1:] == path["end_ns"].to_numpy()[:-1]).all()
        steps = dlrm[0]["steps"]
        starts, ends = steps["start_ns"].min(), (steps["start_ns"] + steps["wall_ns"]).max()
        assert path["length_ns"].sum() == ends - path["start_ns"].iloc[0] <= ends - starts
        # All wait for rank 7 in the first all-to-all, so nothing of another rank before it is on the path.
        first = dlrm[0]["collectives"].query("collective == 0")["arrival_ns"].max()
        assert set(path.loc[path["end_ns"] <= first, "rank"]) == {7}

    def test_compute_is_the_union_of_kernels(self, dlrm, shared_data):
        path = shared_data / "traces" / "dlrm-8rank" / dlrm[1]["files"]["0"]
        start = 1694128201426674  # ts of ProfilerStep#10

        def computes(event):
            category = event.get("cat")
            is_kernel = category == "kernel" and "nccl" not in event["name"]
            return is_kernel or category == "gpu_memset" or "DtoD" in event["name"]

        expected = busy_us(path, (start, start + 14455), computes)
        assert step(dlrm[0], 0, 10)["compute_ns"] == expected * 1000

    def test_facts(self, dlrm):
        manifest = dlrm[1]
        assert manifest["trace_kind"] == "cuda-nccl"
        assert manifest["ranks"] == list(range(8))
        assert manifest["missing_ranks"] == []
        assert manifest["unmatched_share"] == 0
        assert manifest["unclassified_share"] < 0.03
        assert any("7 of 7 clocks can't be told from the reference's" in note for note in manifest["notes"])
        assert not any("end on one rank before another arrives" in note for note in manifest["notes"])


class TestNcclData:
    def test_times_are_exact_to_the_nanosecond(self, nccl_data):
        # ProfilerStep#4: ts 4458676416788.066, dur 222442.191; baseTimeNanoseconds 1711964646000000000
        found = step(nccl_data[0], 0, 4)
        assert found["start_ns"] == 1711964646000000000 + 4458676416788066
        assert found["wall_ns"] == 222_442_191

    def test_21_collectives_with_size_and_group(self, nccl_data):
        rows = nccl_data[0]["collectives"]
        assert rows["kind"].value_counts().to_dict() == {"all_reduce": 15, "broadcast": 6}
        assert set(rows["group"]) == {"0"}  # 'Process Group Name'
        assert set(rows["group_size"]) == {2}  # 'Group size'
        # 'In msg nelems' of step 4 in order of time; 'dtype' Float, of the second broadcast Long
        sizes = [53120 * 4, 53 * 8, 2049000 * 4, 7875584 * 4, 6563840 * 4, 6637568 * 4, 2431040 * 4]
        for number in (4, 5, 6):
            assert rows[rows["step"] == number].sort_values("start_ns")["bytes"].tolist() == sizes

    def test_a_broadcast_lasts_as_long_as_its_kernel(self, nccl_data):
        # ncclKernel_Broadcast_RING_LL_Sum_int8_t: ts 4458676423385.774, dur 30.975
        first = collective(nccl_data[0], 0, 0)
        assert first["start_ns"] == 1711964646000000000 + 4458676423385774
        assert first["end_ns"] - first["start_ns"] == 30_975

    def test_bandwidths_of_all_21_collectives(self, nccl_data, shared_data):
        # bytes / 'dur' of each kernel: of two ranks, an all-reduce sends 2 (2 - 1) / 2 = 1 byte over the bus for each
        # of the buffer, a broadcast 1. In step 4, the all-reduce of 7875584 floats takes 2424.415 us: 12.99 GB/s.
        with gzip.open(shared_data / "traces" / "hta" / "nccl_data.json.gz") as file:
            events = json.load(file)["traceEvents"]
        kernels = [event for event in events if event.get("cat") == "kernel" and "nccl" in event["name"]]
        kernels.sort(key=lambda event: event["ts"])
        size = {"Float": 4, "Long": 8}
        expected = [
            event["args"]["In msg nelems"] * size[event["args"]["dtype"]] / (event["dur"] * 1e-6) for event in kernels
        ]
        rows = nccl_data[0]["collectives"].sort_values("start_ns")
        assert len(rows) == 21
        assert rows["algorithm_bandwidth"].tolist() == pytest.approx(expected, rel=1e-6)
        assert rows["bus_bandwidth"].tolist() == pytest.approx(expected, rel=1e-6)
        assert set(rows["bandwidth_of"]) == {"duration"}
        assert rows["algorithm_bandwidth"].iloc[3] == pytest.approx(7875584 * 4 / 2424.415e-6)

    def test_communication_of_step_4(self, nccl_data):
        # 'dur' of its seven NCCL kernels, in ns; one stream, no overlap
        total = 30975 + 7775 + 3306963 + 2424415 + 2368513 + 2160803 + 1689577
        found = step(nccl_data[0], 0, 4)
        assert found["comm_exposed_ns"] + found["comm_overlapped_ns"] == total

    def test_compute_of_step_4(self, nccl_data, shared_data):
        path = shared_data / "traces" / "hta" / "nccl_data.json.gz"

        def computes(event):
            category = event.get("cat")
            is_kernel = category == "kernel" and "nccl" not in event["name"]
            return is_kernel or category == "gpu_memset" or "DtoD" in event["name"]

        expected = busy_us(path, (4458676416788.066, 4458676416788.066 + 222442.191), computes)
        # The count is in float64, which is good to 0.001 us for each of 1300 kernels.
        assert step(nccl_data[0], 0, 4)["compute_ns"] == pytest.approx(expected * 1000, abs=1300)

    def test_the_other_rank_is_missing_and_so_is_waiting(self, nccl_data):
        tables, manifest = nccl_data
        assert manifest["ranks"] == [0]
        assert manifest["missing_ranks"] == [1]  # distributedInfo: world_size 2
        assert manifest["num_steps"] == 3
        assert tables["collectives"][["wait_ns", "transfer_ns", "straggler"]].isna().all(axis=None)
        assert tables["steps"][["comm_exposed_wait_ns", "comm_exposed_transfer_ns"]].isna().all(axis=None)
        assert tables["steps"]["comm_exposed_ns"].notna().all()


class TestSampled:
    def test_absent_ranks_are_declared(self, sampled):
        manifest = sampled[1]
        assert manifest["world_size"] == 128
        assert manifest["ranks"] == [0, 1]
        assert manifest["missing_ranks"] == list(range(2, 128))
        assert manifest["unmatched_share"] == 1
        assert any("126 of 128 ranks have no trace" in note for note in manifest["notes"])

    def test_two_steps_of_each_rank(self, sampled):
        # 'dur' of ProfilerStep#551 and #552 on rank 0, then on rank 1
        assert sampled[0]["steps"]["wall_ns"].tolist() == [607_312_000, 622_928_000, 607_904_000, 630_639_000]

    def test_ten_nccl_kernels_a_rank(self, sampled):
        assert sampled[0]["collectives"].groupby("rank").size().to_dict() == {0: 10, 1: 10}

    def test_the_first_kernel_of_rank_0(self, sampled):
        # ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t: ts 1682725898094377, dur 30669.0
        first = collective(sampled[0], 0, 0)
        assert first["start_ns"] == 1682725898094377000
        assert first["end_ns"] - first["start_ns"] == 30_669_000

    def test_communication_on_two_streams(self, sampled):
        # 'dur' of rank 0's kernels in step 551, of which the last is on stream 203 and after the others
        total = 30669 + 62783 + 11727 + 47652 + 42496
        found = step(sampled[0], 0, 551)
        assert found["comm_exposed_ns"] + found["comm_overlapped_ns"] == total * 1000
        # and in step 552 of rank 0: 67827, 21124, 12119, 36158, 63644
        found = step(sampled[0], 0, 552)
        assert found["comm_exposed_ns"] + found["comm_overlapped_ns"] == (67827 + 21124 + 12119 + 36158 + 63644) * 1000

    def test_bytes_of_the_all_reduce_of_gradients(self, sampled):
        # nccl:all_reduce 'Input Dims' [[19618307]] float, on both ranks
        rows = sampled[0]["collectives"]
        assert rows[rows["bytes"] == 19618307 * 4].groupby("rank").size().to_dict() == {0: 1, 1: 2}

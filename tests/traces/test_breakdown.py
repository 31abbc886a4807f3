"""Where the time of a step goes, on traces small enough to work out by hand: the tables on disk."""

import json

import pandas as pd
import pytest

from anatomy.traces.parsing import parse_traces


@pytest.fixture
def analysed(tmp_path):
    """Write one rank's trace, parse it, and return the tables."""

    def run(trace):
        trace.write(tmp_path / "traces", "rank0.json")
        return tables_of(tmp_path / "traces", tmp_path / "tables")

    return run


def tables_of(folder, out):
    manifest = parse_traces(folder, out)
    return {table: pd.read_parquet(out / f"{table}.parquet") for table in manifest["tables"]}


def parts(steps, row=0):
    """The parts of a step in microseconds, without those that are 0 or missing."""
    values = steps.iloc[row].drop(["rank", "step", "annotated", "trace_kind", "start_ns"]).dropna()
    return {name.removesuffix("_ns"): value / 1000 for name, value in values.items() if value != 0}


def phase_parts(phases):
    names = ("total_ns", "compute_ns", "comm_ns", "preparation_ns", "copy_ns", "idle_ns", "other_ns")
    return {
        row["phase"]: {
            name.removesuffix("_ns"): row[name] / 1000 for name in names if not pd.isna(row[name]) and row[name] != 0
        }
        for row in phases.to_dict("records")
    }


def test_a_mini_batch_step_on_a_cpu(analysed, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1200)
    trace.phase("sample", 1010, 1030)
    trace.phase("fetch", 1030, 1060)
    trace.op("aten::index_select", 1032, 1038)
    trace.op("c10d::alltoall_base_", 1039, 1042)
    trace.gloo("all_to_all", 1040, 1055)
    trace.phase("aggregate", 1060, 1090)
    trace.op("GSpMM", 1061, 1085)
    trace.phase("backward", 1090, 1150)
    trace.phase("sync", 1150, 1180)
    trace.op("aten::cat", 1150, 1154)
    trace.op("c10d::allreduce_", 1155, 1157)
    trace.gloo("all_reduce", 1156, 1176)
    trace.op("aten::mul_", 1177, 1180)
    trace.op("aten::zeros", 1190, 1195)
    tables = analysed(trace)
    assert parts(tables["steps"]) == {
        "wall": 200,
        "compute": 30 + 60 + (4 + 3) + 5,  # aggregate, backward, operators in sync, an operator outside of phases
        "comm_exposed": (1055 - 1039) + (1176 - 1155),  # each from the call to the end of Gloo's work
        "comm_exposed_transfer": 16 + 21,  # alone: nobody to wait for
        "preparation": 20 + (30 - 16),
        "prep_sample": 20,
        "prep_fetch": 30 - 16,
        "other": 10 + (1 + 1) + (10 + 5),  # before sampling; in sync outside of operators; after sync
    }
    assert phase_parts(tables["phases"]) == {
        "sample": {"total": 20, "preparation": 20},
        "fetch": {"total": 30, "comm": 16, "preparation": 14},
        "aggregate": {"total": 30, "compute": 30},
        "backward": {"total": 60, "compute": 60},
        "sync": {"total": 30, "compute": 7, "comm": 21, "other": 2},
        "other": {"total": 30, "compute": 5, "other": 25},
    }


def test_of_nested_phases_the_innermost_counts(analysed, new_trace):
    # The halo exchange of a full-graph backward pass blocks within autograd's operators, which are not computing then.
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.phase("backward", 1000, 1100)
    trace.op("autograd::engine::evaluate_function: ExchangeBackward", 1010, 1060)
    trace.op("ExchangeBackward", 1011, 1059)
    trace.phase("exchange", 1020, 1050)
    trace.op("aten::index_select", 1021, 1025)
    trace.op("c10d::alltoall_base_", 1026, 1027)
    trace.gloo("all_to_all", 1026, 1046)
    trace.op("aten::index_add_", 1047, 1050)
    tables = analysed(trace)
    assert phase_parts(tables["phases"]) == {
        "backward": {"total": 70, "compute": 70},
        "exchange": {"total": 30, "compute": 4 + 3, "comm": 20, "other": 1 + 1 + 1},
    }
    assert parts(tables["steps"])["compute"] == 77
    assert tables["phases"].set_index("phase")["calls"].to_dict() == {"backward": 1, "exchange": 1}


def test_communication_under_an_operator_is_overlapped(analysed, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.phase("backward", 1000, 1100)
    trace.op("c10d::allreduce_", 1010, 1012)
    trace.gloo("all_reduce", 1011, 1071)
    trace.op("aten::mm", 1020, 1060)
    found = parts(analysed(trace)["steps"])
    assert found["comm_overlapped"] == 40
    assert found["comm_exposed"] == (1071 - 1010) - 40
    assert found["compute"] == 100 - 21


def test_a_prefetching_thread_does_not_say_what_the_step_does(analysed, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.phase("combine", 1000, 1100)
    trace.phase("sample", 1010, 1090, thread=300)
    assert parts(analysed(trace)["steps"]) == {"wall": 100, "compute": 100}


def test_a_phase_on_an_autograd_thread_counts_within_backward(analysed, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.phase("backward", 1010, 1090)
    trace.op("autograd::engine::evaluate_function: MmBackward0", 1020, 1080, thread=300)
    trace.phase("exchange", 1030, 1050, thread=300)
    totals = analysed(trace)["phases"].set_index("phase")["total_ns"]
    assert totals.to_dict() == {"backward": 60_000, "exchange": 20_000, "other": 20_000}


def test_without_communication_it_is_missing_rather_than_zero(analysed, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.op("aten::mm", 1000, 1050)
    tables = analysed(trace)
    step = tables["steps"].iloc[0]
    assert tables["steps"].filter(like="comm_").isna().all(axis=None)
    assert tables["phases"].filter(like="comm_").isna().all(axis=None)
    assert step["compute_ns"] + step["other_ns"] == step["wall_ns"] == 100_000


def test_a_step_without_communication_among_others_has_none(analysed, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.step(2, 1100, 1200)
    trace.gloo("all_reduce", 1010, 1020)
    assert analysed(trace)["steps"]["comm_exposed_ns"].tolist() == [10_000, 0]


def test_a_step_on_a_gpu(analysed, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1200)
    trace.kernel("ampere_sgemm_128x64_tn", 1010, 1050, stream=7)
    trace.kernel("ampere_sgemm_128x64_tn", 1030, 1060, stream=8)  # overlaps by 20
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", 1055, 1100, stream=20)
    trace.kernel("Memcpy HtoD (Pinned -> Device)", 1090, 1110, stream=9)
    trace.kernel("Memcpy DtoD (Device -> Device)", 1120, 1130, stream=7)
    assert parts(analysed(trace)["steps"]) == {
        "wall": 200,
        "compute": (1060 - 1010) + 10,  # kernels united; a copy within the device is its work
        "comm_exposed": 1100 - 1060,
        "comm_exposed_transfer": 40,
        "comm_overlapped": 1060 - 1055,
        "comm_overlapped_transfer": 5,
        "copy": 1110 - 1100,
        "idle": 10 + 10 + 70,  # before the first kernel, before the last copy, after it
    }


def test_on_a_gpu_the_launching_phase_decides(analysed, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1200)
    trace.phase("sample", 1000, 1040)
    trace.phase("gather", 1040, 1050)
    trace.phase("aggregate", 1050, 1060)
    trace.phase("evaluate", 1060, 1070)
    trace.kernel("indexSelectLargeIndex", 1060, 1080, launch=1045)  # gather
    trace.kernel("SpMMCsr", 1080, 1120, launch=1055)  # aggregate
    trace.kernel("SpMMCsr", 1120, 1125, launch=1065)  # evaluate
    found = parts(analysed(trace)["steps"])
    assert found == {
        "wall": 200,
        "compute": 40,
        "preparation": 40 + (10 + 20),  # the GPU waits for sampling and for gather, then gathers
        "prep_sample": 40,
        "prep_gather": 30,
        "idle": (1060 - 1050) + (1200 - 1125),
        "other": 5,
    }


def test_steps_on_cpu_and_gpu_are_counted_once(analysed, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.step(2, 1100, 1200)
    trace.event("gpu_user_annotation", "ProfilerStep#1", 1005, 1120, 7)
    trace.event("gpu_user_annotation", "ProfilerStep#2", 1120, 1230, 7)
    trace.kernel("gemm", 1010, 1020)
    steps = analysed(trace)["steps"]
    assert steps["step"].tolist() == [1, 2]
    assert steps["wall_ns"].tolist() == [100_000, 100_000]


def test_steps_only_on_the_gpu_are_read_there(analysed, new_trace):
    trace = new_trace()
    trace.event("gpu_user_annotation", "ProfilerStep#5", 1000, 1100, 7)
    trace.kernel("gemm", 1010, 1020)
    assert analysed(trace)["steps"][["step", "wall_ns", "compute_ns"]].to_numpy().tolist() == [[5, 100_000, 10_000]]


def test_a_step_that_two_threads_annotate_is_one(analysed, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.event("user_annotation", "ProfilerStep#1", 1010, 1050, 300)
    trace.op("aten::mm", 1010, 1020)
    assert analysed(trace)["steps"]["wall_ns"].tolist() == [100_000]


def test_a_step_with_nothing_but_its_annotation(analysed, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    assert parts(analysed(trace)["steps"]) == {"wall": 100, "other": 100}


def test_a_rank_without_work_on_a_gpu_among_others_is_named(tmp_path, new_trace):
    for rank in range(2):
        trace = new_trace(rank, 2)
        trace.step(1, 1000, 1100)
        trace.op("aten::mm", 1010, 1050)
        if rank == 0:
            trace.kernel("gemm", 1020, 1060, launch=1015)
        trace.write(tmp_path / "traces", f"rank{rank}.json")
    steps = tables_of(tmp_path / "traces", tmp_path / "tables")["steps"]
    assert steps["compute_ns"].tolist() == [40_000, 40_000]
    assert steps["idle_ns"].tolist() == [60_000, 0]
    notes = json.loads((tmp_path / "tables" / "traces.json").read_text())["notes"]
    assert any("rank 1: no work on a GPU" in note for note in notes)

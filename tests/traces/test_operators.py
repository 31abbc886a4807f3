"""Self times of operators."""

import pytest

from anatomy.traces.discovery import read_job
from anatomy.traces.parsing import analyse


@pytest.fixture
def operators_of(tmp_path):
    """Write one rank's trace and return its operators by name."""

    def run(trace):
        trace.write(tmp_path, "rank0.json")
        return analyse(read_job(tmp_path, None))[0]["operators"].set_index("name")

    return run


def test_self_time_leaves_out_what_is_called(operators_of, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.op("aten::matmul", 1010, 1050)
    trace.op("aten::mm", 1015, 1045)
    trace.op("aten::empty", 1020, 1022)
    trace.op("aten::mm", 1060, 1070)
    trace.op("aten::mm", 1150, 1170)  # outside of the step
    found = operators_of(trace)
    assert found["self_ns"].to_dict() == {
        "aten::empty": 2_000,
        "aten::matmul": 10_000,  # 40 - 30
        "aten::mm": 38_000,  # 30 - 2 + 10
    }
    assert found["calls"].to_dict() == {"aten::empty": 1, "aten::matmul": 1, "aten::mm": 2}
    assert found["category"].to_dict() == {"aten::empty": "copy", "aten::matmul": "dense", "aten::mm": "dense"}


def test_threads_do_not_take_time_from_each_other(operators_of, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.op("aten::mm", 1010, 1050)
    trace.op("aten::relu", 1020, 1030, thread=300)
    assert operators_of(trace)["self_ns"].to_dict() == {"aten::mm": 40_000, "aten::relu": 10_000}


def test_an_operator_that_communicates_does_not_count_the_waiting(operators_of, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.op("Exchange", 1010, 1060)
    trace.op("aten::index_select", 1012, 1018)
    trace.op("c10d::alltoall_base_", 1020, 1022)
    trace.gloo("all_to_all", 1021, 1051)
    found = operators_of(trace)
    assert found["self_ns"].to_dict() == {
        "Exchange": 50_000 - 6_000 - 2_000 - (51_000 - 22_000),
        "aten::index_select": 6_000,
        "c10d::alltoall_base_": 1_000,
        "gloo:all_to_all": 30_000,
    }
    assert found.loc["Exchange", "category"] == "communication"


def test_kernels_count_with_their_duration(operators_of, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.kernel("gemm", 1010, 1050, stream=7)
    trace.kernel("gemm", 1020, 1060, stream=8)
    trace.kernel("mystery", 1020, 1021, stream=8)
    found = operators_of(trace)
    assert found.loc["gemm", ["category", "device", "calls", "self_ns"]].tolist() == ["dense", "cuda", 2, 80_000]
    assert found.loc["mystery", "category"] == "unclassified"

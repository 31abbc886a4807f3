"""Self times of operators."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="session")
def operators_of(examined):
    """Read one rank's trace and return its operators by name."""

    def run(trace, **options):
        return pd.DataFrame(examined(trace, **options).operators).set_index("name")

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


def test_what_starts_within_a_step_belongs_to_it(operators_of, new_trace):
    trace = new_trace()
    trace.step(4, 1000, 1100)
    trace.step(2, 1100, 1200)
    trace.op("aten::mm", 1090, 1110)
    trace.op("aten::mm", 1150, 1250)
    found = operators_of(trace)
    assert found[["step", "calls", "self_ns"]].to_numpy().tolist() == [[4, 1, 20_000], [2, 1, 100_000]]


def test_only_operators_that_communicate_lose_time_to_it(operators_of, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.gloo("all_reduce", 1000, 1090)
    trace.op("aten::mm", 1010, 1050)
    trace.op("LoadBatch", 1010, 1050, thread=300)
    found = operators_of(trace)
    assert found["self_ns"].to_dict() == {"aten::mm": 40_000, "LoadBatch": 40_000, "gloo:all_reduce": 90_000}
    assert found.loc["LoadBatch", "category"] == "unclassified"


def test_operators_that_overlap_without_nesting_share_their_thread(operators_of, new_trace):
    # Threads of which the profiler lost the true number are one in the trace.
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.op("aten::mm", 1010, 1050)
    trace.op("aten::relu", 1040, 1060)
    trace.op("aten::add", 1060, 1060)  # shorter than the clock can tell
    found = operators_of(trace)
    assert found["self_ns"].to_dict() == {"aten::mm": 30_000, "aten::relu": 20_000, "aten::add": 0}
    assert found["calls"].tolist() == [1, 1, 1]


def test_an_operator_and_a_kernel_of_the_same_name_stay_apart(operators_of, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.op("gemm", 1010, 1020)
    trace.kernel("gemm", 1015, 1045)
    assert operators_of(trace)[["device", "self_ns"]].to_numpy().tolist() == [["cpu", 10_000], ["cuda", 30_000]]


def test_rules_of_the_user_come_first(operators_of, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.op("aten::mm", 1010, 1020)
    found = operators_of(trace, operator_rules=(("sparse", "mm"),))
    assert found.loc["aten::mm", "category"] == "sparse"


def test_without_operators_the_table_is_empty(examined, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    operators = examined(trace).operators
    assert set(operators) == {"step", "category", "name", "device", "calls", "self_ns"}
    assert all(len(column) == 0 for column in operators.values())


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20), st.integers(0, 2)), min_size=1, max_size=15)


@settings(max_examples=40)
@given(spans)
def test_self_times_of_a_thread_add_up_to_the_time_within_operators(operators_of, new_trace, spans):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.phase("combine", 1000, 1100)
    for index, (start, length, thread) in enumerate(spans):
        trace.op(f"op {thread} {index}", 1000 + start, 1000 + start + length, thread=300 + thread)
    self_ns = operators_of(trace)["self_ns"]
    for thread in range(3):
        busy = np.zeros(100, dtype=bool)
        for start, length, own in spans:
            if own == thread:
                busy[start : start + length] = True
        assert self_ns[self_ns.index.str.startswith(f"op {thread}")].sum() == 1000 * busy.sum()
    assert (self_ns >= 0).all()

"""Why a GPU computes nothing."""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anatomy.traces.intervals import spans_of, union
from anatomy.traces.rank.activity import Activity
from anatomy.traces.rank.queueing import CAUSES, IDLE_COLUMNS, idle_causes, queueing
from anatomy.traces.reading.events import Kind, assemble

MAIN, ENGINE, PREFETCHING = 100, 300, 400
"""Threads: the one with the steps, one of the autograd engine, and one that copies ahead."""

ALLREDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


class TestIdle:
    """Kernel A ends at 1030 and the next work, B, starts at 1040, in a step from 1000 to 1100; all else is computed."""

    @pytest.fixture
    def causes(self, new_trace, examined):
        """A function from what lies between to time in us by cause."""

        def run(launch, *between):
            trace = new_trace()
            trace.step(1, 1000, 1100)
            trace.kernel("A", 1000, 1030, launch=995)
            if launch is not None:
                trace.kernel("B", 1040, 1100, launch=launch)
            for category, name, start, end, thread in between:
                trace.event(category, name, start, end, thread, **({"stream": 9} if "gpu" in category else {}))
            return spent_us(examined(trace).idle)

        return run

    def test_launched_in_time_the_next_work_waits_in_the_queue(self, causes):
        assert causes(launch=1008) == {"not_computing": 10, "launched": 10}

    def test_until_it_is_launched_the_host_is_the_cause(self, causes):
        assert causes(launch=1036) == {"not_computing": 10, "host_bound": 6, "launched": 4}

    @pytest.mark.parametrize(
        "call", ["cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "hipStreamSynchronize"]
    )
    def test_a_host_that_waited_for_the_gpu_would_have_launched_earlier(self, causes, call):
        # It waited for 1031 - 1001 = 30 us since it launched A, more than the 6 us that it then takes.
        found = causes(1036, ("cuda_runtime", call, 1001, 1031, MAIN))
        assert found == {"not_computing": 10, "synchronisation": 6, "launched": 4}

    def test_but_by_no_more_than_it_waited(self, causes):
        found = causes(1036, ("cuda_runtime", "cudaStreamSynchronize", 1029, 1031, MAIN))
        assert found == {"not_computing": 10, "synchronisation": 2, "host_bound": 4, "launched": 4}

    def test_a_wait_before_the_last_launch_is_made_up_for(self, causes):
        found = causes(1036, ("cuda_runtime", "cudaStreamSynchronize", 950, 990, MAIN))
        assert found == {"not_computing": 10, "host_bound": 6, "launched": 4}

    @pytest.mark.parametrize("call", ["cudaMemcpyAsync", "cudaStreamWaitEvent", "cudaEventRecord", "cudaFreeAsync"])
    def test_calls_that_do_not_wait(self, causes, call):
        found = causes(1036, ("cuda_runtime", call, 1001, 1031, MAIN))
        assert found == {"not_computing": 10, "host_bound": 6, "launched": 4}

    @pytest.mark.parametrize("call", ["cudaMemcpy", "cudaFree", "cuMemcpyDtoH_v2"])
    def test_calls_that_wait_without_saying_so(self, causes, call):
        found = causes(1036, ("cuda_runtime", call, 1001, 1031, MAIN))
        assert found == {"not_computing": 10, "synchronisation": 6, "launched": 4}

    def test_a_copy_that_runs_is_the_cause_and_is_the_next_work_before(self, causes):
        found = causes(1036, ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 1032, 1035, 9))
        # From 1030 to 1032 the copy comes next, of which no launch is known; from 1035 to 1036 it is B.
        assert found == {"not_computing": 10, "copy_bound": 3, "unknown": 2, "host_bound": 1, "launched": 4}

    def test_without_a_known_launch_the_cause_is_unknown(self, new_trace, examined):
        trace = new_trace()
        trace.step(1, 1000, 1100)
        trace.kernel("A", 1000, 1030, launch=995)
        trace.kernel("B", 1040, 1090)
        # and so it is after the last work of the trace
        assert spent_us(examined(trace).idle) == {"not_computing": 20, "unknown": 20}

    def test_communication_that_overlaps_a_copy(self, new_trace, examined):
        trace = new_trace()
        trace.step(1, 1000, 1100)
        trace.kernel("A", 1000, 1030, launch=995)
        trace.kernel(ALLREDUCE, 1020, 1060, stream=9, launch=1010)
        trace.kernel("Memcpy DtoH (Device -> Pinned)", 1050, 1070, stream=10, launch=1011)
        trace.kernel("B", 1070, 1100, launch=1012)
        assert spent_us(examined(trace).idle) == {"not_computing": 40, "communication_bound": 30, "copy_bound": 10}

    def test_a_copy_of_pageable_memory_makes_the_host_wait(self, new_trace, examined):
        trace = new_trace()
        trace.step(1, 1000, 1100)
        trace.kernel("A", 1000, 1030, launch=995)
        trace.event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 1030, 1032, 7, stream=7, correlation=77)
        trace.event("cuda_runtime", "cudaMemcpyAsync", 1001, 1033, MAIN, correlation=77)
        trace.kernel("B", 1040, 1100, launch=1036)
        assert spent_us(examined(trace).idle) == {
            "not_computing": 10,
            "copy_bound": 2,
            "synchronisation": 4,  # 1036 - 1032, which is less than the 32 us of the call
            "launched": 4,
        }

    def test_the_threads_that_train_are_one_host(self, new_trace, examined):
        def trace_with(wait_thread, launch_thread):
            trace = new_trace()
            trace.step(1, 1000, 1100)
            trace.op("autograd::engine::evaluate_function: MmBackward0", 1033, 1038, ENGINE)
            trace.op("aten::copy_", 1000, 1030, PREFETCHING)
            trace.kernel("A", 1000, 1030, launch=995)
            trace.event("cuda_runtime", "cudaStreamSynchronize", 1001, 1031, wait_thread)
            trace.event("kernel", "B", 1040, 1100, 7, stream=7, correlation=77)
            trace.event("cuda_runtime", "cudaLaunchKernel", 1036, 1037, launch_thread, correlation=77)
            return spent_us(examined(trace).idle)

        assert trace_with(MAIN, ENGINE) == {"not_computing": 10, "synchronisation": 6, "launched": 4}
        assert trace_with(PREFETCHING, MAIN) == {"not_computing": 10, "host_bound": 6, "launched": 4}
        assert trace_with(PREFETCHING, PREFETCHING) == {"not_computing": 10, "synchronisation": 6, "launched": 4}

    def test_a_gap_across_steps_is_cut_at_their_border(self, new_trace, examined):
        trace = new_trace()
        trace.step(1, 1000, 1050)
        trace.step(2, 1050, 1100)
        trace.kernel("A", 1000, 1030, launch=995)
        trace.event("cuda_runtime", "cudaDeviceSynchronize", 1016, 1032, MAIN)
        trace.kernel("B", 1070, 1100, launch=1060)
        idle = examined(trace).idle
        assert idle["step"].tolist() == [1, 2]
        assert spent_us(idle, 0) == {"not_computing": 20, "synchronisation": 16, "host_bound": 4}
        assert spent_us(idle, 1) == {"not_computing": 20, "host_bound": 10, "launched": 10}

    def test_before_the_first_work(self, new_trace, examined):
        trace = new_trace()
        trace.step(1, 1000, 1100)
        trace.kernel("A", 1010, 1100, launch=1005)
        assert spent_us(examined(trace).idle) == {"not_computing": 10, "host_bound": 5, "launched": 5}

    def test_a_step_in_which_the_gpu_does_nothing(self, new_trace, examined):
        trace = new_trace()
        trace.step(1, 1000, 1100)
        trace.step(2, 1100, 1200)
        trace.kernel("A", 1010, 1100, launch=1005)
        assert spent_us(examined(trace).idle, 1) == {"not_computing": 100, "unknown": 100}


def spent_us(idle, row=0):
    """Time by cause where there is any, in us."""
    return {
        name.removesuffix("_ns"): values[row] / 1000 for name, values in idle.items() if name != "step" and values[row]
    }


def test_a_rank_without_a_gpu_has_no_idle_gpu(new_trace, examined):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.op("aten::mm", 1010, 1050)
    found = examined(trace).idle
    assert tuple(found) == IDLE_COLUMNS
    assert {(values.dtype, len(values)) for values in found.values()} == {(np.dtype(np.int64), 0)}


def events_of(rows, correlation=None):
    """Events from (kind, name, thread, start, end, stream), in any order."""
    kind, name, thread, start, end, stream = zip(*rows, strict=True)
    names = tuple(dict.fromkeys(name))
    columns = {
        "kind": np.array(kind, dtype=np.uint8),
        "name": np.array([names.index(value) for value in name], dtype=np.int32),
        "thread": np.array(thread, dtype=np.int32),
        "start_ns": np.array(start, dtype=np.int64),
        "end_ns": np.array(end, dtype=np.int64),
        "stream": np.array(stream, dtype=np.int32),
    }
    correlation = np.zeros(len(rows), dtype=np.int64) if correlation is None else np.array(correlation, dtype=np.int64)
    return assemble(columns, correlation, names, ("main", "other"), {})[0]


def random_events(draws, calls):
    """Work on two streams with and without launches, and calls of two threads of which every other one waits."""
    rows, correlation = [], []
    for number, (kind, start, length, delay, thread) in enumerate(draws, 1):
        name = {Kind.MEMCPY: "Memcpy HtoD (Pageable -> Device)", Kind.MEMSET: "Memset (Device)"}.get(
            kind, ALLREDUCE if start % 3 == 0 else "gemm"
        )
        rows.append((kind, name, 0, start, start + length, 7 + number % 2))
        rows.append((Kind.LAUNCH, "cudaLaunchKernel", thread, start - delay, start - delay + 5, -1))
        correlation += [number, number if delay % 4 else 0]
    for start, length, thread in calls:
        rows.append(
            (Kind.LAUNCH, ("cudaStreamSynchronize", "cudaEventRecord")[start % 2], thread, start, start + length, -1)
        )
        correlation.append(0)
    return events_of(rows, correlation)


def activity_of(events):
    """When the GPU computed, communicated and copied."""
    communicates = events.on_gpu & events.by_name(lambda name: "nccl" in name)
    copies = events.kind == Kind.MEMCPY
    chosen = (events.on_gpu & ~communicates & ~copies, communicates, copies)
    spans = [union(spans_of(events.start_ns[rows], events.end_ns[rows])) for rows in chosen]
    return Activity(True, *(part for own in spans for part in (own, np.zeros(len(own), dtype=np.int8))), spans[1])


@given(
    st.lists(
        st.tuples(
            st.sampled_from([Kind.KERNEL, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET]),
            st.integers(100, 300),
            st.integers(0, 30),
            st.integers(0, 60),
            st.integers(0, 1),
        ),
        min_size=1,
        max_size=25,
    ),
    st.lists(st.tuples(st.integers(50, 300), st.integers(0, 60), st.integers(0, 1)), max_size=10),
    st.lists(st.integers(80, 350), min_size=2, max_size=6, unique=True),
)
def test_the_causes_add_up_to_the_time_without_computation(draws, calls, borders):
    events = random_events(draws, calls)
    activity = activity_of(events)
    borders = sorted(borders)
    steps = dict(enumerate(pairwise(borders)))
    idle = idle_causes(events, steps, activity)
    parts = np.array([idle[f"{cause}_ns"] for cause in CAUSES])
    assert (parts >= 0).all()
    assert parts.sum(axis=0).tolist() == idle["not_computing_ns"].tolist()
    computing = np.zeros(500, dtype=bool)
    communicating = computing.copy()
    for start, end in activity.compute:
        computing[start:end] = True
    for start, end in activity.communication:
        communicating[start:end] = True
    for place, (start, end) in enumerate(steps.values()):
        assert idle["not_computing_ns"][place] == (~computing[start:end]).sum()
        assert idle["communication_bound_ns"][place] == (communicating & ~computing)[start:end].sum()


def test_half_a_million_events_take_a_tenth_of_a_second():
    # 50 ms here; a slow machine under load gets twenty times as long.
    num_kernels = 160_000
    starts = 10**18 + 10_000 * np.arange(num_kernels)
    rows = np.arange(3 * num_kernels) % 3
    columns = {
        "kind": np.array([Kind.OP, Kind.LAUNCH, Kind.KERNEL], dtype=np.uint8)[rows],
        "name": rows.astype(np.int32),
        "thread": np.zeros(3 * num_kernels, dtype=np.int32),
        "start_ns": np.repeat(starts, 3) + np.array([0, 1_000, 9_000])[rows],
        "end_ns": np.repeat(starts, 3) + np.array([8_000, 7_000, 14_000])[rows],
        "stream": np.where(rows == 2, 7, -1).astype(np.int32),
    }
    names = ("aten::mm", "cudaLaunchKernel", "gemm")
    events, _ = assemble(columns, np.arange(3 * num_kernels) // 3 + 1, names, ("main",), {})
    steps = {number: (10**18 + number * 10**8, 10**18 + (number + 1) * 10**8) for number in range(16)}
    activity = activity_of(events)
    start = time.perf_counter()
    assert queueing(events, steps)["kernels"].sum() == num_kernels
    idle = idle_causes(events, steps, activity)
    assert time.perf_counter() - start < 1
    # A kernel runs from 9 to 14 of each 10 us, and the next one is launched at 11.
    assert idle["launched_ns"].sum() == pytest.approx(num_kernels * 5_000, rel=1e-3)

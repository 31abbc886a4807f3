"""Kernels of streams and launch delays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anatomy.traces.rank.queueing import QUEUEING_COLUMNS

ALLREDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


class TestStreams:
    @pytest.fixture
    def streams(self, new_trace, examined):
        trace = new_trace()
        trace.step(1, 1000, 1100)
        trace.step(2, 1100, 1200)
        trace.kernel("gemm", 990, 1010, launch=980)  # starts before the step
        trace.kernel("gemm", 1010, 1015, launch=1004)
        trace.kernel("gemm", 1020, 1030, launch=1005)
        trace.kernel("gemm", 1040, 1120, launch=1008)
        trace.kernel("gemm", 1045, 1049, stream=8)
        trace.kernel("gemm", 1150, 1151, launch=1149.5)
        trace.kernel(ALLREDUCE, 1050, 1080, stream=9, launch=1000)
        trace.kernel("Memcpy HtoD (Pinned -> Device)", 1085, 1090, stream=10, launch=1000)
        return examined(trace).queueing

    def test_a_row_for_each_step_and_stream_with_kernels_that_do_not_communicate(self, streams):
        assert list(zip(streams["step"].tolist(), streams["stream"].tolist(), strict=True)) == [(1, 7), (1, 8), (2, 7)]

    def test_a_kernel_belongs_to_the_step_in_which_it_starts(self, streams):
        assert streams["kernels"].tolist() == [3, 1, 1]
        assert streams["kernel_ns"].tolist() == [5_000 + 10_000 + 80_000, 4_000, 1_000]
        assert streams["mean_kernel_ns"].tolist() == [round(95_000 / 3), 4_000, 1_000]

    def test_short_is_below_10_us(self, streams):
        assert streams["short_kernels"].tolist() == [1, 1, 1]  # of 5, 10 and 80 us; 4; 1

    def test_delay_is_from_the_start_of_the_launch_to_the_start_of_the_kernel(self, streams):
        assert streams["launched"].tolist() == [3, 0, 1]
        # 1010 - 1004, 1020 - 1005, 1040 - 1008 = 6, 15, 32; unknown on stream 8; 1150 - 1149.5
        assert streams["delay_mean_ns"].tolist() == [round((6_000 + 15_000 + 32_000) / 3), -1, 500]
        assert streams["delay_median_ns"].tolist() == [15_000, -1, 500]
        # Of three, the 95th percentile lies at 0.95 * 2 = 1.9, that is 0.9 of the way from the second to the third.
        assert streams["delay_p95_ns"].tolist() == [15_000 + 0.9 * 17_000, -1, 500]

    def test_of_a_stream_with_some_launches_unknown_the_others_count(self, new_trace, examined):
        trace = new_trace()
        trace.step(1, 1000, 1100)
        trace.kernel("gemm", 1010, 1015)
        trace.kernel("gemm", 1020, 1030, launch=1005)
        trace.kernel("gemm", 1040, 1050, launch=1035)
        row = {name: values.item() for name, values in examined(trace).queueing.items()}
        assert (row["kernels"], row["launched"]) == (3, 2)
        assert (row["delay_mean_ns"], row["delay_median_ns"]) == (10_000, 10_000)  # of 15 and 5 us

    def test_a_launch_that_rounding_puts_behind_its_kernel_is_no_negative_delay(self, new_trace, examined):
        trace = new_trace()
        trace.step(1, 1000, 1100)
        trace.kernel("gemm", 1010, 1015, launch=1010.5)
        assert examined(trace).queueing["delay_mean_ns"].tolist() == [0]

    @given(st.lists(st.tuples(st.integers(7, 9), st.integers(-1, 100)), min_size=1, max_size=40))
    def test_statistics_are_numpys(self, new_trace, examined, delays):
        """Of stream and delay of each kernel, where -1 is unknown."""
        trace = new_trace()
        trace.step(3, 1000, 2000)
        for start, (stream, delay) in enumerate(delays, 1100):
            trace.kernel("gemm", start, start + 5, stream, launch=None if delay < 0 else start - delay)
        found = examined(trace).queueing
        assert found["stream"].tolist() == sorted({stream for stream, _ in delays})
        for place, stream in enumerate(found["stream"]):
            own = [delay * 1000 for number, delay in delays if number == stream and delay >= 0]
            assert found["launched"][place] == len(own)
            for name, expected in (
                ("mean", np.mean(own) if own else -1),
                ("median", np.median(own) if own else -1),
                ("p95", np.percentile(own, 95) if own else -1),
            ):
                assert found[f"delay_{name}_ns"][place] == pytest.approx(expected, abs=0.51)


def test_a_rank_without_a_gpu_has_no_streams(new_trace, examined):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.op("aten::mm", 1010, 1050)
    found = examined(trace).queueing
    assert tuple(found) == QUEUEING_COLUMNS
    assert {(values.dtype, len(values)) for values in found.values()} == {(np.dtype(np.int64), 0)}

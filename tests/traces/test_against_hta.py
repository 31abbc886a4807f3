"""What HolisticTraceAnalysis 0.5.0 says of real traces, where it defines the same thing, written down from its answers.

`tests/benchmarks/bench_traces.py` asks it again, and shows on docs/traces-benchmark.md where the two differ and why.
"""

import shutil

import pandas as pd
import pytest

from anatomy.traces.parsing import parse_traces

pytestmark = pytest.mark.shared_data

DLRM = {
    0: (6419, 13009, 4.50),
    1: (6428, 18749, 2.47),
    2: (7046, 11350, 7.88),
    3: (8145, 18853, 3.31),
    4: (8887, 16589, 0.56),
    5: (9121, 16392, 0.64),
    6: (7051, 11410, 7.56),
    7: (8308, 10967, 9.51),
}
"""By rank idle and kernel time in us of its temporal breakdown, and the share of communication in % that overlaps."""

NCCL_DATA = (503050.9914063759, 660551.0056328125)
"""The same two times, with its last step kept (include_last_profiler_step) and without rounding (its environment
variable HTA_DISABLE_NS_ROUNDING=1); its time stamps are float64, hence the digits."""

NCCL_DATA_KERNELS = {
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": 46762.159,
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>"
    "(cudnn::ops::nchw2nhwc_params_t<float>, float const*, float*)": 12616.974,
}
"""The largest sums of its kernel breakdown, in us."""


def tables_of(folder, out):
    manifest = parse_traces(folder, out)
    return {table: pd.read_parquet(out / f"{table}.parquet") for table in manifest["tables"]}


def idle_and_kernel_time_us(intervals):
    """From the first start of work on the GPU to the last end, and what of it no work covers."""
    streams = intervals[intervals["stream"].str.startswith("gpu stream")]
    window = streams["end_ns"].max() - streams["start_ns"].min()
    working = intervals[(intervals["stream"] == "rank") & (intervals["category"] != "idle")]
    return (window - (working["end_ns"] - working["start_ns"]).sum()) / 1000, window / 1000


def test_eight_ranks_have_the_same_times_and_overlap(shared_data, tmp_path):
    tables = tables_of(shared_data / "traces" / "dlrm-8rank", tmp_path / "tables")
    for rank, (idle_us, kernel_time_us, overlap) in DLRM.items():
        intervals = tables["intervals"][tables["intervals"]["rank"] == rank]
        assert idle_and_kernel_time_us(intervals) == (idle_us, kernel_time_us)
        steps = tables["steps"][tables["steps"]["rank"] == rank]
        overlapped, exposed = steps["comm_overlapped_ns"].sum(), steps["comm_exposed_ns"].sum()
        if rank == 3:
            # Six memsets of 10 us in all run under communication here; they are work of the device to us, not to HTA.
            overlapped -= 10_000
            exposed += 10_000
        assert round(100 * overlapped / (overlapped + exposed), 2) == overlap


def test_three_steps_have_the_same_times_and_sums_by_kernel(shared_data, tmp_path):
    (tmp_path / "traces").mkdir()
    shutil.copy(shared_data / "traces" / "hta" / "nccl_data.json.gz", tmp_path / "traces")
    tables = tables_of(tmp_path / "traces", tmp_path / "tables")
    assert idle_and_kernel_time_us(tables["intervals"]) == pytest.approx(NCCL_DATA, rel=1e-7)
    kernels = tables["operators"][tables["operators"]["device"] == "cuda"].groupby("name")["self_ns"].sum() / 1000
    for name, total_us in NCCL_DATA_KERNELS.items():
        assert kernels[name] == pytest.approx(total_us)

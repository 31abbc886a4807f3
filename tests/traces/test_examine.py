"""What is said of one rank, on traces small enough to work out by hand."""

import pytest

from anatomy.traces.rank.annotations import PHASES
from anatomy.traces.rank.decomposition import CATEGORIES


def spent(record):
    """Microseconds of a rank by category, those of preparation and copies by phase as well."""
    result = {}
    for phase, category, length in zip(
        record.sums["phase"], record.sums["category"], record.sums["ns"].tolist(), strict=True
    ):
        name = CATEGORIES[category]
        name = f"{name} {PHASES[phase]}" if name in ("preparation", "copy") else name
        result[name] = result.get(name, 0) + length / 1000
    return result


def intervals_of(record, stream):
    """Start and end in microseconds, category and phase of what a stream did."""
    columns = (record.intervals[name].tolist() for name in ("stream", "start_ns", "end_ns", "category", "phase"))
    return [
        (start / 1000, end / 1000, CATEGORIES[category], PHASES[phase])
        for code, start, end, category, phase in zip(*columns, strict=True)
        if record.streams[code] == stream
    ]


def test_rows_that_are_no_work_are_not_counted(examined, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.kernel("gemm", 1010, 1020)
    trace.event("cuda_sync", "Event Sync", 1000, 1100, 7, stream=7)
    trace.event("gpu_user_annotation", "ProfilerStep#1", 1010, 1100, 7, stream=7)
    trace.event("gpu_user_annotation", "phase:combine", 1010, 1100, 7, stream=7)
    trace.event("cuda_runtime", "cudaDeviceSynchronize", 1020, 1100)
    assert spent(examined(trace)) == {"compute": 10, "idle": 90}


@pytest.mark.parametrize("streams", [(7, 7), (7, 8)], ids=["one stream", "two streams"])
def test_kernels_at_the_same_time_are_counted_once(examined, new_trace, streams):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.kernel("gemm", 1010, 1050, stream=streams[0])
    trace.kernel("gemm", 1030, 1060, stream=streams[1])
    assert spent(examined(trace)) == {"compute": 1060 - 1010, "idle": 50}


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (None, {"copy other": 20, "idle": 80}),
        ("copy", {"preparation copy": 10 + 20, "idle": 70}),  # the GPU waits while the CPU is in the phase
        ("gather", {"preparation gather": 10 + 20, "idle": 70}),
        ("backward", {"copy backward": 20, "idle": 80}),
        ("evaluate", {"copy evaluate": 20, "idle": 80}),
    ],
)
def test_a_copy_prepares_where_a_phase_of_preparation_launched_it(examined, new_trace, phase, expected):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    if phase:
        trace.phase(phase, 1010, 1020)
    trace.kernel("Memcpy HtoD (Pinned -> Device)", 1030, 1050, launch=1015)
    assert spent(examined(trace)) == expected


def test_a_copy_under_a_kernel_is_not_seen(examined, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.kernel("gemm", 1010, 1050, stream=7)
    trace.kernel("Memcpy DtoH (Device -> Pinned)", 1020, 1060, stream=8)
    assert spent(examined(trace)) == {"compute": 40, "copy other": 10, "idle": 50}


def test_intervals_tile_each_step_and_show_every_stream(examined, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.kernel("gemm", 1010, 1030, stream=7)
    trace.kernel("gemm", 1020, 1040, stream=7)
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", 1030, 1120, stream=20, launch=1012)
    record = examined(trace)
    assert record.streams == ("rank", "gpu stream 7", "gpu stream 20")
    assert intervals_of(record, "rank") == [
        (1000, 1010, "idle", "other"),
        (1010, 1040, "compute", "other"),
        (1040, 1100, "communication", "other"),
    ]
    assert intervals_of(record, "gpu stream 7") == [(1010, 1040, "compute", "other")]
    assert intervals_of(record, "gpu stream 20") == [(1030, 1100, "communication", "other")]


def test_streams_are_cut_at_steps_and_shown_by_phase(examined, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1050)
    trace.step(2, 1050, 1100)
    trace.phase("sample", 1000, 1010)
    trace.kernel("gemm", 1020, 1070, launch=1015)
    trace.kernel("gemm", 1005, 1030, launch=1002)
    trace.kernel("Memcpy HtoD (Pinned -> Device)", 1080, 1090, launch=1079)
    trace.gloo("all_reduce", 1000, 1030)
    record = examined(trace)
    assert intervals_of(record, "gpu stream 7") == [
        (1005, 1030, "preparation", "sample"),
        (1020, 1050, "compute", "other"),
        (1050, 1070, "compute", "other"),
        (1080, 1090, "copy", "other"),
    ]
    assert intervals_of(record, "cpu thread 200") == [(1000, 1030, "communication", "sample")]
    assert [step for step in record.intervals["step"] if step == 2] == [2] * (
        4 + 2
    )  # four of the rank, two of stream 7


def test_communication_in_flight_has_its_own_phase_where_it_is_overlapped(examined, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.phase("sync", 1000, 1020)
    trace.phase("optimize", 1020, 1100)
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", 1010, 1060, stream=20, launch=1005)
    trace.kernel("adam", 1030, 1050, launch=1025)
    found = examined(trace).communicating
    rows = zip(*(found[name].tolist() for name in ("step", "start_ns", "end_ns", "phase", "overlapped")), strict=True)
    sync = PHASES.index("sync")
    assert list(rows) == [
        (1, 1010_000, 1030_000, sync, False),
        (1, 1030_000, 1050_000, sync, True),
        (1, 1050_000, 1060_000, sync, False),
    ]


def test_what_a_record_says_of_its_rank(examined, new_trace):
    trace = new_trace(3, 8)
    trace.step(7, 1000, 1100)
    trace.phase("aggregate", 1000, 1020)
    trace.phase("dream", 1020, 1030)
    trace.phase("sample", 1000, 1100, thread=300)
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", 1010, 1060, stream=20, launch=1005)
    record = examined(trace)
    assert (record.rank, record.world_size) == (3, 8)
    assert (record.gpu, record.nccl, record.communicates, record.annotated) == (True, True, True, True)
    assert record.steps == {7: (1_000_000, 1_100_000)}
    assert [PHASES[code] for code in record.phases["phase"]] == ["aggregate", "other"]
    assert record.phases["end_ns"].tolist() == [1_020_000, 1_030_000]
    assert {name: column.tolist() for name, column in record.calls.items()} == {
        "step": [7, 7],
        "phase": [PHASES.index("aggregate"), PHASES.index("other")],
        "calls": [1, 1],
    }
    assert record.notes == ("phases dream are not among the study's and count as other",)


def test_without_steps_the_window_is_one(examined, new_trace):
    trace = new_trace()
    trace.op("aten::mm", 1010, 1050)
    trace.event("user_annotation", "ProfilerStep#last", 1020, 1030)
    trace.event("user_annotation", "ProfilerStep#99999999999999999999", 1020, 1030)
    record = examined(trace)
    assert not record.annotated
    assert record.steps == {0: (1_010_000, 1_050_000)}
    assert spent(record) == {"compute": 40}
    assert not record.communicates
    assert not record.gpu


def test_a_step_ends_where_the_next_one_starts(examined, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1101)  # rounded up
    trace.step(2, 1100, 1200)
    assert examined(trace).steps == {1: (1_000_000, 1_100_000), 2: (1_100_000, 1_200_000)}


def test_communication_outside_of_the_steps_is_none_of_them(examined, new_trace):
    trace = new_trace()
    trace.step(1, 1000, 1100)
    trace.gloo("all_reduce", 1100, 1150)
    record = examined(trace)
    assert not record.communicates
    assert spent(record) == {"other": 100}

"""Events without a usable time, steps that are missing or said twice, and rows that are no work of the GPU."""

import pytest
from robustness_cases import parse, refusal

from anatomy.errors import StudyError


@pytest.fixture
def parsed(tmp_path):
    """Write traces by rank and parse them."""

    def run(*traces, **options):
        for rank, trace in enumerate(traces):
            trace.write(tmp_path / "traces", f"rank{rank}.json")
        return parse(tmp_path / "traces", tmp_path / "out", **options)

    return run


def twenty_operators(trace):
    """A step of 100 us with 19 operators of 1 us: with the step 20 events, of which one is 5%."""
    trace.step(3, 1000, 1100)
    for start in range(1000, 1038, 2):
        trace.op("aten::mm", start, start + 1)
    return trace


ABSENT = object()
BAD_TIMES = [
    ("dur", -1),
    ("dur", -1.0),
    ("dur", -0.001),
    ("dur", -(10**6)),
    ("dur", ABSENT),
    ("dur", None),
    ("dur", "1"),
    ("dur", "1.5"),
    ("dur", "-1"),
    ("dur", ""),
    ("dur", []),
    ("dur", {"us": 1}),
    ("dur", True),
    ("ts", 0),
    ("ts", 0.0),
    ("ts", -5),
    ("ts", ABSENT),
    ("ts", None),
    ("ts", ""),
    ("ts", "soon"),
    ("ts", [1010]),
]


@pytest.mark.parametrize(("field", "value"), BAD_TIMES)
def test_an_event_without_a_usable_time_is_dropped_and_counted(parsed, new_trace, field, value):
    trace = twenty_operators(new_trace())
    event = trace.content["traceEvents"][7]
    event[field] = value
    if value is ABSENT:
        del event[field]
    # One of 20 is 5%, which is not above the share of 5%.
    result = parsed(trace, max_dropped_share=0.05)
    assert result.steps("wall", "compute", "other") == [(100, 18, 82)]
    assert result.tables["operators"]["calls"].tolist() == [18]
    assert result.noted("rank 0", r"dropped.*\b1\b")


def test_an_event_of_no_length_is_an_event(parsed, new_trace):
    trace = twenty_operators(new_trace())
    trace.content["traceEvents"][7]["dur"] = 0
    result = parsed(trace)
    assert result.steps("compute") == [(18,)]
    assert result.tables["operators"]["calls"].tolist() == [19]
    assert not result.noted("dropped")


def test_different_reasons_are_counted_apart(parsed, new_trace):
    trace = twenty_operators(new_trace())
    events = trace.content["traceEvents"]
    for place in (5, 6, 7):
        events[place]["dur"] = -1
    events[8]["ts"] = 0
    events[9]["dur"] = "1"
    result = parsed(trace, max_dropped_share=0.25)  # 5 of 20
    assert result.steps("compute") == [(19 - 5,)]
    assert result.noted("rank 0", r"\b3\b[^,;]*negative", r"\b1\b[^,;]*time stamp", r"\b1\b[^,;]*duration")


def test_a_kernel_before_its_launch_is_dropped_and_counted(parsed, new_trace):
    trace = new_trace()
    trace.step(3, 1000, 1100)
    trace.kernel("gemm", 1020, 1030, launch=1050)  # 30 us too early
    for start in range(1031, 1069, 2):
        trace.kernel("gemm", start, start + 1, launch=start - 5)
    result = parsed(trace)
    assert result.steps("wall", "compute", "idle") == [(100, 19, 81)]
    assert result.noted("rank 0", r"\b1\b[^,;]*launch")


def test_above_the_share_the_program_refuses_and_says_how_many_of_how_many(tmp_path, new_trace):
    trace = twenty_operators(new_trace())
    for place in (7, 8):
        trace.content["traceEvents"][place]["dur"] = -1
    path = trace.write(tmp_path / "traces", "rank0.json")
    message = refusal(tmp_path / "traces", tmp_path / "out")
    assert message.startswith(f"rank 0, {path}: ")
    assert "2 of 20" in message
    assert "negative" in message
    message = refusal(tmp_path / "traces", tmp_path / "out", "--max-dropped-share", 0.09)
    assert "2 of 20" in message
    accepted = parse(tmp_path / "traces", tmp_path / "out", max_dropped_share=0.1)
    assert accepted.steps("compute") == [(17,)]


def test_a_trace_of_which_nothing_is_left_is_refused_whatever_the_share(tmp_path, new_trace):
    trace = new_trace()
    trace.op("aten::mm", 1010, 1009)
    trace.write(tmp_path / "traces", "rank0.json")
    with pytest.raises(StudyError, match=r"rank0\.json"):
        parse(tmp_path / "traces", tmp_path / "out", max_dropped_share=1)


METADATA = {"ph": "M", "name": "process_name", "pid": 1, "ts": 1, "args": {"name": "python"}}
INSTANT = {"ph": "i", "cat": "cpu_op", "name": "Record Window End", "pid": 1, "tid": 1, "ts": 5, "s": "g"}


@pytest.mark.parametrize("events", [[], [METADATA], [METADATA, INSTANT]], ids=["none", "metadata", "instants"])
def test_a_trace_without_events_says_so(tmp_path, new_trace, events):
    trace = new_trace()
    trace.content["traceEvents"] = events
    path = trace.write(tmp_path / "traces", "rank0.json")
    message = refusal(tmp_path / "traces", tmp_path / "out")
    assert message.startswith(f"rank 0, {path}: ")
    assert "no operator, kernel or annotation" in message


def test_without_steps_the_whole_window_counts_and_the_table_says_so(parsed, new_trace):
    trace = new_trace()
    trace.op("aten::mm", 1010, 1040)
    trace.op("aten::mm", 1050, 1110)
    result = parsed(trace)
    assert result.steps("step", "wall", "compute", "other") == [(0, 100, 90, 10)]
    assert result.tables["steps"]["annotated"].tolist() == [False]
    assert result.manifest["steps_annotated"] is False
    assert result.noted("no ProfilerStep", "whole window")


def with_steps(new_trace, rank, *numbers):
    trace = new_trace(rank, 2)
    trace.op("aten::mm", 500, 510)
    for number in numbers:
        trace.step(number, 1000 * number, 1000 * number + 100)
        trace.op("aten::mm", 1000 * number + 10, 1000 * number + 20 + number)
    return trace


def test_steps_that_one_rank_lacks_are_left_out_for_all_and_said(parsed, new_trace):
    result = parsed(with_steps(new_trace, 0, 3, 4, 5), with_steps(new_trace, 1, 4, 5, 6))
    assert result.steps("rank", "step", "wall", "compute") == [
        (rank, step, 100, 10 + step) for rank in (0, 1) for step in (4, 5)
    ]
    assert result.tables["steps"]["annotated"].all()
    assert result.noted(r"\b3\b", r"\b6\b", "left out")
    for name in ("phases", "operators", "intervals", "collectives", "critical_path"):
        assert set(result.tables[name]["step"]) <= {4, 5}, name


@pytest.mark.parametrize(("numbers", "listed"), [((7, 8), r"\[7, 8\]"), ((), "none")])
def test_ranks_that_have_no_step_in_common_are_refused(tmp_path, new_trace, numbers, listed):
    with_steps(new_trace, 0, 3, 4).write(tmp_path / "traces", "rank0.json")
    with_steps(new_trace, 1, *numbers).write(tmp_path / "traces", "rank1.json")
    with pytest.raises(StudyError, match=rf"no step in common .*rank 0: \[3, 4\].*rank 1: {listed}"):
        parse(tmp_path / "traces", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def gpu_step(trace, number, start, end, stream=7):
    """The profiler's copy of a step on a stream of the GPU."""
    trace.event("gpu_user_annotation", f"ProfilerStep#{number}", start, end, stream, stream=stream)


def test_a_step_annotated_on_cpu_and_gpu_counts_once_by_the_cpu(parsed, new_trace):
    trace = new_trace()
    trace.step(3, 1000, 1100)
    gpu_step(trace, 3, 1020, 1140)
    gpu_step(trace, 3, 1030, 1090, stream=20)
    trace.kernel("gemm", 1040, 1070, launch=1010)
    result = parsed(trace)
    assert result.steps("step", "wall", "compute", "idle") == [(3, 100, 30, 70)]
    assert result.tables["operators"]["calls"].tolist() == [1]


def test_a_step_annotated_on_the_gpu_alone_counts(parsed, new_trace):
    trace = new_trace()
    gpu_step(trace, 3, 1020, 1140)
    trace.kernel("gemm", 1040, 1070)
    assert parsed(trace).steps("step", "wall", "compute", "idle") == [(3, 120, 30, 90)]


def test_a_step_annotated_by_two_threads_counts_once_by_the_longer(parsed, new_trace):
    trace = new_trace()
    trace.step(3, 1000, 1100)
    trace.event("user_annotation", "ProfilerStep#3", 1010, 1060, 300)
    trace.op("aten::mm", 1020, 1050)
    assert parsed(trace).steps("step", "wall", "compute") == [(3, 100, 30)]


def test_rows_of_the_gpu_that_are_no_work_count_as_nothing(parsed, new_trace):
    trace = new_trace()
    trace.step(3, 1000, 1100)
    trace.kernel("gemm", 1010, 1050, stream=7, launch=1005)
    for category in ("cuda_sync", "Cuda_Sync", "overhead", "Trace"):
        trace.event(category, "Stream Synchronize", 1000, 1100, 7, stream=7, correlation=90)
    gpu_step(trace, 3, 1000, 1100)
    for name in ("phase:aggregate", "nccl:all_reduce", "gloo:all_reduce", "## forward ##"):
        trace.event("gpu_user_annotation", name, 1000, 1100, 7, stream=7)
    result = parsed(trace)
    assert result.steps("wall", "compute", "idle", "comm_exposed") == [(100, 40, 60, None)]
    operators = result.tables["operators"]
    assert operators.loc[operators["device"] == "cuda", ["name", "calls"]].to_numpy().tolist() == [["gemm", 1]]
    assert len(result.tables["collectives"]) == 0
    stream = result.tables["intervals"].query("stream != 'rank'")
    assert [(row.start_ns, row.end_ns) for row in stream.itertuples()] == [(1_010_000, 1_050_000)]


def test_overlapping_work_is_united_within_and_across_streams(parsed, new_trace):
    trace = new_trace()
    trace.step(3, 1000, 1100)
    trace.kernel("gemm", 1010, 1050, stream=7)
    trace.kernel("gemm", 1040, 1055, stream=7)  # overlaps the one before on its own stream
    trace.kernel("gemm", 1010, 1050, stream=7)  # the same again
    trace.kernel("gemm", 1030, 1060, stream=8)
    trace.kernel("gemm", 1060, 1060, stream=8)
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1045, 1070, stream=20)
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1065, 1080, stream=21)
    trace.kernel("Memcpy HtoD (Pageable -> Device)", 1075, 1090, stream=7)
    result = parsed(trace)
    # Computed from 1010 to 1060; communicated from 1045 to 1080, of it 1060 to 1080 exposed; copied until 1090.
    assert result.steps("wall", "compute", "comm_exposed", "comm_overlapped", "copy", "idle") == [
        (100, 50, 20, 15, 10, 20)
    ]
    intervals = result.tables["intervals"]
    for stream, covered in (("7", 45 + 15), ("8", 30), ("20", 25), ("21", 15)):
        own = intervals[intervals["stream"].str.fullmatch(rf".*\b{stream}")].sort_values("start_ns")
        assert (own["end_ns"] - own["start_ns"]).sum() == covered * 1000
        assert (own["start_ns"].iloc[1:].to_numpy() >= own["end_ns"].iloc[:-1].to_numpy()).all()

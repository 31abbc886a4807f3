"""What must hold of every trace, on many random ones, against a count of microseconds one by one."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from anatomy.traces.discovery import read_job
from anatomy.traces.parsing import analyse

START, HORIZON = 1000, 60
PHASES = ["sample", "fetch", "gather", "copy", "aggregate", "backward", "exchange", "sync", "evaluate"]
PREPARATION = ["sample", "fetch", "gather", "copy"]

interval = st.tuples(st.integers(0, HORIZON), st.integers(0, HORIZON)).map(lambda pair: (min(pair), max(pair)))
intervals = st.lists(interval, max_size=6)
named = st.lists(st.tuples(st.sampled_from(PHASES), interval), max_size=6)
steps = st.sampled_from([[(0, HORIZON)], [(5, 30), (30, 55)], [(0, 10), (20, 50)], []])


def build(new_trace, step_windows):
    trace = new_trace()
    for number, (start, end) in enumerate(step_windows):
        trace.step(number, START + start, START + end)
    trace.event("cpu_op", "forward", START, START + HORIZON, 900)  # spans the window; on no thread that trains
    return trace


def tables_of(trace):
    with tempfile.TemporaryDirectory() as folder:
        trace.write(Path(folder), "rank0.json")
        return analyse(read_job(Path(folder), None))[0]


def check_against(tables, step_windows, category_at):
    """Compare every step's parts with a count over its microseconds; `category_at` also names the phase."""
    windows = step_windows or [(0, HORIZON)]
    for (_, row), (start, end) in zip(tables["steps"].iterrows(), windows, strict=True):
        counted = {}
        for instant in range(start, end):
            category = category_at(instant)
            counted[category] = counted.get(category, 0) + 1000
        communicates = not tables["steps"]["comm_exposed_ns"].isna().any()
        assert row["wall_ns"] == (end - start) * 1000
        assert row["compute_ns"] == counted.get("compute", 0)
        assert row["idle_ns"] == counted.get("idle", 0)
        assert row["other_ns"] == counted.get("other", 0)
        for phase in PREPARATION:
            assert row[f"prep_{phase}_ns"] == counted.get(phase, 0)
        if communicates:
            assert row["comm_exposed_ns"] == counted.get("communication", 0)
        else:
            assert "communication" not in counted


def at(spans, instant):
    return any(start <= instant < end for start, end in spans)


def phase_at(phases, instant):
    """The phase that started last; of those, the shorter one."""
    covering = [(start, -end, name) for name, (start, end) in phases if start <= instant < end]
    return max(covering)[2] if covering else None


@settings(max_examples=40, deadline=None)
@given(compute=intervals, communication=intervals, copies=intervals, step_windows=steps)
def test_a_gpu_without_phases(new_trace, compute, communication, copies, step_windows):
    trace = build(new_trace, step_windows)
    trace.kernel("gemm", START, START)  # a GPU that may do nothing
    for index, (start, end) in enumerate(compute):
        trace.kernel("gemm", START + start, START + end, stream=index % 3)
    for start, end in communication:
        trace.kernel("ncclDevKernel_Generic()", START + start, START + end, stream=20)
    for start, end in copies:
        trace.kernel("Memcpy HtoD (Pinned -> Device)", START + start, START + end, stream=30)

    def category_at(instant):
        if at(compute, instant):
            return "compute"
        if at(communication, instant):
            return "communication"
        return "copy" if at(copies, instant) else "idle"

    check_against(tables_of(trace), step_windows, category_at)


@settings(max_examples=40, deadline=None)
@given(phases=named, operators=intervals, communication=intervals, step_windows=steps.filter(len))
def test_a_cpu_with_phases(new_trace, phases, operators, communication, step_windows):
    # Ties decide by name in the count but by order in the file in the tool: let no two phases have the same span.
    phases = list({span: (name, span) for name, span in phases}.values())
    trace = build(new_trace, step_windows)
    for name, (start, end) in phases:
        trace.phase(name, START + start, START + end)
    communication_starts = [start for name, (start, _) in phases if name in ("fetch", "exchange", "sync")]
    for start, end in operators:
        trace.op("aten::mm", START + start, START + end)
    for index, (start, end) in enumerate(communication):
        trace.gloo("all_reduce", START + start, START + end, thread=200 + index % 2)
    computing = [
        (start, end) for start, end in operators if not any(start < moment < end for moment in communication_starts)
    ]

    def category_at(instant):
        phase = phase_at(phases, instant)
        if at(communication, instant) and not at(computing, instant):
            return "communication"
        if phase in PREPARATION:
            return phase
        if phase == "evaluate" or (phase in ("exchange", "sync", None) and not at(computing, instant)):
            return "other"
        return "compute"

    tables = tables_of(trace)
    check_against(tables, step_windows, category_at)
    for (_, step), rows in tables["phases"].groupby(["rank", "step"]):
        start, end = step_windows[step]
        expected = {}
        for instant in range(start, end):
            name = phase_at(phases, instant) or "other"
            expected[name] = expected.get(name, 0) + 1000
        assert {name: total for name, total in zip(rows["phase"], rows["total_ns"], strict=True) if total} == expected


@settings(max_examples=20, deadline=None)
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=4),
    operators=intervals,
)
def test_two_ranks_wait_for_each_other(new_trace, arrivals, operators):
    # The i-th collective has its own 60 us; rank r arrives at its offset, both leave 30 us in.
    window = HORIZON * len(arrivals)
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(2):
            trace = new_trace(rank, 2)
            trace.step(0, START, START + window)
            for index, offsets in enumerate(arrivals):
                base = START + HORIZON * index
                trace.gloo("all_reduce", base + offsets[rank], base + 30)
            for start, end in operators:
                trace.op("aten::mm", START + start, START + end)
            trace.write(Path(folder), f"rank{rank}.json")
        tables = analyse(read_job(Path(folder), None))[0]
    rows = tables["collectives"]
    assert rows["matched"].all()
    for rank in range(2):
        waits = [max(offsets) - offsets[rank] for offsets in arrivals]
        own = rows[rows["rank"] == rank]
        assert own["wait_ns"].tolist() == [1000 * wait for wait in waits]
        assert (own["wait_ns"] + own["transfer_ns"] == own["end_ns"] - own["start_ns"]).all()
    steps = tables["steps"]
    total = steps["comm_exposed_ns"] + steps["comm_overlapped_ns"]
    assert total.tolist() == (rows["end_ns"] - rows["start_ns"]).groupby(rows["rank"]).sum().tolist()
    assert (steps["comm_exposed_wait_ns"] <= rows.groupby("rank")["wait_ns"].sum().to_numpy()).all()

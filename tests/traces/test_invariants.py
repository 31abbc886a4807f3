"""What must hold of every trace, on many random ones, against a count of microseconds one by one."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from anatomy.traces.parsing import parse_traces
from anatomy.traces.rank import decomposition
from anatomy.traces.rank.annotations import PHASES as ALL_PHASES
from anatomy.traces.rank.decomposition import CATEGORIES

START, HORIZON = 1000, 60
PHASES = ["sample", "fetch", "gather", "copy", "aggregate", "backward", "exchange", "sync", "disturb", "evaluate"]
PREPARATION = ["sample", "fetch", "gather", "copy"]

interval = st.tuples(st.integers(0, HORIZON), st.integers(0, HORIZON)).map(lambda pair: (min(pair), max(pair)))
intervals = st.lists(interval, max_size=6)
# Ties decide by name in the count but by order in the file in the tool: let no two phases have the same span.
named = st.lists(st.tuples(st.sampled_from(PHASES), interval), max_size=6, unique_by=lambda phase: phase[1])
launched = st.lists(st.tuples(interval, st.integers(0, HORIZON)), max_size=6, unique_by=lambda work: work[0])
"""Work on a GPU, and when it was launched."""
steps = st.sampled_from([[(0, HORIZON)], [(5, 30), (30, 55)], [(0, 10), (20, 50)], []])


def build(new_trace, step_windows, phases=()):
    trace = new_trace()
    for number, (start, end) in enumerate(step_windows):
        trace.step(number, START + start, START + end)
    for name, (start, end) in phases:
        trace.phase(name, START + start, START + end)
    trace.event("cpu_op", "forward", START, START + HORIZON, 900)  # spans the window; on no thread that trains
    return trace


def frame_of(columns):
    """A table of a record with its lengths and, in place of codes, names."""
    frame = pd.DataFrame(columns)
    for column, names in (("category", CATEGORIES), ("phase", ALL_PHASES)):
        if column in frame:
            frame[column] = np.array(names, dtype=object)[frame[column]]
    if "end_ns" in frame:
        frame["ns"] = frame["end_ns"] - frame["start_ns"]
    return frame


def check_against(record, step_windows, piece_at):
    """Compare a record with a count over its microseconds; `piece_at` gives category, phase and the phase of the
    communication in flight, None where there is none."""
    expected, flying = {}, {}
    for number, (start, end) in enumerate(step_windows or [(0, HORIZON)]):
        assert record.steps[number] == (1000 * (START + start), 1000 * (START + end))
        for instant in range(start, end):
            category, phase, communication = piece_at(instant)
            key = (number, category, phase)
            expected[key] = expected.get(key, 0) + 1000
            if communication is not None:
                exposed = category == "communication"
                key = (number, phase if exposed else communication, not exposed)
                flying[key] = flying.get(key, 0) + 1000
    sums = frame_of(record.sums)
    assert sums.set_index(["step", "category", "phase"])["ns"].to_dict() == expected
    communicating = frame_of(record.communicating)
    assert communicating.groupby(["step", "phase", "overlapped"])["ns"].sum().to_dict() == flying
    assert record.communicates == bool(flying)
    check_alike(record, sums, communicating)


def check_alike(record, sums, communicating):
    """What holds between the tables of a record."""
    walls = {step: end - start for step, (start, end) in record.steps.items() if end > start}
    assert sums.groupby("step")["ns"].sum().to_dict() == walls
    assert set(sums[sums["category"] == "preparation"]["phase"]) <= set(PREPARATION)
    exposed = communicating[~communicating["overlapped"]].groupby(["step", "phase"])["ns"].sum()
    in_sums = sums[sums["category"] == "communication"].set_index(["step", "phase"])["ns"]
    assert exposed.to_dict() == in_sums.to_dict()
    whole = frame_of(record.intervals)
    whole = whole[whole["stream"] == record.streams.index("rank")]
    for (step, (start, end)), (number, rows) in zip(record.steps.items(), whole.groupby("step"), strict=True):
        assert step == number
        assert [start, *rows["end_ns"]] == [*rows["start_ns"], end]  # one after the other, from start to end
    assert whole.groupby(["step", "phase", "category"])["ns"].sum().to_dict() == (
        sums.groupby(["step", "phase", "category"])["ns"].sum().to_dict()
    )
    for _, piece in communicating.iterrows():
        around = whole[(whole["start_ns"] < piece["end_ns"]) & (whole["end_ns"] > piece["start_ns"])]
        assert ((around["category"] == "communication") != piece["overlapped"]).all()
    edges = communicating[["start_ns", "end_ns"]].to_numpy()
    assert (edges[1:, 0] >= edges[:-1, 1]).all()


def at(spans, instant):
    return any(start <= instant < end for start, end in spans)


def phase_at(phases, instant):
    """The phase that started last; of those, the shorter one."""
    covering = [(start, -end, name) for name, (start, end) in phases if start <= instant < end]
    return max(covering)[2] if covering else None


def launching_phase(work, phases, instant):
    """The phase that launched what runs, of several the one that started last; None where nothing runs."""
    running = [(start, -end, caused) for (start, end), caused in work if start <= instant < end]
    return (phase_at(phases, min(max(running)[2], max(running)[0])) or "other") if running else None


@settings(max_examples=40)
@given(phases=named, compute=launched, communication=launched, copies=launched, step_windows=steps)
def test_a_gpu(new_trace, examined, phases, compute, communication, copies, step_windows):
    trace = build(new_trace, step_windows, phases)
    trace.kernel("gemm", START, START)  # a GPU that may do nothing
    everything = (
        ("gemm", compute, 7),
        ("ncclDevKernel_Generic()", communication, 20),
        ("Memcpy HtoD (Pinned -> Device)", copies, 30),
    )
    for name, work, stream in everything:
        for index, ((start, end), caused) in enumerate(work):
            trace.kernel(name, START + start, START + end, stream=stream + index % 3, launch=START + min(start, caused))

    def piece_at(instant):
        computing, flying, copying = (launching_phase(work, phases, instant) for _, work, _ in everything)
        if computing:
            category = "preparation" if computing in PREPARATION else "compute"
            return "other" if computing == "evaluate" else category, computing, flying
        if flying:
            return "communication", flying, flying
        if copying:
            return "preparation" if copying in PREPARATION else "copy", copying, None
        phase = phase_at(phases, instant) or "other"
        return "preparation" if phase in PREPARATION else "idle", phase, None

    check_against(examined(trace), step_windows, piece_at)


@settings(max_examples=40)
@given(phases=named, operators=intervals, communication=intervals, step_windows=steps.filter(len))
def test_a_cpu(new_trace, examined, phases, operators, communication, step_windows):
    trace = build(new_trace, step_windows, phases)
    communication_starts = [start for name, (start, _) in phases if name in ("fetch", "exchange", "sync")]
    for start, end in operators:
        trace.op("aten::mm", START + start, START + end)
    for index, (start, end) in enumerate(communication):
        trace.gloo("all_reduce", START + start, START + end, thread=200 + index % 2)
    computing = [
        (start, end) for start, end in operators if not any(start < moment < end for moment in communication_starts)
    ]

    def piece_at(instant):
        phase = phase_at(phases, instant) or "other"
        starts = [(start, -end) for start, end in communication if start <= instant < end]
        flying = (phase_at(phases, max(starts)[0]) or "other") if starts else None
        if flying and not at(computing, instant) and phase != "disturb":
            return "communication", phase, flying
        if phase in PREPARATION:
            return "preparation", phase, flying
        if phase == "evaluate" or (phase in ("exchange", "sync", "other") and not at(computing, instant)):
            return "other", phase, flying
        return "compute", phase, flying

    check_against(examined(trace), step_windows, piece_at)


@settings(max_examples=12)
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
        parse_traces(Path(folder), Path(folder) / "tables")
        rows, steps = (
            pd.read_parquet(Path(folder) / "tables" / f"{name}.parquet") for name in ("collectives", "steps")
        )
    assert rows["matched"].all()
    for rank in range(2):
        waits = [max(offsets) - offsets[rank] for offsets in arrivals]
        own = rows[rows["rank"] == rank]
        assert own["wait_ns"].tolist() == [1000 * wait for wait in waits]
        assert (own["wait_ns"] + own["transfer_ns"] == own["end_ns"] - own["start_ns"]).all()
    exposed, overlapped = steps["comm_exposed_ns"], steps["comm_overlapped_ns"]
    assert (exposed + overlapped).tolist() == (rows["end_ns"] - rows["start_ns"]).groupby(rows["rank"]).sum().tolist()
    # Neither waiting nor transfer changes by what is computed meanwhile.
    for state in ("wait", "transfer"):
        total = steps[f"comm_exposed_{state}_ns"] + steps[f"comm_overlapped_{state}_ns"]
        assert total.tolist() == rows.groupby("rank")[f"{state}_ns"].sum().tolist()


def test_one_rank_is_examined_without_what_takes_long_to_load():
    code = "import sys, anatomy.traces.rank.examine; print({'pandas', 'pyarrow', 'torch'} & set(sys.modules))"
    scripts = Path(decomposition.__file__).parents[3]
    loaded = subprocess.run([sys.executable, "-c", code], cwd=scripts, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "set()"

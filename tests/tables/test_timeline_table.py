"""The study table of one step: which step, on which clock, and what is merged."""

import pandas as pd
import pytest

MS = 1_000_000
START = 1_700_000_000_000_000_000
"""Nanoseconds since 1970, as in traces: too many for float64 to hold each."""


@pytest.fixture
def run(results):
    return results.run(epochs=[{}])


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr("anatomy.tables.timeline.MOST_INTERVALS", 2)
    monkeypatch.setattr("anatomy.tables.timeline.MOST_ELEMENTS", 2)


def trace_tables(by_step: dict, path: list[tuple] = (), offsets=(0, 0), annotated: bool = True) -> dict:
    """The trace tables of two ranks from {step: {rank: [(start ms, end ms, category, phase)]}} by their own clocks."""
    intervals = [
        (rank, step, START + start * MS, START + end * MS, category, phase, "rank")
        for step, ranks in by_step.items()
        for rank, spans in ranks.items()
        for start, end, category, phase in spans
    ]
    columns = ["rank", "step", "start_ns", "end_ns", "category", "phase", "stream"]
    intervals = pd.DataFrame(intervals, columns=columns)
    steps = intervals.groupby(["rank", "step"]).agg(start_ns=("start_ns", "min"), end_ns=("end_ns", "max"))
    steps = steps.assign(wall_ns=steps["end_ns"] - steps["start_ns"], annotated=annotated).reset_index()
    elements = [
        (step, place, rank, category, phase, collective, START + start * MS, START + end * MS, slack * MS)
        for step, place, rank, category, phase, collective, start, end, slack in path
    ]
    columns = ["step", "place", "rank", "category", "phase", "collective", "start_ns", "end_ns", "slack_to_next_ns"]
    elements = pd.DataFrame(elements, columns=columns).astype({"collective": "Int64", "phase": "string"})
    stream = intervals.head(1).assign(stream="gpu stream 7")
    clocks = pd.DataFrame({"rank": [0, 1], "offset_ns": pd.array(offsets, dtype="Int64")})
    return {
        "steps": steps,
        "intervals": pd.concat([stream, intervals]),
        "critical_path": elements,
        "clocks": clocks,
    }


def step_of(length: int) -> dict:
    return {rank: [(0, length, "compute", "backward")] for rank in (0, 1)}


def spans_of(table: pd.DataFrame) -> list[list]:
    return table[["category", "start_s", "end_s"]].to_numpy().tolist()


@pytest.mark.parametrize(("lengths", "chosen"), [([5, 9, 7], 3), ([5, 9, 7, 6], 4), ([4, 4], 1), ([8], 1)])
def test_the_step_of_median_length_is_shown(results, built, run, lengths, chosen):
    results.traces(run, **trace_tables({number: step_of(length) for number, length in enumerate(lengths, start=1)}))
    table = built("timeline", results.study(run))
    assert set(table["step"]) == {chosen}
    assert set(table["num_steps"]) == {len(lengths)}


def test_a_steps_length_is_over_all_ranks(results, built, run):
    late = {0: [(0, 2, "compute", "backward")], 1: [(10, 12, "compute", "backward")]}
    results.traces(run, **trace_tables({1: step_of(5), 2: late, 3: step_of(6)}))
    assert set(built("timeline", results.study(run))["step"]) == {3}  # 5, 12 and 6 ms


def test_times_are_seconds_from_the_first_start_on_the_corrected_clock(results, built, run):
    spans = {
        0: [(0, 4, "compute", "backward"), (4, 6, "communication", "sync")],
        1: [(101, 105, "compute", "backward"), (105, 106, "communication", "sync")],
    }
    path = [
        (1, 0, 1, "compute", "backward", None, 1, 5, 2),
        (1, 1, 0, "communication", "sync", 3, 5, 6, 1),
    ]
    results.traces(run, **trace_tables({1: spans}, path, offsets=(0, 100 * MS)))
    table = built("timeline", results.study(run))
    intervals = table[table["kind"] == "interval"]
    assert intervals[["rank", "place", "phase"]].to_numpy().tolist() == [
        [0, 0, "backward"],
        [0, 1, "sync"],
        [1, 0, "backward"],
        [1, 1, "sync"],
    ]
    assert intervals["start_s"].tolist() == [0, 0.004, 0.001, 0.005]
    assert intervals["end_s"].tolist() == [0.004, 0.006, 0.005, 0.006]
    assert intervals["slack_s"].isna().all()
    elements = table[table["kind"] == "path"]
    assert elements["rank"].tolist() == [1, 0]
    assert elements["collective"].tolist() == [pd.NA, 3]
    assert elements["start_s"].tolist() == [0.001, 0.005]
    assert elements["slack_s"].tolist() == [0.002, 0.001]
    assert not table["merged"].any()
    assert table["annotated"].all()


def test_neighbours_of_one_category_and_phase_are_one(results, built, run):
    spans = {0: [(0, 1, "compute", "backward"), (1, 3, "compute", "backward"), (3, 4, "idle", "backward")]}
    results.traces(run, **trace_tables({0: spans}, annotated=False))
    table = built("timeline", results.study(run))
    assert table[["category", "start_s", "end_s"]].to_numpy().tolist() == [
        ["compute", 0, 0.003],
        ["idle", 0.003, 0.004],
    ]
    assert not table["annotated"].any()


def test_too_many_intervals_become_slices_with_what_fills_most_of_them(results, built, run, few):
    spans = [
        (0, 3, "compute", "combine"),
        (3, 5, "idle", "other"),
        (5, 6, "compute", "combine"),
        (6, 9, "idle", "other"),
        (9, 10, "compute", "combine"),
    ]
    results.traces(run, **trace_tables({1: {0: spans}}))
    table = built("timeline", results.study(run))
    # In the first 5 ms, 3 are compute; in the last 5, 3 are idle.
    assert spans_of(table) == [["compute", 0, 0.005], ["idle", 0.005, 0.01]]
    assert table["merged"].all()


def test_too_long_a_path_is_merged_between_hops(results, built, run, few):
    path = [
        (1, 0, 0, "compute", "combine", None, 0, 1, 1),
        (1, 1, 0, "compute", "loss", None, 1, 3, 1),
        (1, 2, 0, "compute", "backward", None, 3, 4, 1),
        (1, 3, 1, "communication", "sync", 0, 4, 6, 2),
        (1, 4, 1, "compute", "optimize", None, 6, 8, 2),
    ]
    results.traces(run, **trace_tables({1: step_of(8)}, path))
    table = built("timeline", results.study(run))
    elements = table[table["kind"] == "path"]
    # Slices begin at 0 and 4 ms; the longest of the first three elements is the loss.
    assert elements[["phase", "start_s", "end_s"]].to_numpy().tolist() == [
        ["loss", 0, 0.004],
        ["sync", 0.004, 0.006],
        ["optimize", 0.006, 0.008],
    ]
    assert elements["slack_s"].tolist() == [pd.NA, 0.002, 0.002]


def test_a_run_without_profiled_steps_is_a_row_that_says_so(results, built, run):
    assert built("timeline", results.study(run))["status"].tolist() == ["not profiled"]

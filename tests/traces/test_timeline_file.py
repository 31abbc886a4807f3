"""The merged timeline: what it shows of a job, and that viewers of the Trace Event Format can read it."""

import math
from collections import Counter
from decimal import Decimal
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timeline_cases import BASE, check, write_and_check

from anatomy.traces.job import timeline
from anatomy.traces.parsing import parse_traces
from anatomy.traces.rank.annotations import PHASES
from anatomy.traces.rank.decomposition import CATEGORIES


@pytest.fixture
def written(tmp_path):
    return partial(write_and_check, tmp_path)


def test_each_rank_has_its_tracks_in_order_and_the_critical_path_is_above(written):
    shown = written(
        phases={0: [("sync", BASE + 10, BASE + 90)], 10: []},
        collectives=[(0, 0, BASE + 20, BASE + 30, 0, 0)],
        intervals=[
            (0, "gpu stream 20", "communication", "sync", BASE + 20, BASE + 30),
            (0, "gpu stream 7", "compute", "other", BASE + 10, BASE + 30),
            (0, "rank", "compute", "other", BASE, BASE + 1000),
            (10, "cpu thread 1/200", "communication", "other", BASE, BASE + 5),
        ],
        path=[(10, 0, "phase", "sync", "compute", None, BASE, BASE + 7, 5)],
        kind="cuda-nccl",
    )
    assert shown.tracks == [
        ("critical path", "through rank 10"),
        *(("rank 0", name) for name in ("steps", "phases", "activity", "collectives", "gpu stream 7", "gpu stream 20")),
        *(("rank 10", name) for name in ("steps", "cpu thread 1/200")),
    ]
    assert shown.about["kind"] == "GPU and NCCL"
    assert shown.about["clock_offsets_ns"] == {"0": 0, "10": 0}
    assert shown.about["left_out"] == []


def test_clocks_are_corrected_to_the_nanosecond(written):
    shown = written(
        phases={0: [("sync", BASE + 1, BASE + 2)], 1: [("sync", BASE + 5_000_001, BASE + 5_000_002)]},
        steps=[(0, 3, BASE, 10), (1, 3, BASE + 5_000_000, 10)],
        collectives=[(0, 0, BASE + 3, BASE + 9, 2, 1), (1, 0, BASE + 5_000_005, BASE + 5_000_009, 0, 1)],
        intervals=[(rank, "rank", "idle", "other", BASE + at, BASE + at + 10) for rank, at in ((0, 0), (1, 5_000_000))],
        path=[(1, 0, "transfer", "sync", "communication", 0, BASE + 5, BASE + 9, 4)],
        offsets={0: 0, 1: 5_000_000},
    )
    for rank in ("rank 0", "rank 1"):
        assert shown.named(rank, "steps") == [("step 3", BASE, BASE + 10)]
        assert shown.named(rank, "phases") == [("sync", BASE + 1, BASE + 2)]
        assert shown.named(rank, "activity") == [("idle", BASE, BASE + 10)]
    assert shown.named("critical path", "through rank 1") == [("all_reduce: transfer", BASE + 5, BASE + 9)]
    assert {"phase": "sync", "slack_to_next_us": Decimal("0.004")} in shown.args
    assert shown.labels == {}


def test_a_rank_whose_clock_is_not_known_says_so(written):
    known = {0: 0, 1: 7}
    clocks = [(0, 0), (1, 7), (2, None)]
    shown = written(phases={0: [], 1: [], 2: []}, offsets=known, clocks=clocks)
    assert shown.labels == {"rank 2": "by its own clock: offset unknown"}
    assert shown.about["clock_offsets_ns"] == {"0": 0, "1": 7, "2": None}


def test_a_collective_is_waiting_then_transfer_and_the_straggler_points_to_the_others(written):
    shown = written(
        phases={0: [], 1: [], 2: []},
        collectives=[
            (0, 5, BASE + 10, BASE + 100, 30, 2),
            (1, 5, BASE + 20, BASE + 90, 20, 2),
            (2, 5, BASE + 40, BASE + 80, 0, 2),
            (0, 6, BASE + 200, BASE + 220, None, None),  # not matched: neither halves nor arrows
        ],
    )
    assert shown.named("rank 0", "collectives") == [
        ("all_reduce", BASE + 10, BASE + 100),
        ("all_reduce", BASE + 200, BASE + 220),
        ("transfer", BASE + 10 + 30, BASE + 100),
        ("waiting", BASE + 10, BASE + 10 + 30),
    ]
    assert shown.named("rank 2", "collectives") == [
        ("all_reduce", BASE + 40, BASE + 80),
        ("transfer", BASE + 40, BASE + 80),
    ]
    # One nanosecond within, so that no viewer binds the arrow to the waiting that ends there.
    assert sorted(shown.arrows) == [
        (("rank 2", "transfer"), BASE + 40, (f"rank {rank}", "transfer"), BASE + 40 + 1) for rank in (0, 1)
    ]
    always = {"group": "default", "phase": "sync", "bytes": 4096, "group_size": 2}
    always["bus_bandwidth_GB_per_s"] = Decimal("2.5")  # the other bandwidth and the sequence are missing: not said
    split = {"waiting_us": Decimal("0.02"), "transfer_us": Decimal("0.05"), "straggler": 2, "matched_by": "order"}
    said = {item.end_ns - BASE: args for item, args in zip(shown.slices, shown.args, strict=True) if args}
    assert (said[90], said[220]) == (always | split, always)


def test_no_arrow_goes_back_in_time(written):
    # Rank 0 has finished before rank 1 arrives, as clocks that are not corrected may have it.
    shown = written(
        phases={0: [], 1: []},
        collectives=[(0, 0, BASE + 10, BASE + 20, 10, 1), (1, 0, BASE + 50, BASE + 60, 0, 1)],
    )
    assert shown.arrows == []
    assert shown.named("rank 0", "collectives") == [
        ("all_reduce", BASE + 10, BASE + 20),
        ("waiting", BASE + 10, BASE + 20),
    ]


def test_touching_pieces_of_one_kind_are_one_slice_and_empty_ones_none(written):
    intervals = [
        (0, "rank", "compute", "sync", BASE, BASE + 5),
        (0, "rank", "compute", "sync", BASE + 5, BASE + 8),
        (0, "rank", "compute", "loss", BASE + 8, BASE + 9),
        (0, "rank", "compute", "loss", BASE + 9, BASE + 9),
        (0, "rank", "compute", "loss", BASE + 10, BASE + 11),
    ]
    shown = written(phases={0: []}, intervals=intervals)
    expected = [(0, 8), (8, 9), (10, 11)]
    assert shown.named("rank 0", "activity") == [("compute", BASE + first, BASE + last) for first, last in expected]


span = st.tuples(st.integers(0, 5000), st.integers(0, 5000)).map(lambda pair: (min(pair), max(pair)))
offset = st.integers(-3000, 3000)
job = st.fixed_dictionaries(
    {
        "offsets": st.tuples(offset, offset),
        "phases": st.lists(st.tuples(st.integers(0, 1), st.sampled_from(PHASES), span), max_size=12),
        "intervals": st.lists(
            st.tuples(
                st.integers(0, 1),
                st.sampled_from(["rank", "gpu stream 7", "gpu stream 20"]),
                st.sampled_from(CATEGORIES),
                st.sampled_from(PHASES[:2]),
                span,
            ),
            max_size=12,
        ),
        "collectives": st.lists(st.tuples(span, span, st.booleans()), max_size=6),
        "path": st.lists(st.tuples(st.integers(0, 1), span), max_size=5),
    }
)


@settings(max_examples=60)
@given(job=job)
def test_whatever_the_job_the_file_keeps_to_the_format_and_loses_nothing(tmp_path_factory, job):
    offsets = dict(enumerate(job["offsets"]))
    phases = {0: [], 1: []}
    for rank, name, (start, end) in job["phases"]:
        phases[rank].append((name, BASE + start, BASE + end))
    collectives = []
    for number, (*spans, matched) in enumerate(job["collectives"]):
        last = max((0, 1), key=lambda rank: spans[rank][0] - offsets[rank])
        arrival = spans[last][0] - offsets[last]
        for rank, (start, end) in enumerate(spans):
            wait = min(max(arrival + offsets[rank], start), end) - start
            state = (wait, last) if matched else (None, None)
            collectives.append((rank, number, BASE + start, BASE + end, *state))
    intervals = [(*what, BASE + start, BASE + end) for *what, (start, end) in job["intervals"]]
    path = [
        (rank, place, "phase", "sync", "compute", None, BASE + start, BASE + end, 5)
        for place, (rank, (start, end)) in enumerate(job["path"])
    ]
    folder = tmp_path_factory.getbasetemp()
    shown = write_and_check(folder, phases, None, collectives, intervals, path, offsets)

    seen = Counter(item[:5] for item in shown.slices if item.track in ("phases", "collectives", "steps"))
    assert seen == _expected(phases, collectives, offsets)
    assert _time_by_kind(shown.slices) == _time_of(intervals, offsets)
    through = Counter(item[1:5] for item in shown.slices if item.process == "critical path")
    assert through == Counter((f"through rank {row[0]}", "compute", row[6], row[7]) for row in path if row[7] > row[6])
    assert all(arrow.source_ns <= arrow.target_ns for arrow in shown.arrows)
    assert {arrow.source[1] for arrow in shown.arrows} | {arrow.target[1] for arrow in shown.arrows} <= {"transfer"}


def _expected(phases, collectives, offsets):
    """Every slice with a length that phases, collectives and steps of the default job must give, with its number."""
    result = Counter()

    def add(rank, track, name, start, end):
        if end > start:
            result[f"rank {rank}", track, name, start - offsets[rank], end - offsets[rank]] += 1

    for rank, rows in phases.items():
        add(rank, "steps", "step 3", BASE, BASE + 1000)
        for name, start, end in rows:
            add(rank, "phases", name, start, end)
    for rank, _, start, end, wait, _ in collectives:
        add(rank, "collectives", "all_reduce", start, end)
        if wait is not None:
            add(rank, "collectives", "waiting", start, start + wait)
            add(rank, "collectives", "transfer", start + wait, end)
    return result


def _time_by_kind(slices):
    total = Counter()
    for item in slices:
        if item.track not in ("steps", "phases", "collectives") and item.process != "critical path":
            track = "rank" if item.track == "activity" else item.track
            total[item.process, track, item.name] += item.end_ns - item.start_ns
    return total


def _time_of(intervals, offsets):
    total = Counter()
    for rank, stream, category, _, start, end in intervals:
        total[f"rank {rank}", stream, category] += end - start
    return +total


def test_equal_jobs_give_equal_bytes(written, tmp_path):
    arguments = {
        "phases": {0: [("sync", BASE, BASE + 50)], 1: []},
        "collectives": [(0, 0, BASE, BASE + 9, 0, 0)],
        "intervals": [(1, "rank", "idle", "other", BASE, BASE + 9)],
    }
    written(**arguments)
    first = (tmp_path / "timeline.json.gz").read_bytes()
    written(**arguments)
    assert (tmp_path / "timeline.json.gz").read_bytes() == first
    assert first[4:8] == bytes(4)  # where gzip would have the time


def test_above_its_bounds_the_file_says_what_it_merged_and_left_out(written, monkeypatch):
    monkeypatch.setattr(timeline, "MOST_PIECES", 10)
    monkeypatch.setattr(timeline, "MOST_ANNOTATIONS", 3)
    # 100 pieces of 500 ns, each followed by 500 ns without: within 16 us lie 16 of them, so that 7 cells hold all.
    intervals = [(0, "rank", "compute", "other", BASE + 1000 * at, BASE + 1000 * at + 500) for at in range(100)]
    shown = written(
        phases={0: [("sync", BASE + 100 * at, BASE + 100 * at + at) for at in range(1, 7)]},
        collectives=[(0, at, BASE + 100 * at, BASE + 100 * at + at, None, None) for at in range(1, 6)],
        intervals=intervals,
        path=[(0, at, "phase", "sync", "idle", None, BASE + 10 * at, BASE + 10 * at + at, 1) for at in range(1, 5)],
    )
    activity = shown.named("rank 0", "activity")
    assert activity[0] == ("compute", BASE, BASE + 15_500)
    assert len(activity) == math.ceil(100 / 16)
    merged = [args["merged"] for item, args in zip(shown.slices, shown.args, strict=True) if item.track == "activity"]
    assert merged == [16] * 6 + [4]
    assert shown.named("rank 0", "phases") == [("sync", BASE + 100 * at, BASE + 101 * at) for at in (4, 5, 6)]
    assert shown.about["left_out"] == [
        "activity shorter than 16 us is merged with its neighbours",
        "of 6 phases the longest 3 are shown",
        "of 5 pieces of communication the longest 3 are shown",
        "of 4 elements of the critical path the longest 3 are shown",
    ]


def test_the_program_writes_a_timeline_that_keeps_to_the_format(tmp_path, new_trace):
    for rank in range(2):
        trace = new_trace(rank, 2)
        trace.step(3, 1000, 1200)
        trace.phase("aggregate", 1010, 1100)
        trace.op("aten::mm", 1010, 1040)
        trace.gloo("all_reduce", 1100 + 20 * rank, 1150)
        trace.write(tmp_path / "traces", f"rank{rank}.json")
    manifest = parse_traces(tmp_path / "traces", tmp_path / "out")
    shown = check(tmp_path / "out" / "timeline.json.gz")
    assert shown.about["kind"] == "CPU and Gloo"
    assert manifest["trace_kind"] == "cpu-gloo"
    for rank in range(2):
        steps = shown.named(f"rank {rank}", "steps")
        assert [(name, end - start) for name, start, end in steps] == [("step 3", 200_000)]
        assert [name for name, _, _ in shown.named(f"rank {rank}", "phases")] == ["aggregate"]
    assert [item.name for item in shown.slices if item[:2] == ("rank 0", "collectives")] == [
        "waiting",
        "transfer",
        "all_reduce",
    ]
    assert [(arrow.source, arrow.target) for arrow in shown.arrows] == [
        (("rank 1", "transfer"), ("rank 0", "transfer"))
    ]

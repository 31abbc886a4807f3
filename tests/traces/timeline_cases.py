"""Timelines of made-up jobs, and a checker of the Trace Event Format that knows nothing of how they are written."""

import gzip
import json
import math
from collections import defaultdict
from decimal import Decimal
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from anatomy.traces.columns import MISSING, Named
from anatomy.traces.job.timeline import write_timeline
from anatomy.traces.rank.annotations import PHASES
from anatomy.traces.rank.decomposition import CATEGORIES

BASE = 1_694_128_201_554_123_456
"""A time stamp of today's length, which float64 rounds to multiples of 256 ns."""


class Slice(NamedTuple):
    process: str
    track: str
    name: str
    start_ns: int
    end_ns: int
    depth: int


class Arrow(NamedTuple):
    source: tuple[str, str]
    source_ns: int
    target: tuple[str, str]
    target_ns: int


class Checked(NamedTuple):
    about: dict
    slices: list[Slice]
    arrows: list[Arrow]
    args: list[dict]
    tracks: list[tuple[str, str]]
    labels: dict[str, str]

    def named(self, process, track):
        """(name, start, end) of the slices of a process's tracks of one name, in order of time."""
        return sorted(item[2:5] for item in self.slices if item[:2] == (process, track))


def check(path):
    """Assert that a file keeps to the format, and return what it shows, with times as they were put in."""
    content = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal, parse_constant=pytest.fail)
    assert content["displayTimeUnit"] == "ns"
    events = content["traceEvents"]
    facts = defaultdict(dict)
    while events and events[0]["ph"] == "M":
        event = events.pop(0)
        facts[event["pid"], event.get("tid")][event["name"]] = next(iter(event["args"].values()))
    threads = [key for key in facts if key[1] is not None]
    numbers = [tid for _, tid in threads]
    assert len(set(numbers)) == len(numbers), "threads of different processes have one number"
    assert not {pid for pid, _ in facts} & set(numbers), "a thread has the number of a process"
    process = {pid: known["process_name"] for (pid, tid), known in facts.items() if tid is None}
    track = {tid: known["thread_name"] for (_, tid), known in facts.items() if tid is not None}
    base = int(content["otherData"]["base_time_ns"])
    slices, arrows, args = _replay(events, base, process, track)
    place = {key: (facts[key[0], None]["process_sort_index"], facts[key]["thread_sort_index"]) for key in threads}
    labels = {process[pid]: known["process_labels"] for (pid, _), known in facts.items() if "process_labels" in known}
    tracks = [(process[pid], track[tid]) for pid, tid in sorted(place, key=place.get)]
    return Checked(content["otherData"], slices, arrows, args, tracks, labels)


def _replay(events, base, process, track):
    """Play the events one by one, as a viewer does."""
    stacks, last, tails, slices, arrows, args = defaultdict(list), 0, {}, [], [], []
    for event in events:
        nanoseconds = Decimal(event["ts"]) * 1000
        assert nanoseconds == int(nanoseconds), "finer than a nanosecond"
        assert last <= nanoseconds, "not sorted"
        last, now = nanoseconds, base + int(nanoseconds)
        where = (process[event["pid"]], track[event["tid"]])
        stack = stacks[event["pid"], event["tid"]]
        if event["ph"] == "B":
            assert event["name"]
            stack.append((event, now))
        elif event["ph"] == "E":
            begun, start = stack.pop()
            assert now > start, "a slice without length"
            slices.append(Slice(*where, begun["name"], start, now, len(stack)))
            args.append(begun.get("args", {}))
        elif event["ph"] == "s":
            assert event["id"] not in tails, "two arrows of one number"
            assert stack, "an arrow from nowhere"
            tails[event["id"]] = (event["cat"], event["name"]), (where[0], stack[-1][0]["name"]), now
        else:
            assert (event["ph"], event["bp"]) == ("f", "e")
            name, source, left = tails.pop(event["id"])
            assert (event["cat"], event["name"]) == name
            assert stack, "an arrow to nowhere"
            arrows.append(Arrow(source, left, (where[0], stack[-1][0]["name"]), now))
    assert not any(stacks.values()), "a slice that never ends"
    assert not tails, "an arrow that never arrives"
    assert min(item.start_ns for item in slices) == base
    return slices, arrows, args


def table(columns, rows, named=()):
    """Columns from rows: of integers, where None is missing; of codes of phases and categories; elements as text; and
    where `named` has a column, with its names."""
    names = columns.split()
    cells = zip(*rows, strict=True) if rows else [()] * len(names)
    return {name: _column(name, values, name in named) for name, values in zip(names, cells, strict=True)}


def _column(name, values, named):
    if name == "element":
        return np.array(values, dtype=object)
    if name in ("phase", "category", "stream"):
        names = {"phase": PHASES, "category": CATEGORIES}.get(name, tuple(dict.fromkeys(values)))
        codes = np.array([names.index(value) for value in values], dtype=np.int64)
        return Named(codes.astype(np.int8), names) if named else codes
    return np.array([MISSING if value is None else value for value in values], dtype=np.int64)


def collective_rows(rows):
    """A collectives table from (rank, number, start, end, wait or None, straggler or None)."""
    columns = table("rank collective start_ns end_ns wait_ns straggler", rows)
    known, count = columns["wait_ns"] != MISSING, len(columns["rank"])
    always = {"phase": PHASES.index("sync"), "bytes": 4096, "group_size": 2, "sequence": MISSING}
    always |= {"algorithm_bandwidth": math.nan, "bus_bandwidth": 2.5e9}
    columns |= {name: np.full(count, value) for name, value in always.items()}
    columns |= {name: np.full(count, value, object) for name, value in (("kind", "all_reduce"), ("group", "default"))}
    transfer_ns = columns["end_ns"] - columns["start_ns"] - np.where(known, columns["wait_ns"], 0)
    columns["transfer_ns"] = np.where(known, transfer_ns, MISSING)
    columns["matched_by"] = np.where(known, "order", None)
    return columns


def write_and_check(
    folder, phases, steps=None, collectives=(), intervals=(), path=(), offsets=None, kind="cpu-gloo", clocks=()
):
    """Write the timeline of a job and check it. `phases` is by rank: (name, start, end); the other tables are rows."""
    records = {}
    for rank, rows in phases.items():
        columns = np.array([(PHASES.index(name), start, end) for name, start, end in rows], dtype=np.int64)
        columns = dict(zip(("phase", "start_ns", "end_ns"), columns.reshape(-1, 3).T, strict=True))
        records[rank] = SimpleNamespace(phases=columns)
    steps = [(rank, 3, BASE, 1000) for rank in phases] if steps is None else steps
    tables = {
        "steps": table("rank step start_ns wall_ns", steps),
        "collectives": collective_rows(collectives),
        "intervals": table("rank stream category phase start_ns end_ns", intervals, ("stream", "category", "phase")),
        "critical_path": table("rank place element phase category collective start_ns end_ns slack_to_next_ns", path),
        "clocks": table("rank offset_ns", clocks),
    }
    offsets = dict.fromkeys(phases, 0) if offsets is None else offsets
    write_timeline(folder / "timeline.json.gz", records, tables, offsets, {"trace_kind": kind})
    return check(folder / "timeline.json.gz")

"""Cutting and decoding: however a trace is written and cut, its events are those of its JSON as a whole."""

import gzip
import json
import math
import re
import tempfile
import tracemalloc
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anatomy.errors import StudyError
from anatomy.traces.naming import is_communication
from anatomy.traces.options import ParseOptions
from anatomy.traces.reading import events as events_module
from anatomy.traces.reading.collecting import KINDS
from anatomy.traces.reading.events import GPU_KINDS, Kind, assemble
from anatomy.traces.reading.times import EXACT_FLOAT, nanoseconds, of_durations, of_numbers, of_texts
from anatomy.traces.reading.trace import read_trace

LENIENT = ParseOptions(max_dropped_share=1)

NASTY = [
    "},{",
    "}, {",
    "},\n  {",
    '"',
    '\\"',
    "\\",
    "]",
    "[{",
    "}]",
    "\u2028",
    "é😀",
    "{",
    "nccl:",
    "gloo:",
    "NaN, inf",
    "\ufffd",
]
names = st.lists(st.sampled_from(["aten::mm", "nccl:all_reduce", "phase:copy", *NASTY]), max_size=3).map("".join)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, width=32), names),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=5,
)
stamps = st.one_of(
    st.integers(0, 2**63).map(str),
    st.integers(1, 2**52).map(lambda ns: f"{ns // 1000}.{ns % 1000:03d}"),
    st.integers(0, 999).map(lambda ns: f"1694128201554123.{ns:03d}"),
    st.sampled_from(["1e3", '"17.25"', "null", "-4", "0", "true", "[]", "1694128201554123"]),
)
durations = st.one_of(
    st.integers(0, 10**9), st.integers(0, 10**9).map(lambda ns: ns / 1000), st.sampled_from([-1, None, "5"])
)
correlations = st.one_of(st.integers(0, 3), st.none(), st.just(2**70))
events = st.fixed_dictionaries(
    {
        "ph": st.sampled_from(["X", "X", "X", "X", "i", "B"]),
        "cat": st.sampled_from([*KINDS, "Kernel", "cuda_sync", "ac2g"]),
    },
    optional={
        "name": names,
        "pid": st.one_of(st.integers(0, 3), st.just("Spans")),
        "tid": st.one_of(st.integers(0, 9), st.just("PyTorch Profiler"), st.none()),
        "ts": stamps.map(lambda text: f"@{text}@"),
        "dur": durations,
        "args": st.one_of(
            st.fixed_dictionaries({}, optional={"stream": st.one_of(st.integers(0, 9), st.none()), "x": values}),
            st.dictionaries(names, values, max_size=2),
            st.none(),
        ),
        "id": values,
    },
)


usual = st.lists(
    st.builds(
        lambda cat, name, tid, ts, dur, stream, more: {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": 1,
            "tid": tid,
            "ts": f"@{ts}@",
            "dur": dur,
            "args": {"stream": stream, "shape": more},
        },
        st.sampled_from(["cpu_op", "kernel", "user_annotation"]),
        names,
        st.integers(0, 9),
        st.integers(1, 2**52).map(lambda ns: f"{ns // 1000}.{ns % 1000:03d}"),
        st.integers(0, 10**9).map(lambda ns: ns / 1000),
        st.integers(0, 9),
        names | st.lists(st.dictionaries(names, names, max_size=1), max_size=3),
    ),
    min_size=20,
    max_size=30,
)
"""What a profiler writes, but for the names and one argument."""


def dumped(content, indent, separators):
    """JSON in which a string between at signs stands for the text between them."""
    text = json.dumps(content, indent=indent, separators=separators, ensure_ascii=False)
    return re.sub(r'"@((?:[^"\\]|\\.)*)@"', lambda match: json.loads(f'"{match[1]}"'), text)


def expected(content):
    """Events as a list of tuples in the order of `Events`, straight from parsed JSON."""
    result = []
    for event in content:
        kind = KINDS.get(event["cat"].lower())
        start, length = nanoseconds(event.get("ts", "").strip('@"')), event.get("dur")
        length = None if isinstance(length, str) else nanoseconds(length)
        if event["ph"] != "X" or kind is None or start is None or start <= 0 or length is None or length < 0:
            continue
        name, args, tid = event.get("name", ""), event.get("args") or {}, event.get("tid", "")
        if kind == Kind.OP and name.startswith("phase:"):
            kind = Kind.ANNOTATION
        stream = args.get("stream", tid) if args.get("stream") is not None else tid
        stream = stream if kind in GPU_KINDS and isinstance(stream, int) else -1
        thread = f"{event.get('pid', '')}/{tid}"
        kept = args if is_communication(name) else None
        result.append((int(kind), name, thread, start, start + length, stream, kept))
    return sorted(result, key=lambda row: (row[3], -row[4]))


def found(read):
    columns = zip(
        read.kind.tolist(),
        [read.names[code] for code in read.name],
        [read.threads[code] for code in read.thread],
        read.start_ns.tolist(),
        read.end_ns.tolist(),
        read.stream.tolist(),
        strict=True,
    )
    return [(*row, read.args.get(place)) for place, row in enumerate(columns)]


styles = st.sampled_from([(None, (",", ":")), (None, (", ", ": ")), (2, (",", ": "))])


@settings(max_examples=60)
@given(content=usual, style=styles, chunk_bytes=st.sampled_from([100, 1000, 3000]))
def test_usual_events_are_cut_in_the_right_places(content, style, chunk_bytes):
    data = dumped(content, *style).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.json"
        path.write_bytes(data)
        assert found(read_trace(path, LENIENT, chunk_bytes).events) == expected(content)


@settings(max_examples=120)
@given(
    content=st.lists(events, max_size=12),
    style=styles,
    beside=st.dictionaries(names, values, max_size=2),
    order=st.permutations(["distributedInfo", "traceEvents", "beside"]),
    chunk_bytes=st.sampled_from([1, 50, 333, 2**18]),
    zipped=st.booleans(),
)
def test_events_are_those_of_the_whole_json(content, style, beside, order, chunk_bytes, zipped):
    parts = {
        "distributedInfo": {"distributedInfo": {"rank": 3, "pg": beside}},
        "traceEvents": {"traceEvents": content},
        "beside": beside,
    }
    whole = {}
    for part in order:
        whole |= parts[part]
    data = dumped(whole, *style).encode()
    rows = expected(content)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("a.json.gz" if zipped else "a.json")
        path.write_bytes(gzip.compress(data) if zipped else data)
        if not rows:
            with pytest.raises(StudyError, match=r"usable time|no operator"):
                read_trace(path, ParseOptions(max_dropped_share=0), chunk_bytes)
            return
        trace = read_trace(path, LENIENT, chunk_bytes)
    assert found(trace.events) == rows
    assert trace.rank == 3


@pytest.mark.parametrize("style", [(None, (",", ":")), (2, (",", ": "))])
@pytest.mark.parametrize("chunk_bytes", [20, 2**18])
def test_a_text_cut_anywhere_is_called_truncated(tmp_path, new_trace, style, chunk_bytes):
    trace = new_trace(rank=3)
    trace.op('aten::"mm"}, {', 10, 15)
    trace.gloo("all_reduce", 20, 25, shape=[[1, 2], {"a": None}])
    trace.content["traceName"] = "x"
    data = dumped(trace.content, *style).encode()
    path = tmp_path / "rank3.json"
    for length in range(1, len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(StudyError, match=f"rank 3, .*truncated JSON: the text ends at byte {length} within"):
            read_trace(path, LENIENT, chunk_bytes)


def test_a_gzip_cut_anywhere_is_called_truncated(tmp_path, new_trace):
    trace = new_trace()
    trace.op("aten::mm", 10, 15)
    path = trace.write(tmp_path, "rank0.json.gz")
    data = path.read_bytes()
    for length in range(2, len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(StudyError, match=f"truncated gzip: .* byte {length}"):
            read_trace(path, LENIENT)


@pytest.mark.parametrize("block_bytes", [1, 100, 2**18])
def test_all_members_of_a_gzip_are_read(tmp_path, new_trace, block_bytes):
    trace = new_trace()
    trace.op("aten::mm", 10, 15)
    data = trace.text().encode()
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(data[:100]) + gzip.compress(b"") + gzip.compress(data[100:]) + bytes(512))
    assert len(read_trace(path, LENIENT, block_bytes).events) == 1


def test_a_long_value_beside_the_events_is_not_kept_in_memory(tmp_path, new_trace):
    trace = new_trace()
    trace.op("aten::mm", 10, 15)
    trace.content = {"stackFrames": {str(place): {"name": "f" * 50} for place in range(60_000)}} | trace.content
    path = trace.write(tmp_path, "rank0.json.gz")
    tracemalloc.start()
    read_trace(path, LENIENT)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The value has more than 60,000 x 70 bytes, a chunk 2**18, and what is cut from one is copied a few times.
    assert peak < 8 * 2**18


@given(st.integers(1, 2**43 * 1000 - 1))
def test_floats_below_their_limit_are_exact(ns):
    text = f"{ns // 1000}.{ns % 1000:03d}"
    assert of_numbers([float(text)]).tolist() == [ns]


@given(st.lists(st.integers(1, 2**62 - 1), min_size=1, max_size=5), st.integers(0, 3))
def test_texts_are_exact(times_ns, num_decimals):
    times_ns = [ns // 10 ** (3 - num_decimals) * 10 ** (3 - num_decimals) for ns in times_ns]
    texts = [f"{ns // 1000}.{ns % 1000:03d}".encode() for ns in times_ns]
    texts = [text[: len(text) - 3 + num_decimals].removesuffix(b".") for text in texts]
    assert of_texts(texts).tolist() == times_ns


def test_numbers_of_which_only_the_text_is_exact_are_not_taken():
    assert of_numbers([EXACT_FLOAT, 0.5]) is None
    assert of_numbers([1, 2**63]) is None
    assert of_numbers([1, 10**400]) is None
    # All integers below 2**53 are exact, and of those in int64 Python makes no float.
    assert of_numbers([2**50 + 1, 0, -1, 2**61]).tolist() == [(2**50 + 1) * 1000, 0, 0, 0]


def test_durations_that_are_none_or_too_long_are_beyond_all_others():
    assert of_durations([1.5, math.nan, math.inf, 1e300, -1]).tolist() == [1500, 2**62, 2**62, 2**62, -1000]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=30),
    st.sampled_from([1, 2, 2**16]),
)
def test_events_are_sorted_by_start_and_the_longest_first(spans, num_runs):
    start_ns, end_ns = np.array([[start, start + length] for start, length in spans], dtype=np.int64).reshape(-1, 2).T
    zeros = np.zeros(len(spans), dtype=np.int32)
    columns = {"start_ns": start_ns, "end_ns": end_ns, "kind": zeros, "thread": zeros, "stream": zeros}
    columns["name"] = np.arange(len(spans), dtype=np.int32)
    with mock.patch.object(events_module, "NUM_RUNS", num_runs):
        read, _ = assemble(columns, zeros, ("",) * len(spans), ("",), {row: {"row": row} for row in range(len(spans))})
    order = sorted(range(len(spans)), key=lambda row: (spans[row][0], -spans[row][1]))
    assert read.name.tolist() == order
    assert [read.args[place]["row"] for place in range(len(spans))] == order


@pytest.mark.shared_data
def test_real_traces_are_read_as_their_json_says(shared_data):
    for path in sorted((shared_data / "traces").glob("*/*.json.gz")):
        with gzip.open(path) as file:
            content = json.load(file, parse_float=str)
        base_ns = content.get("baseTimeNanoseconds", 0)
        for event in content["traceEvents"]:
            event.setdefault("cat", "")
            event["ts"] = str(event["ts"])
            event["dur"] = float(event.get("dur", 0))
        rows = expected(content["traceEvents"])
        trace = read_trace(path, ParseOptions(max_dropped_share=0), chunk_bytes=30_000)
        read = [(*row[:3], row[3] - base_ns, row[4] - base_ns, row[5]) for row in found(trace.events)]
        assert read == [row[:-1] for row in rows]
        assert (trace.rank, trace.world_size) == tuple(
            content["distributedInfo"][key] for key in ("rank", "world_size")
        )

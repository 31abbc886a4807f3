"""From bytes to events: exact times, and one message for every kind of damage."""

import gzip

import pytest

from anatomy.errors import StudyError
from anatomy.traces.reading import nanoseconds, read_trace


def write(folder, name, data):
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.fixture
def one_op(new_trace):
    """A trace of one operator from 10 to 15 us."""
    trace = new_trace()
    trace.op("aten::mm", 10, 15)
    return trace


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1694128201554123, 1694128201554123000),
        ("1694128201554123.456", 1694128201554123456),
        ("4458676416788.066", 4458676416788066),
        ("0.5", 500),
        ("12.34567", 12346),
        (222442.191, 222442191),
        ("-3.25", -3250),
        (2**63, None),
        (float("nan"), None),
        (float("inf"), None),
        ("soon", None),
        (None, None),
        (True, None),
    ],
)
def test_microseconds_become_integer_nanoseconds(value, expected):
    assert nanoseconds(value) == expected


def test_time_stamps_are_exact_beyond_what_float64_holds(tmp_path, one_op):
    # float64 has steps of 0.25 us at 1.7e15 us: as a float, .456 would be read as .5.
    text = one_op.text().replace('"ts": 10', '"ts": 1694128201554123.456')
    events = read_trace(write(tmp_path, "rank0.json", text.encode())).events
    assert events["start_ns"].tolist() == [1694128201554123456]
    assert events["end_ns"].tolist() == [1694128201554128456]


def test_the_base_time_of_newer_profilers_is_added(tmp_path, one_op):
    one_op.content["baseTimeNanoseconds"] = 1_711_964_646_000_000_000
    events = read_trace(one_op.write(tmp_path, "rank0.json.gz")).events
    assert events["start_ns"].tolist() == [1_711_964_646_000_010_000]


def test_plain_and_gzipped_traces_are_the_same(tmp_path, one_op):
    plain = read_trace(one_op.write(tmp_path, "rank0.json")).events
    assert plain.equals(read_trace(one_op.write(tmp_path, "rank0.json.gz")).events)


def test_a_bare_list_of_events_is_a_trace(tmp_path):
    text = b'[{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1,"dur":2}]'
    trace = read_trace(write(tmp_path, "a.json", text))
    assert len(trace.events) == 1
    assert trace.rank is None


def cut(data, count):
    return data[:-count]


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("rank3.json.gz", lambda text: cut(gzip.compress(text), 4), "truncated gzip"),
        ("rank3.json.gz", lambda text: cut(gzip.compress(text), 40), "truncated gzip"),
        ("rank3.json.gz", lambda text: gzip.compress(text)[:-8] + b"12345678", "damaged or truncated gzip"),
        ("rank3.json.gz", lambda text: gzip.compress(cut(text, 4)), "truncated JSON"),
        ("rank3.json", lambda text: cut(text, 40), "truncated JSON"),
        ("rank3.json", lambda text: text.replace(b'"ts":', b'"ts"'), "not valid JSON near byte"),
        ("rank3.json.gz", lambda text: text, "found no gzip"),
        ("rank3.json", gzip.compress, "found gzip"),
        ("rank3.json", lambda text: b"", "empty"),
        ("rank3.json", lambda text: b"<!DOCTYPE html><html></html>", "HTML"),
        ("rank3.json", lambda text: b'{"rank": 3}', "traceEvents"),
        ("rank3.json", lambda text: b"3", "traceEvents"),
    ],
)
def test_a_damaged_file_is_one_message_that_names_it(tmp_path, one_op, name, damage, message):
    path = write(tmp_path, name, damage(one_op.text().encode()))
    with pytest.raises(StudyError, match=message) as raised:
        read_trace(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_strict_json_forbids_is_read_where_it_can_be(tmp_path, one_op):
    one_op.op("aten::NAME", 20, 25)
    text = one_op.text().encode().replace(b"NAME", b"a\xffd\\q\x01")
    text = text.replace(b'"dur": 5, "args": {}', b'"dur": 5, "args": {"share": NaN, "other": -Infinity, "third": inf}')
    trace = read_trace(write(tmp_path, "rank0.json", b"\xef\xbb\xbf" + text))
    assert trace.events["name"].tolist() == ["aten::mm", "aten::a�d\\q\x01"]
    assert trace.notes == ["1 bytes that are not UTF-8 were replaced", "6 NaN or infinite values were read as missing"]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("dur", -1, "negative duration"),
        ("dur", "5", "bad duration"),
        ("dur", None, "bad duration"),
        ("ts", 0, "bad time stamp"),
        ("ts", 2**64, "bad time stamp"),
    ],
)
def test_events_without_a_usable_time_are_dropped_and_counted(tmp_path, new_trace, field, value, reason):
    trace = new_trace()
    for start in range(10, 500, 10):
        trace.op("aten::mm", start, start + 5)
    trace.content["traceEvents"][0][field] = value
    read = read_trace(trace.write(tmp_path, "rank0.json"))
    assert len(read.events) == 48
    assert len(read.notes) == 1
    assert "1 with" in read.notes[0]
    assert reason in read.notes[0]


def test_too_many_events_without_a_usable_time_are_an_error(tmp_path, one_op):
    one_op.op("aten::mm", 5, 4)
    with pytest.raises(StudyError, match="1 of 2 events have no usable time"):
        read_trace(one_op.write(tmp_path, "rank0.json"))


def test_a_trace_with_only_metadata_is_an_error(tmp_path, new_trace):
    trace = new_trace()
    trace.content["traceEvents"] = [{"ph": "M", "name": "process_name", "pid": 1, "ts": 1, "args": {"name": "python"}}]
    with pytest.raises(StudyError, match="no operator, kernel or annotation among its 1 events"):
        read_trace(trace.write(tmp_path, "rank0.json"))


def test_synchronisation_rows_and_the_profilers_own_spans_are_left_out(tmp_path, one_op):
    one_op.event("cuda_sync", "Stream Wait Event", 0.5, 100)
    one_op.event("Trace", "PyTorch Profiler (0)", 1, 100)
    assert read_trace(one_op.write(tmp_path, "rank0.json")).events["name"].tolist() == ["aten::mm"]


def test_a_kernel_knows_when_it_was_launched(tmp_path, new_trace):
    trace = new_trace()
    trace.kernel("gemm", 30, 40, launch=20)
    trace.kernel("gemm", 50, 60)
    events = read_trace(trace.write(tmp_path, "rank0.json")).events
    kernels = events[events["kind"] == "kernel"]
    assert kernels["launched_ns"].tolist() == [20_000, 50_000]
    assert kernels["launch_thread"].tolist() == ["1/100", "1/7"]

"""From bytes to events: exact times, and one message for every kind of damage."""

import gzip

import numpy as np
import pytest

from anatomy.errors import StudyError
from anatomy.traces.options import ParseOptions
from anatomy.traces.reading.events import Kind
from anatomy.traces.reading.times import nanoseconds
from anatomy.traces.reading.trace import read_trace


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
        ("1.5e3", 1_500_000),
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


def read(path, **options):
    return read_trace(path, ParseOptions(**options))


def names_of(events):
    return [events.names[code] for code in events.name]


def test_time_stamps_are_exact_beyond_what_float64_holds(tmp_path, one_op):
    # float64 has steps of 0.25 us at 1.7e15 us: as a float, .456 would be read as .5.
    text = one_op.text().replace('"ts": 10', '"ts": 1694128201554123.456')
    events = read(write(tmp_path, "rank0.json", text.encode())).events
    assert events.start_ns.tolist() == [1694128201554123456]
    assert events.end_ns.tolist() == [1694128201554128456]


@pytest.mark.parametrize("first", [True, False])
def test_the_base_time_of_newer_profilers_is_added(tmp_path, one_op, first):
    base = {"baseTimeNanoseconds": 1_711_964_646_000_000_000}
    one_op.content = base | one_op.content if first else one_op.content | base
    events = read(one_op.write(tmp_path, "rank0.json.gz")).events
    assert events.start_ns.tolist() == [1_711_964_646_000_010_000]
    assert events.end_ns.tolist() == [1_711_964_646_000_015_000]


def test_a_time_that_the_base_makes_too_large_is_dropped(tmp_path, one_op):
    one_op.op("aten::add", 2**52, 2**52 + 1)
    one_op.gloo("all_reduce", 20, 25, shape=1)
    # 2**52 us are 4.5e18 ns, and with 2**61 = 2.3e18 ns more than 2**62.
    one_op.content["baseTimeNanoseconds"] = 2**61
    trace = read(one_op.write(tmp_path, "rank0.json"), max_dropped_share=0.5)
    assert names_of(trace.events) == ["aten::mm", "gloo:all_reduce"]
    assert trace.events.args == {1: {"shape": 1}}
    assert trace.notes == ("dropped events: 1 with a bad time stamp",)


def test_a_bare_list_of_events_is_a_trace(tmp_path):
    text = b'[{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1,"dur":2}]'
    trace = read(write(tmp_path, "a.json", text))
    assert len(trace.events) == 1
    assert (trace.rank, trace.world_size) == (None, None)


def cut(data, count):
    return data[:-count]


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("rank3.json.gz", lambda text: cut(gzip.compress(text), 4), "truncated gzip"),
        ("rank3.json.gz", lambda text: cut(gzip.compress(text), 40), "truncated gzip"),
        ("rank3.json.gz", lambda text: gzip.compress(text)[:-8] + b"12345678", "damaged gzip .*checksum"),
        ("rank3.json.gz", lambda text: gzip.compress(text)[:10] + b"12345678", "damaged gzip"),
        ("rank3.json.gz", lambda text: gzip.compress(cut(text, 4)), "truncated JSON: the text ends at byte"),
        ("rank3.json.gz", lambda text: gzip.compress(cut(text, 4))[:-8] + b"12345678", "damaged gzip"),
        ("rank3.json", lambda text: cut(text, 40), "truncated JSON: the text ends at byte"),
        ("rank3.json", lambda text: text.replace(b'"ts":', b'"ts"'), "not valid JSON near byte"),
        ("rank3.json", lambda text: text.replace(b'"aten', b'"aten"'), "not valid JSON near byte"),
        ("rank3.json", lambda text: text.replace(b"}]", b"},]"), "not valid JSON near byte"),
        ("rank3.json", lambda text: text.replace(b"}]", b"}}"), "not valid JSON near byte .*expected ]"),
        ("rank3.json", lambda text: text.replace(b"[{", b"[[{"), "not valid JSON near byte"),
        ("rank3.json", lambda text: text.replace(b"}, {", b"} {"), "not valid JSON near byte"),
        ("rank3.json", lambda text: text.replace(b'"traceEvents":', b'"traceEvents"'), "expected :"),
        ("rank3.json", lambda text: text.replace(b'"schemaVersion": 1', b'"schemaVersion": tru'), "not valid JSON"),
        ("rank3.json", lambda text: text.replace(b'"schemaVersion"', b"schemaVersion"), "expected a string"),
        ("rank3.json", lambda text: text.replace(b'"schemaVersion": 1', b'"schemaVersion": '), "expected a value"),
        ("rank3.json", lambda text: text + b"}", "expected nothing more"),
        ("rank3.json.gz", lambda text: text, "found no gzip"),
        ("rank3.json", gzip.compress, "found gzip"),
        ("rank3.json", lambda text: b"", "empty"),
        ("rank3.json.gz", lambda text: gzip.compress(b""), "no text"),
        ("rank3.json", lambda text: b" \n", "no text"),
        ("rank3.json", lambda text: b"<!DOCTYPE html><html></html>", "HTML"),
        ("rank3.json", lambda text: b'{"rank": 3}', "without a list 'traceEvents'.*ignore"),
        ("rank3.json", lambda text: b'{"traceEvents": null}', "without a list 'traceEvents'.*ignore"),
        ("rank3.json", lambda text: b"{}", "without a list 'traceEvents'.*ignore"),
        ("rank3.json", lambda text: b"3", "begins with '3'.*traceEvents"),
    ],
)
def test_a_damaged_file_is_one_message_that_names_it(tmp_path, new_trace, name, damage, message):
    trace = new_trace(rank=3)
    trace.op("aten::mm", 10, 15)
    trace.op("aten::add", 15, 17)
    path = write(tmp_path, name, damage(trace.text().encode()))
    with pytest.raises(StudyError, match=message) as raised:
        read(path)
    assert str(raised.value).startswith(f"rank 3, {path}: ")
    assert "\n" not in str(raised.value)


def test_what_strict_json_forbids_is_read_where_it_can_be(tmp_path, one_op):
    one_op.op("aten::NAME, inf", 20, 25)
    one_op.gloo("all_reduce", 30, 35, share="VALUES")
    text = one_op.text().encode().replace(b"NAME", b"a\xff\xef\xbf\xbdd\\q\x01\\ud800\\u00e9")
    text = text.replace(b'"VALUES"', b"[NaN, -Infinity, inf, 1e999, 2.5, 18446744073709551616]")
    trace = read(write(tmp_path, "rank0.json", b"\xef\xbb\xbf" + text))
    assert names_of(trace.events) == ["aten::mm", "aten::a\ufffd\ufffdd\\q\x01\ufffd\u00e9, inf", "gloo:all_reduce"]
    assert trace.events.args == {2: {"share": [None, None, None, None, 2.5, 2**64]}}
    assert trace.notes == (
        "4 NaN or infinite values were read as missing",
        "1 bytes that are not UTF-8 were replaced",
        "1 halves of surrogate pairs were replaced",
    )


def test_bad_bytes_in_what_is_not_kept_are_counted_too(tmp_path, one_op):
    text = one_op.text().encode().replace(b'"args": {}', b'"args": {"Call stack": "a\xfe\xfe"}')
    trace = read(write(tmp_path, "rank0.json", text))
    assert trace.notes == ("2 bytes that are not UTF-8 were replaced",)


def test_damage_costs_nothing_beside_it(tmp_path, new_trace):
    trace = new_trace()
    for start in range(10, 5000, 10):
        trace.op(f"aten::op{start}", start, start + 5)
    clean = read(trace.write(tmp_path, "rank0.json"))
    text = trace.text().encode().replace(b"aten::op2500", b"aten::op\xff")
    damaged = read_trace(write(tmp_path, "rank0.json", text), ParseOptions(), chunk_bytes=1000)
    names = ["aten::op\ufffd" if name == "aten::op2500" else name for name in names_of(clean.events)]
    assert names_of(damaged.events) == names
    assert damaged.events.start_ns.tolist() == clean.events.start_ns.tolist()


def test_large_integers_are_kept_where_they_are_kept_at_all(tmp_path, one_op):
    one_op.gloo("all_reduce", 20, 25, address=2**63, more=2**80)
    one_op.event("kernel", "gemm", 30, 40, stream=0x7F3C_1234_5678, correlation=2**64)
    events = read(one_op.write(tmp_path, "rank0.json")).events
    assert events.args == {1: {"address": 2**63, "more": 2**80}}
    # Streams are told apart by their low 31 bits; the correlation is as good as none.
    assert events.stream.tolist() == [-1, -1, 0x1234_5678]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("dur", -1, "a negative duration"),
        ("dur", "5", "a missing or bad duration"),
        ("dur", None, "a missing or bad duration"),
        ("dur", "absent", "a missing or bad duration"),
        ("dur", 2**64, "a missing or bad duration"),
        ("ts", 0, "a bad time stamp"),
        ("ts", -5, "a bad time stamp"),
        ("ts", "soon", "a bad time stamp"),
        ("ts", "absent", "a bad time stamp"),
        ("ts", 2**64, "a bad time stamp"),
        ("ts", 2**62, "a bad time stamp"),
    ],
)
def test_events_without_a_usable_time_are_dropped_and_counted(tmp_path, new_trace, field, value, reason):
    trace = new_trace()
    for start in range(10, 500, 10):
        trace.op("aten::mm", start, start + 5)
    event = trace.content["traceEvents"][0]
    event.pop(field) if value == "absent" else event.update({field: value})
    found = read(trace.write(tmp_path, "rank0.json"))
    assert len(found.events) == 48
    assert found.notes == (f"dropped events: 1 with {reason}",)


def test_a_kernel_before_its_launch_is_dropped_and_counted(tmp_path, new_trace):
    trace = new_trace()
    trace.kernel("gemm", 30, 40, launch=31.5)
    # Profilers that round to microseconds let a kernel seem to start up to one before its launch.
    trace.kernel("gemm", 50, 60, launch=51)
    trace.kernel("ncclDevKernel_AllReduce", 70, 80, launch=65, dtype="Float")
    found = read(trace.write(tmp_path, "rank0.json"), max_dropped_share=0.2)
    assert names_of(found.events) == ["cudaLaunchKernel", "gemm", "cudaLaunchKernel", *names_of(found.events)[3:]]
    assert found.events.launch.tolist() == [-1, 2, -1, -1, 3]
    assert found.events.launched_at(np.arange(5)).tolist() == [31_500, 50_000, 51_000, 65_000, 65_000]
    assert found.events.args == {4: {"stream": 7, "correlation": 3, "dtype": "Float"}}
    assert found.notes == ("dropped events: 1 with a kernel before its launch",)
    with pytest.raises(StudyError, match=r"1 of 6 events have no usable time \(1 with a kernel before its launch\)"):
        read(tmp_path / "rank0.json")


@pytest.mark.parametrize("correlations", [(5, 6, 7), (5, 10**9, 2**40)])
def test_work_is_joined_with_the_first_launch_of_its_correlation(tmp_path, new_trace, correlations):
    trace = new_trace()
    for start, correlation in zip((10, 20, 30), correlations, strict=True):
        # A launch by the runtime calls one by the driver.
        trace.event("cuda_runtime", "cudaLaunchKernel", start, start + 5, correlation=correlation)
        trace.event("cuda_driver", "cuLaunchKernel", start + 1, start + 2, correlation=correlation)
        trace.event("kernel", "gemm", start + 100, start + 101, stream=7, correlation=correlation)
    trace.event("kernel", "gemm", 200, 201, stream=7, correlation=8)
    trace.event("kernel", "gemm", 300, 301, stream=7, correlation=0)
    trace.event("kernel", "gemm", 400, 401, stream=7)
    events = read(trace.write(tmp_path, "rank0.json")).events
    assert events.launch[events.kind == Kind.KERNEL].tolist() == [0, 2, 4, -1, -1, -1]


def test_too_many_events_without_a_usable_time_are_an_error(tmp_path, one_op):
    one_op.op("aten::mm", 5, 4)
    path = one_op.write(tmp_path, "rank0.json")
    with pytest.raises(StudyError, match=r"1 of 2 events have no usable time.*at most 5%.*max_dropped_share"):
        read(path)
    assert len(read(path, max_dropped_share=0.5).events) == 1


@pytest.mark.parametrize(
    "events", [[], [{"ph": "M", "name": "process_name", "pid": 1, "ts": 1, "args": {"name": "a"}}]]
)
def test_a_trace_without_events_or_only_with_metadata_is_an_error(tmp_path, new_trace, events):
    trace = new_trace()
    trace.content["traceEvents"] = events
    with pytest.raises(StudyError, match=f"no operator, kernel or annotation among its {len(events)} events"):
        read(trace.write(tmp_path, "rank0.json"))


def test_elements_that_are_no_events_are_passed_over(tmp_path, one_op):
    text = one_op.text().replace('"traceEvents": [', '"traceEvents": [ 5, null, ["a", {}], "}, {", ')
    text = text.replace("}]", '}, {"ph": "X"}, {"ph": 7, "cat": ["kernel"], "args": []}, -1]')
    assert names_of(read(write(tmp_path, "rank0.json", text.encode())).events) == ["aten::mm"]


def test_synchronisation_rows_and_the_profilers_own_spans_are_left_out(tmp_path, one_op):
    one_op.event("cuda_sync", "Stream Wait Event", 0.5, 100)
    one_op.event("Trace", "PyTorch Profiler (0)", 1, 100)
    one_op.event("python_function", "nn.Module: Linear_0", 1, 100)
    assert names_of(read(one_op.write(tmp_path, "rank0.json")).events) == ["aten::mm"]


def test_annotations_are_known_by_their_category_or_their_name(tmp_path, one_op):
    one_op.event("gpu_user_annotation", "phase:aggregate", 20, 30)
    one_op.event("user_annotation", "forward", 21, 30)
    one_op.event("cpu_op", "ProfilerStep#3", 22, 30)
    one_op.event("Operator", "aten::add", 23, 30)
    events = read(one_op.write(tmp_path, "rank0.json")).events
    assert events.kind.tolist() == [Kind.OP, Kind.GPU_ANNOTATION, Kind.ANNOTATION, Kind.ANNOTATION, Kind.OP]


def test_a_kernel_knows_when_and_by_whom_it_was_launched(tmp_path, new_trace):
    trace = new_trace()
    trace.kernel("gemm", 30, 40, launch=20)
    trace.kernel("gemm", 50, 60)
    events = read(trace.write(tmp_path, "rank0.json")).events
    kernels = np.flatnonzero(events.kind == Kind.KERNEL)
    assert events.launched_at(kernels).tolist() == [20_000, 50_000]
    assert [events.threads[thread] for thread in events.launch_thread_of(kernels)] == ["1/100", "1/7"]


def test_a_stream_that_is_not_stated_is_that_of_the_thread(tmp_path, new_trace):
    trace = new_trace()
    trace.event("kernel", "gemm", 10, 20, thread=13)
    trace.event("kernel", "gemm", 20, 30, thread=13, stream=7)
    trace.event("kernel", "gemm", 30, 40, thread="stream 13")
    trace.event("cpu_op", "aten::mm", 50, 60, stream=7)
    assert read(trace.write(tmp_path, "rank0.json")).events.stream.tolist() == [13, 7, -1, -1]


def test_communication_without_a_time_stamp_is_dropped(tmp_path, one_op):
    one_op.gloo("all_reduce", 20, 25, shape=1)
    one_op.gloo("all_reduce", 30, 35, shape=2)
    one_op.op("aten::mm", 40, 45)
    one_op.op("aten::mm", 50, 55)
    del one_op.content["traceEvents"][1]["ts"]
    trace = read(one_op.write(tmp_path, "rank0.json"), max_dropped_share=0.5)
    assert trace.notes == ("dropped events: 1 with a bad time stamp",)
    assert trace.events.args == {1: {"shape": 2}}


def test_the_name_of_communication_may_be_a_value_elsewhere(tmp_path, one_op):
    one_op.event("cpu_op", "aten::mm", 20, 25, note="gloo:all_reduce")
    one_op.event("cuda_sync", "gloo:all_reduce", 30, 35, shape=2)
    one_op.gloo("all_reduce", 30, 35, shape=1)
    one_op.gloo("all_reduce", 40, 45, shape=3, note="gloo:all_reduce")
    one_op.gloo("all_reduce", 50, 55, shape=4)
    events = read(one_op.write(tmp_path, "rank0.json")).events
    assert {place: args["shape"] for place, args in events.args.items()} == {2: 1, 3: 3, 4: 4}


def test_an_unescaped_quote_is_found_where_it_is(tmp_path, new_trace):
    trace = new_trace()
    for start in range(10, 200_000, 10):
        trace.op("aten::mm", start, start + 5)
    text = trace.text()
    place = text.index("aten", 3000) + 2
    path = write(tmp_path, "rank0.json", f'{text[:place]}"{text[place:]}'.encode())
    with pytest.raises(StudyError, match=f"not valid JSON near byte {place + 1},"):
        read(path)


def test_an_event_may_be_longer_than_any_chunk(tmp_path, one_op):
    one_op.gloo("all_reduce", 20, 25, note="}, {" * 2**19)
    one_op.op("aten::mm", 30, 35)
    events = read(one_op.write(tmp_path, "rank0.json.gz")).events
    assert len(events) == 3
    assert len(events.args[1]["note"]) == 4 * 2**19

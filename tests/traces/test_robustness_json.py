"""What strict JSON forbids but profilers have written: read all the same, and no NaN reaches a number."""

import gzip
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from robustness_cases import parse

from anatomy.traces.rank.decomposition import CATEGORIES


def traced(new_trace, **fields):
    """The text of a trace with a step and an operator of 30 us that has some fields more, or others."""
    trace = new_trace()
    trace.step(3, 1000, 1100)
    trace.op("aten::mm", 1010, 1040)
    trace.content["traceEvents"][-1] |= fields
    return trace.text().encode()


def parse_text(tmp_path, text, **options):
    (tmp_path / "traces").mkdir(exist_ok=True)
    (tmp_path / "traces" / "rank0.json").write_bytes(text)
    return parse(tmp_path / "traces", tmp_path / "out", **options)


def names(parsed):
    return set(parsed.tables["operators"]["name"])


@pytest.mark.parametrize(
    ("bad", "read", "count"),
    [
        (b"\xff", "\ufffd", 1),
        (b"\xff\xfe\xfd", "\ufffd\ufffd\ufffd", 3),
        (b"\xed\xa0\x80", None, None),  # a lone surrogate as UTF-8: three bytes, by most counts
        (b"\xc3", "\ufffd", 1),
        (b"\xe2\x82", None, None),
        ("é\u20ac\U0001f600".encode(), "é\u20ac\U0001f600", 0),
    ],
)
def test_bytes_that_are_no_utf8_are_replaced_and_counted(tmp_path, new_trace, bad, read, count):
    parsed = parse_text(tmp_path, traced(new_trace, name="aten::NAME").replace(b"NAME", b"<" + bad + b">"))
    assert parsed.steps("wall", "compute") == [(100, 30)]
    (name,) = names(parsed)
    assert name == f"aten::<{read}>" or (read is None and "\ufffd" in name)
    if count == 0:
        assert not parsed.noted("UTF-8")
    else:
        assert parsed.noted("rank 0", "UTF-8", "replaced", str(count) if count else r"[1-3]")


def test_bad_bytes_in_what_is_not_kept_are_counted_too(tmp_path, new_trace):
    text = traced(new_trace, args={"Call stack": "PLACE"}).replace(b"PLACE", b"\xff")
    text = text.replace(b'"schemaVersion": 1', b'"schemaVersion": 1, "host": "\xfe"')
    parsed = parse_text(tmp_path, text)
    assert parsed.steps("compute") == [(30,)]
    assert parsed.noted("rank 0", r"\b2 bytes", "UTF-8", "replaced")


@pytest.mark.parametrize("raw", [b"\x00", b"\x01", b"\n", b"\t", b"\x1f", b"\x7f"])
def test_raw_control_characters_are_read(tmp_path, new_trace, raw):
    parsed = parse_text(tmp_path, traced(new_trace, name="aten::NAME").replace(b"NAME", b"a" + raw + b"b"))
    assert parsed.steps("compute") == [(30,)]
    assert names(parsed) == {f"aten::a{raw.decode()}b"}


@pytest.mark.parametrize(
    ("escape", "read"),
    [(rb"\q", r"\q"), (rb"C:\dir\x", r"C:\dir\x"), (rb"\\q", r"\q"), (rb"\u00e9", "é"), (rb"\uZZZZ", r"\uZZZZ")],
)
def test_escapes_that_json_does_not_know_are_read_as_they_stand(tmp_path, new_trace, escape, read):
    parsed = parse_text(tmp_path, traced(new_trace, name="aten::NAME").replace(b"NAME", escape))
    assert parsed.steps("compute") == [(30,)]
    assert names(parsed) == {f"aten::{read}"}


@pytest.mark.parametrize("escape", [rb"\ud83d", rb"\ude00", rb"\ud83dx", rb"\ud83d\ud83d"])
def test_half_a_surrogate_pair_is_read(tmp_path, new_trace, escape):
    text = traced(new_trace, name="aten::NAME", args={"Call stack": "NAME"}).replace(b"NAME", escape)
    assert parse_text(tmp_path, text).steps("compute") == [(30,)]


def test_a_byte_order_mark_is_left_out(tmp_path, new_trace):
    parsed = parse_text(tmp_path, b"\xef\xbb\xbf" + traced(new_trace))
    assert parsed.steps("wall", "compute") == [(100, 30)]


WORDS = ["NaN", "-NaN", "nan", "Infinity", "-Infinity", "inf", "-inf", "Inf", "1e999", "-1e999"]
LARGE = [str(2**63), str(2**64), str(-(2**63) - 1), str(10**40)]


@pytest.mark.parametrize("value", [*WORDS, *LARGE])
def test_numbers_that_are_none_do_no_harm_in_arguments(tmp_path, new_trace, value):
    text = traced(new_trace, args={"External id": "PLACE", "list": [1, "PLACE"]}).replace(b'"PLACE"', value.encode())
    parsed = parse_text(tmp_path, text)
    assert parsed.steps("wall", "compute") == [(100, 30)]
    assert names(parsed) == {"aten::mm"}


@pytest.mark.parametrize("value", ["NaN", "Infinity", "inf", "-inf", "1e999", *LARGE])
@pytest.mark.parametrize("field", ["ts", "dur"])
def test_an_event_whose_time_is_no_number_is_dropped_and_counted(tmp_path, new_trace, field, value):
    trace = new_trace()
    trace.step(3, 1000, 1100)
    for start in range(1000, 1040, 2):
        trace.op("aten::mm", start, start + 1)
    trace.content["traceEvents"][-1][field] = "PLACE"
    parsed = parse_text(tmp_path, trace.text().encode().replace(b'"PLACE"', value.encode()))
    assert parsed.steps("wall", "compute") == [(100, 19)]
    assert parsed.tables["operators"]["calls"].tolist() == [19]
    assert parsed.noted("rank 0", r"dropped.*\b1\b")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "inf", *LARGE])
@pytest.mark.parametrize("field", ["In msg nelems", "Group size", "Seq"])
def test_a_collective_whose_arguments_are_no_numbers_has_them_missing(tmp_path, new_trace, field, value):
    args = {"In msg nelems": 256, "Out msg nelems": 256, "dtype": "Float", "Group size": 2, "Seq": 7}
    for rank in range(2):
        trace = new_trace(rank, 2)
        trace.step(3, 1000, 1100)
        trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1010, 1050, launch=1005, **(args | {field: "PLACE"}))
        (tmp_path / "traces").mkdir(exist_ok=True)
        text = trace.text().replace('"PLACE"', value)
        (tmp_path / "traces" / f"rank{rank}.json").write_text(text)
    parsed = parse(tmp_path / "traces", tmp_path / "out")
    rows = parsed.tables["collectives"]
    assert rows["matched"].tolist() == [True, True]
    # Without the count of its input, that of its output is either taken or not enough, but nothing else comes out.
    known = field != "In msg nelems"
    assert rows["bytes"].dropna().tolist() in ([[256 * 4] * 2] if known else [[256 * 4] * 2, []])
    assert rows["sequence"].isna().all() == (field == "Seq")
    assert rows["group_size"].tolist() == [2, 2]  # where it is not said, all ranks are


def test_all_at_once_in_one_event_costs_no_other(tmp_path, new_trace):
    trace = new_trace()
    trace.step(3, 1000, 1100)
    for start in range(1000, 1060, 2):
        trace.op("aten::mm", start, start + 1)
    trace.op("aten::NAME", 1070, 1080)
    numbers = b'"dur": 10, "args": {"n": NaN, "i": inf, "l": 18446744073709551616'
    text = trace.text().encode().replace(b"NAME", b"a\xff\\q\x01").replace(b'"dur": 10, "args": {', numbers)
    parsed = parse_text(tmp_path, b"\xef\xbb\xbf" + text)
    assert parsed.steps("wall", "compute") == [(100, 30 + 10)]
    assert names(parsed) == {"aten::mm", "aten::a\ufffd\\q\x01"}
    assert parsed.noted("1 bytes", "UTF-8", "replaced")


def test_gzipped_text_that_is_not_strict_is_read_alike(tmp_path, new_trace):
    text = traced(new_trace, name="aten::NAME", args={"share": "PLACE"})
    text = text.replace(b"NAME", b"\xff").replace(b'"PLACE"', b"NaN")
    plain = parse_text(tmp_path, text)
    (tmp_path / "traces" / "rank0.json").unlink()
    (tmp_path / "traces" / "rank0.json.gz").write_bytes(gzip.compress(text))
    zipped = parse(tmp_path / "traces", tmp_path / "zipped")
    assert zipped.steps("wall", "compute") == plain.steps("wall", "compute")
    assert zipped.manifest["notes"] == plain.manifest["notes"]


COMMUNICATION_ARGUMENTS = (
    *("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size", "Process Group Name"),
    *("Process Group Ranks", "Seq", "Src Rank", "Dst Rank", "In split size", "Input Dims", "Input type"),
)
ODD = [None, True, 0, -1, -5, 1.5, 2**31, 2**62, 2**63, 2**64, -(2**64), 10**40, math.nan, math.inf, "", "Float", "256"]
ODD += ["[0, 1]", "[0, ", "[" * 300, "9" * 5000, [], [[2**62, 2**62]], [[-1, 4]], [2**64], ["float"], {}, {"a": [None]}]
odd = st.sampled_from(ODD) | st.recursive(st.none() | st.integers() | st.floats() | st.text(max_size=5), st.lists)


def odd_event(new_trace, device, fields, args):
    """A trace with an operator or kernel of 30 us and a piece of communication of 10 us that holds odd values."""
    trace = new_trace()
    trace.step(3, 1000, 1100)
    if device == "gpu":
        trace.kernel("gemm", 1010, 1040, launch=1005)
        trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1050, 1060)
    else:
        trace.op("aten::mm", 1010, 1040)
        trace.gloo("all_reduce", 1050, 1060)
    event = trace.content["traceEvents"][-1]
    event |= fields
    event["args"] |= args
    return trace


devices = st.sampled_from(["cpu", "gpu"])
event_fields = st.sampled_from(["name", "cat", "ph", "pid", "tid", "id", "s"])
event_args = st.sampled_from(["stream", "correlation", "device", "External id"])


@settings(max_examples=100)
@given(
    device=devices,
    fields=st.dictionaries(event_fields, odd, max_size=2),
    args=st.dictionaries(event_args, odd, max_size=2),
)
def test_whatever_an_event_holds_the_rest_of_the_trace_is_read(new_trace, examined, device, fields, args):
    record = examined(odd_event(new_trace, device, fields, args), max_dropped_share=1)
    assert int(record.sums["ns"].sum()) == 100_000
    computed = record.sums["ns"][record.sums["category"] == CATEGORIES.index("compute")]
    assert int(computed.sum()) in (30_000, 40_000)  # the event may have become computation


IMPOSSIBLE = [
    {"Seq": 2**63},
    {"Group size": 2**64},
    {"Group size": 0},
    {"In msg nelems": 2**62, "dtype": "Float"},  # more bytes than int64 holds
    {"In msg nelems": -5, "dtype": "Float"},
    {"Input Dims": [[2**62, 2**62]], "Input type": ["float"]},
    {"Input Dims": [[4, -1]], "Input type": ["float"]},
]


@pytest.mark.parametrize("args", IMPOSSIBLE, ids=str)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_what_communication_can_not_be_is_missing(new_trace, examined, device, args):
    _check_communication(examined(odd_event(new_trace, device, {}, args)).collectives)


@settings(max_examples=150)
@given(device=devices, args=st.dictionaries(st.sampled_from(COMMUNICATION_ARGUMENTS), odd, min_size=1, max_size=4))
def test_whatever_communication_says_of_itself_it_is_one_piece_of_it(new_trace, examined, device, args):
    _check_communication(examined(odd_event(new_trace, device, {}, args)).collectives)


def _check_communication(collectives):
    assert (collectives["end_ns"] - collectives["start_ns"]).tolist() == [10_000]
    for number in ("bytes", "sequence"):
        assert collectives[number].tolist() == [-1] or collectives[number][0] >= 0, number  # -1 is unknown
    assert collectives["group_size"].tolist() == [-1] or collectives["group_size"][0] >= 1

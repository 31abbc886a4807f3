"""Files that are damaged or not what their name says: one message, no table. The smallest input that shows each."""

import gzip
import re

import pytest
from robustness_cases import parse, refusal

from anatomy.errors import StudyError
from anatomy.traces.options import ParseOptions
from anatomy.traces.reading.trace import read_trace


@pytest.fixture
def job(tmp_path, new_trace):
    """A folder with a good trace of rank 0; and the text of one of rank 1."""
    folder = tmp_path / "traces"
    for rank in range(2):
        trace = new_trace(rank, 2)
        trace.step(3, 1000, 1100)
        trace.op("aten::mm", 1010, 1040)
        trace.write(folder, f"rank{rank}.json")
    text = (folder / "rank1.json").read_bytes()
    (folder / "rank1.json").unlink()
    return folder, text


def flipped(data, place):
    """One bit of one byte changed."""
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


DAMAGES = {
    "truncated JSON": ("rank1.json", lambda text: text[:-40], "truncated"),
    "JSON truncated by 4 bytes": ("rank1.json", lambda text: text[:-4], "truncated"),
    "truncated gzip": ("rank1.json.gz", lambda text: gzip.compress(text)[:-40], "truncated"),
    "gzip truncated by 4 bytes": ("rank1.json.gz", lambda text: gzip.compress(text)[:-4], "truncated"),
    "gzip of truncated JSON": ("rank1.json.gz", lambda text: gzip.compress(text[:-4]), "truncated"),
    "bad CRC": ("rank1.json.gz", lambda text: flipped(gzip.compress(text), -8), "(?i)crc|checksum|damaged|corrupt"),
    "bad length": ("rank1.json.gz", lambda text: flipped(gzip.compress(text), -1), "(?i)length|damaged|corrupt"),
    "plain JSON named .gz": ("rank1.json.gz", lambda text: text, "(?i)gzip.*rename"),
    "gzip named .json": ("rank1.json", gzip.compress, "(?i)gzip.*rename"),
    "empty": ("rank1.json", lambda text: b"", "empty"),
    "empty named .gz": ("rank1.json.gz", lambda text: b"", "empty"),
    "gzip of nothing": ("rank1.json.gz", lambda text: gzip.compress(b""), "empty|no text"),
    "HTML": ("rank1.json", lambda text: b"<!DOCTYPE html>\n<html><body>404</body></html>", "HTML"),
    "HTML named .gz": ("rank1.json.gz", lambda text: gzip.compress(b"\n <html></html>"), "HTML"),
}
BY_THE_PROGRAM = (
    "truncated JSON",
    "truncated gzip",
    "gzip truncated by 4 bytes",
    "bad CRC",
    "plain JSON named .gz",
    "gzip named .json",
    "empty",
    "HTML",
)


@pytest.mark.parametrize("damage", BY_THE_PROGRAM)
def test_a_damaged_file_ends_the_program_with_one_message_and_without_a_table(tmp_path, job, damage):
    folder, text = job
    name, change, wrong = DAMAGES[damage]
    (folder / name).write_bytes(change(text))
    message = refusal(folder, tmp_path / "out")
    assert message.startswith(f"rank 1, {folder / name}: ")
    assert re.search(wrong, message)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_one_line_that_says_what_is_wrong(tmp_path, job, damage):
    name, change, wrong = DAMAGES[damage]
    path = tmp_path / name
    path.write_bytes(change(job[1]))
    with pytest.raises(StudyError, match=wrong) as raised:
        read_trace(path, ParseOptions())
    assert str(raised.value).startswith(f"rank 1, {path}: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["rank1.json.gz", "worker1_step_12.169.pt.trace.json.gz"])
def test_the_message_says_the_rank(tmp_path, job, name):
    folder, text = job
    (folder / name).write_bytes(gzip.compress(text)[:-4])
    with pytest.raises(StudyError, match=r"\brank 1\b"):
        parse(folder, tmp_path / "out")


def test_the_message_says_the_rank_that_is_stated_for_the_file(tmp_path, job):
    folder, text = job
    (folder / "b.json.gz").write_bytes(gzip.compress(text)[:-4])
    with pytest.raises(StudyError, match=r"\brank 1\b"):
        parse(folder, tmp_path / "out", ranks={"b.json.gz": 1})


def test_an_earlier_result_stays_when_a_file_is_damaged_later(tmp_path, job):
    folder, text = job
    (folder / "rank1.json").write_bytes(text)
    parse(folder, tmp_path / "out")
    (folder / "rank1.json").write_bytes(text[:-4])
    refusal(folder, tmp_path / "out")


def test_a_damaged_file_that_another_process_reads_gives_the_same_message(tmp_path, new_trace):
    for rank in range(2):
        trace = new_trace(rank, 2)
        trace.step(3, 1000, 21_000)
        for start in range(1000, 21_000, 2):  # 10,000 events are 1.2 MB: too much for one process to read both files
            trace.op("aten::mm", start, start + 1)
        trace.write(tmp_path / "traces", f"rank{rank}.json")
    path = tmp_path / "traces" / "rank1.json"
    assert path.stat().st_size > 1_000_000
    path.write_bytes(path.read_bytes()[:-4])
    assert refusal(tmp_path / "traces", tmp_path / "out").startswith(f"rank 1, {path}: ")


SMALL = (
    b'{"distributedInfo":{"rank":1},"traceEvents":[{"ph":"M","name":"a","args":{"b":[]}},'
    b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":10.5,"dur":2,"args":{}},'
    b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":20,"dur":2}],"traceName":"x"}'
)
LIST = SMALL[SMALL.index(b"[{") : SMALL.index(b"]," + b'"traceName"') + 1]


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("rank1.json", SMALL),
        ("rank1.json", LIST),
        ("rank1.json.gz", gzip.compress(SMALL)),
        ("rank1.json.gz", gzip.compress(LIST, compresslevel=0)),
        ("rank1.json.gz", gzip.compress(SMALL[:100]) + gzip.compress(SMALL[100:])),
    ],
    ids=["JSON", "list", "gzip", "stored gzip", "two gzip members"],
)
def test_a_file_truncated_anywhere_is_never_read(tmp_path, name, whole):
    path = tmp_path / name
    path.write_bytes(whole)
    assert len(read_trace(path, ParseOptions()).events) == 2
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(StudyError) as raised:
            read_trace(path, ParseOptions())
        assert str(raised.value).startswith(f"rank 1, {path}: "), length


def test_a_gzip_file_with_any_byte_changed_is_never_read_as_something_else(tmp_path):
    path, whole = tmp_path / "rank1.json.gz", gzip.compress(SMALL, mtime=0)
    header = range(3, 10)  # whether it is text, time and system: nothing about the content
    for place in (place for place in range(len(whole)) if place not in header):
        path.write_bytes(flipped(whole, place))
        with pytest.raises(StudyError):
            read_trace(path, ParseOptions())


@pytest.mark.parametrize("tail", [b"garbage", b"\x00\x01", b"}", b"]", SMALL])
def test_what_follows_the_end_of_the_trace_is_an_error(tmp_path, tail):
    path = tmp_path / "rank1.json"
    path.write_bytes(SMALL + tail)
    with pytest.raises(StudyError, match=r"rank1\.json"):
        read_trace(path, ParseOptions())


@pytest.mark.parametrize("tail", [b"\n", b" \r\n\t"])
def test_white_space_around_the_trace_is_none(tmp_path, tail):
    path = tmp_path / "rank1.json"
    path.write_bytes(tail + SMALL + tail)
    assert len(read_trace(path, ParseOptions()).events) == 2

"""The reader of numbers in text against a plain one, on random files."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anatomy.errors import StudyError
from anatomy.graphs.text import read_integer_lines

NUMBERS = st.lists(st.integers(0, 10**12).map(str), max_size=4)
BLANKS = st.text(" \t", max_size=2)
LINES = st.one_of(
    st.tuples(BLANKS, NUMBERS, BLANKS).map(lambda parts: parts[0] + " ".join(parts[1]) + parts[2]),
    st.tuples(BLANKS, st.text("abc1 ", max_size=5)).map(lambda parts: f"{parts[0]}#{parts[1]}"),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.lists(LINES, max_size=8), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_numbers_and_their_lines(tmp_path: Path, lines: list[str], line_end: str, ended: bool) -> None:
    text = line_end.join(lines) + (line_end if ended else "")
    (tmp_path / "numbers.txt").write_bytes(text.encode())
    read = read_integer_lines(tmp_path / "numbers.txt", comments="#")
    found = [
        (int(number), read.values[read.starts[i] : read.starts[i + 1]].tolist())
        for i, number in enumerate(read.line_numbers)
    ]
    plain = text.removesuffix("\n").split("\n") if text else []
    assert found == [
        (number, [int(word) for word in line.split()])
        for number, line in enumerate(plain, 1)
        if not line.strip().startswith("#")
    ]


@pytest.mark.parametrize("line", ["3 -4", "3 4.0", "3 \x00", "3 ½", "3,4", "3 #4"])
def test_other_characters_are_named_with_their_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "n.txt").write_text(f"1 2\n{line}\n", encoding="utf-8")
    with pytest.raises(StudyError, match=r"n\.txt: line 2: found '3"):
        read_integer_lines(tmp_path / "n.txt", comments="#")


def test_numbers_beyond_64_bits_do_not_become_small_ones(tmp_path: Path) -> None:
    (tmp_path / "n.txt").write_text("1\n99999999999999999999999\n")
    with pytest.raises(StudyError, match=r"n\.txt: line 2: found 23 digits, expected at most 18"):
        read_integer_lines(tmp_path / "n.txt", comments="#")

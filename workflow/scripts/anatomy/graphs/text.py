"""Whole numbers in text files: METIS graphs, edge lists, label lists; plain or gzipped."""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from anatomy.errors import StudyError

_DIGITS = np.frombuffer(b"0123456789", dtype=np.uint8)
_BLANKS = np.frombuffer(b" \t\r\n\x0b\x0c", dtype=np.uint8)
_NEWLINE = ord("\n")
MAX_DIGITS = 18


@dataclass(frozen=True)
class IntegerLines:
    """Numbers of a file, line by line, without its comments.

    `values` int64 [numbers]; `starts` int64 [lines + 1], where each line's numbers begin; `line_numbers` int64
    [lines], from 1, in the file.
    """

    path: Path
    values: np.ndarray
    starts: np.ndarray
    line_numbers: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """How many numbers each line has, int64 [lines]."""
        return np.diff(self.starts)

    def line_of(self, position: int) -> str:
        """Where the number at a position of `values` stands, for messages."""
        line = int(np.searchsorted(self.starts, position, side="right")) - 1
        return f"{self.path}: line {self.line_numbers[line]}"


def read_integer_lines(path: Path, comments: str) -> IntegerLines:
    """Read a file of whole numbers separated by blanks.

    Lines that begin with one of the characters `comments` are left out; blank lines stay, as lines without numbers.

    Raises StudyError, naming the line, for anything else than a number that is not negative.
    """
    data = np.frombuffer(_read(path), dtype=np.uint8)
    if len(data) and data[-1] != _NEWLINE:
        data = np.append(data, np.uint8(_NEWLINE))
    ends = np.flatnonzero(data == _NEWLINE)
    begins = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    comment = _is_comment(data, begins, ends, comments)
    kept = np.repeat(~comment, ends - begins + 1)
    data, line_numbers = data[kept], np.flatnonzero(~comment) + 1
    ends = np.flatnonzero(data == _NEWLINE)
    _check_characters(path, data, ends, line_numbers)
    is_digit = data > ord(" ")
    first_digits = np.flatnonzero(is_digit & ~np.concatenate([[False], is_digit[:-1]]))
    after_digits = np.flatnonzero(~is_digit & np.concatenate([[False], is_digit[:-1]]))
    _check_lengths(path, after_digits - first_digits, first_digits, ends, line_numbers)
    values = (
        np.fromstring(data.tobytes(), dtype=np.int64, sep=" ") if len(first_digits) else np.empty(0, dtype=np.int64)
    )
    starts = np.concatenate([[0], np.searchsorted(first_digits, ends)]).astype(np.int64)
    return IntegerLines(path, values, starts, line_numbers)


def open_text(path: Path) -> BinaryIO:
    """The content of a file, unpacked if it is gzipped, to be read."""
    with open(path, "rb") as file:
        gzipped = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if gzipped else open(path, "rb")


def text_size(path: Path) -> int:
    """Bytes of a file's content, estimated where it is gzipped: lists of numbers shrink to an eighth at most."""
    with open(path, "rb") as file:
        gzipped = file.read(2) == b"\x1f\x8b"
    return path.stat().st_size * (8 if gzipped else 1)


def _read(path: Path) -> bytes:
    try:
        with open_text(path) as file:
            return file.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise StudyError(
            f"{path}: found a damaged gzip file ({error}), expected a whole one; fetch it again"
        ) from error


def _is_comment(data: np.ndarray, begins: np.ndarray, ends: np.ndarray, comments: str) -> np.ndarray:
    """Which lines begin, after blanks, with a comment character: bool [lines]."""
    solid = np.flatnonzero(~np.isin(data, _BLANKS))
    first = np.searchsorted(solid, begins)
    comment = np.zeros(len(begins), dtype=bool)
    has = first < len(solid)
    position = solid[first[has]]
    marks = np.frombuffer(comments.encode(), dtype=np.uint8)
    comment[has] = np.isin(data[position], marks) & (position < ends[has])
    return comment


def _check_characters(path: Path, data: np.ndarray, ends: np.ndarray, line_numbers: np.ndarray) -> None:
    wrong = np.flatnonzero(~np.isin(data, np.concatenate([_DIGITS, _BLANKS])))
    if len(wrong) == 0:
        return
    line = int(np.searchsorted(ends, wrong[0]))
    begin = int(ends[line - 1]) + 1 if line else 0
    text = data[begin : min(int(ends[line]), begin + 60)].tobytes().decode("utf-8", "replace").strip()
    raise StudyError(
        f"{path}: line {line_numbers[line]}: found {text!r}, expected whole numbers that are not negative, separated "
        "by blanks; the file is damaged or of another format"
    )


def _check_lengths(
    path: Path, lengths: np.ndarray, first_digits: np.ndarray, ends: np.ndarray, line_numbers: np.ndarray
) -> None:
    """Raise StudyError where a number has more digits than an int64 surely holds."""
    long = np.flatnonzero(lengths > MAX_DIGITS)
    if len(long):
        line = int(np.searchsorted(ends, first_digits[long[0]]))
        raise StudyError(
            f"{path}: line {line_numbers[line]}: found {lengths[long[0]]} digits, expected at most {MAX_DIGITS} in a "
            "number; the file is damaged"
        )

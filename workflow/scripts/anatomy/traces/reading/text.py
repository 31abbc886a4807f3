"""The part of a trace's JSON text that is in memory, and the small steps through it."""

import re
from collections.abc import Iterator

from anatomy.traces.reading.decoding import not_json
from anatomy.traces.reading.repair import STRING
from anatomy.traces.reading.source import AGAIN, DamagedTraceError

SPACE = re.compile(rb"[ \t\n\r]*+")
WHOLE_STRING = re.compile(STRING, re.DOTALL)
SCALAR = re.compile(rb"[^,:}\]\s]++")
NEAR = 40
"""Bytes of the text that an error shows."""


class Text:
    """`data` is what has been read of a text and not been dropped yet; `offset` is how much was dropped."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.data = b""
        self.offset = 0
        self._blocks = blocks

    def more(self, num_bytes: int) -> bool:
        """Read on by at least so many bytes, if there are as many; whether there were any."""
        blocks = []
        while num_bytes > 0 and (block := next(self._blocks, None)) is not None:
            blocks.append(block)
            num_bytes -= len(block)
        self.data = b"".join([self.data, *blocks])
        return bool(blocks)

    def drop(self, num_bytes: int) -> None:
        """Forget what has been dealt with."""
        self.offset += num_bytes
        self.data = self.data[num_bytes:]

    def peek(self) -> bytes:
        """The next character that is no space, which becomes the first of `data`; nothing at the end of the text."""
        while True:
            self.drop(SPACE.match(self.data).end())
            if self.data or not self.more(1):
                return self.data[:1]

    def take(self, expected: bytes, within: str) -> bytes:
        """The next character that is no space, which must be one of those expected; see `truncated` for `within`."""
        token = self.peek()
        if not token:
            raise self.truncated(within)
        if token not in expected:
            raise self.unexpected(" or ".join(chr(character) for character in expected))
        self.drop(1)
        return token

    def take_match(self, pattern: re.Pattern[bytes], within: str) -> bytes:
        """What `STRING` or `SCALAR` matches at the next character that is no space."""
        if not self.peek():
            raise self.truncated(within)
        while True:
            found = pattern.match(self.data)
            if found and found.end() < len(self.data):
                self.drop(found.end())
                return found[0]
            if not found and not self.data.startswith(b'"'):
                raise self.unexpected("a string" if pattern is WHOLE_STRING else "a value")
            if not self.more(len(self.data)):
                raise self.truncated(within)

    def truncated(self, within: str) -> DamagedTraceError:
        """The error where the text ends too early; `within` says what it ends in."""
        end = self.offset + len(self.data)
        return DamagedTraceError(f"truncated JSON: the text ends at byte {end} within {within}; {AGAIN}")

    def unexpected(self, expected: str, place: int = 0) -> DamagedTraceError:
        """The error where something else is at a place of `data` than what is expected there."""
        near = self.data[place : place + NEAR]
        return not_json(near, self.offset + place, ValueError(f"expected {expected}"))

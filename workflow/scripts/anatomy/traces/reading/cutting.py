"""The list of events, cut into chunks between events.

A cut is made at the last place of the text at hand that looks like the end of one event and the start of the next. What
it cuts off is, in brackets, JSON only if the cut was right: a string, object or list that it went through is left open.
Where it isn't JSON, brackets are counted instead.
"""

import re
from typing import NamedTuple

from anatomy.traces.reading.collecting import Collector
from anatomy.traces.reading.decoding import decode_value, fault_in_beginning, not_json
from anatomy.traces.reading.repair import STRING
from anatomy.traces.reading.text import Text

BESIDE_BRACKETS = re.compile(rb'(?:[^"{}\[\]]++|%b)*+' % STRING, re.DOTALL)
"""Text up to the next bracket outside of strings, or to the quote of a string that does not end in the text."""

OPENING = b"{["
CLOSING, QUOTE = b']"'
GLANCE = 2**13
"""Bytes that are looked at to see what stands between two events; counting brackets is slow."""
LONG_EVENT = 2**20
"""Bytes from which on it is asked whether an event without an end can still have one."""


class Elements(NamedTuple):
    """Where elements of a list begin and end; up to where the text was looked at; and where an element begins that does
    not end, and where the list does, else -1."""

    whole: list[tuple[int, int]]
    looked_at: int
    begun: int = -1
    closing: int = -1


def read_events(text: Text, collector: Collector, chunk_bytes: int) -> None:
    """Hand the events of a list to the collector.

    `text` is right behind the list's opening bracket, and in the end right behind the closing one.

    Raises DamagedTraceError where the list is truncated, or not JSON.
    """
    separator = b""
    while True:
        text.more(chunk_bytes - len(text.data))
        cut = text.data.rfind(separator) if separator else -1
        if cut > 0 and collector.take_chunk(_as_list(text.data, 0, cut + 1), separator):
            text.drop(cut + len(separator) - 1)
            continue
        elements = _count_brackets(text.data[: len(text.data) if separator else GLANCE])
        if not separator and (elements.begun < 0 or len(elements.whole) < 2):
            elements = _count_brackets(text.data)
        if elements.closing < 0 and (elements.begun < 0 or not elements.whole):
            _read_on(text, elements, collector)
            continue
        _check_gaps(text, elements, collector)
        separator = _separator(text.data, elements) or separator
        _hand_over(text, elements, separator, collector)
        if elements.closing >= 0:
            text.drop(elements.closing + 1)
            return
        text.drop(elements.begun)


def _count_brackets(data: bytes) -> Elements:
    whole: list[tuple[int, int]] = []
    begin, depth, position = -1, 0, 0
    while True:
        position = BESIDE_BRACKETS.match(data, position).end()
        if position == len(data) or data[position] == QUOTE:
            return Elements(whole, position, begun=begin if depth else -1)
        if data[position] in OPENING:
            begin = begin if depth else position
            depth += 1
        elif depth == 0:
            return Elements(whole, position, closing=position)
        else:
            depth -= 1
            if depth == 0:
                whole.append((begin, position + 1))
        position += 1


def _hand_over(text: Text, elements: Elements, separator: bytes, collector: Collector) -> None:
    if elements.whole:
        begin, end = elements.whole[0][0], elements.whole[-1][1]
        if not separator or not collector.take_chunk(_as_list(text.data, begin, end), separator):
            collector.take_pieces([(text.data[begin:end], text.offset + begin) for begin, end in elements.whole])


def _separator(data: bytes, elements: Elements) -> bytes:
    """What lies between the last two events from bracket to bracket; nothing where that is more than a comma."""
    if len(elements.whole) < 2:
        return b""
    between = data[elements.whole[-2][1] - 1 : elements.whole[-1][0] + 1]
    return between if re.fullmatch(rb"\}\s*,\s*\{", between) else b""


def _check_gaps(text: Text, elements: Elements, collector: Collector) -> None:
    """Raise DamagedTraceError unless there are commas between the elements, or commas and values without brackets."""
    closed = elements.closing >= 0
    last = elements.closing if closed else elements.begun
    if closed and text.data[last] != CLOSING:
        raise text.unexpected("]", last)
    ends = [0, *(end for _, end in elements.whole)]
    begins = [*(begin for begin, _ in elements.whole), last]
    for place, (end, begin) in enumerate(zip(ends, begins, strict=True)):
        gap = text.data[end:begin].strip()
        is_first, is_last = place == 0, closed and place == len(elements.whole)
        if gap != (b"" if is_first or is_last else b","):
            around = b"%b%b%b" % (b"[" if is_first else b"[0", gap, b"]" if is_last else b"0]")
            decode_value(around, text.offset + end, collector.repaired)


def _read_on(text: Text, elements: Elements, collector: Collector) -> None:
    """Read on where nothing is known to have been read to its end."""
    more = text.more(len(text.data) + 1)
    if more and len(text.data) < LONG_EVENT:
        return
    beginning = b"[" + text.data[: elements.looked_at]
    fault = fault_in_beginning(beginning)
    if fault is not None:
        raise not_json(beginning, text.offset - 1, fault)
    if not more:
        raise text.truncated(f"the list of events, behind {collector.num_seen} of them")


def _as_list(data: bytes, begin: int, end: int) -> bytes:
    return b"".join((b"[", memoryview(data)[begin:end], b"]"))

"""A trace's JSON text from its first byte to its last, of which only a piece is in memory at a time."""

from collections import Counter
from typing import Any

from anatomy.traces.reading.collecting import Collector
from anatomy.traces.reading.cutting import BESIDE_BRACKETS, OPENING, QUOTE, read_events
from anatomy.traces.reading.decoding import decode_value
from anatomy.traces.reading.source import DamagedTraceError
from anatomy.traces.reading.text import SCALAR, WHOLE_STRING, Text

BOM = b"\xef\xbb\xbf"
EVENTS = "traceEvents"
FACTS = frozenset({"distributedInfo", "baseTimeNanoseconds"})
"""Keys beside the events whose values are kept."""

NO_TRACE = (
    f"expected a Kineto trace as torch.profiler exports it, an object with a list '{EVENTS}'; if this is no trace, "
    "leave it out (`ignore` in the config, or --ignore NAME)"
)


def read_document(text: Text, collector: Collector, facts: dict[str, Any], chunk_bytes: int) -> None:
    """Hand all events to the collector, and put the values of the keys `FACTS` into `facts` as soon as they are read.

    Raises DamagedTraceError where the text is truncated, or not JSON, or not a trace.
    """
    text.more(len(BOM))
    text.drop(len(BOM) if text.data.startswith(BOM) else 0)
    first = text.peek()
    if first == b"[":
        text.drop(1)
        read_events(text, collector, chunk_bytes)
    elif first == b"{":
        text.drop(1)
        if not _read_members(text, collector, facts, chunk_bytes):
            raise DamagedTraceError(f"JSON without a list '{EVENTS}'; {NO_TRACE}")
    elif first == b"<":
        raise DamagedTraceError("found HTML or XML, expected JSON; was a web page saved instead of the trace?")
    else:
        found = f"text that begins with {text.data[:20].decode(errors='replace')!r}" if first else "no text"
        raise DamagedTraceError(f"found {found}; {NO_TRACE}")
    if text.peek():
        raise text.unexpected("nothing more")


def _read_members(text: Text, collector: Collector, facts: dict[str, Any], chunk_bytes: int) -> bool:
    """Read the members of the outermost object and its closing bracket; whether events were among them."""
    found = False
    token = text.take(b"}", "the object") if text.peek() == b"}" else b","
    while token == b",":
        key = decode_value(text.take_match(WHOLE_STRING, "the object around the events"), text.offset, Counter())
        within = f"the value of {key!r}"
        text.take(b":", within)
        if key == EVENTS and text.peek() == b"[":
            text.drop(1)
            read_events(text, collector, chunk_bytes)
            found = True
        elif value := _read_value(text, within, keep=key in FACTS):
            decoded = decode_value(value, text.offset - len(value), collector.repaired)
            facts |= {key: decoded} if key in FACTS else {}
        token = text.take(b",}", "the object around the events")
    return found


def _read_value(text: Text, within: str, keep: bool) -> bytes:
    """Pass over any value and return its text.

    Of an object or list that is not to keep only the brackets are looked at, and nothing is returned.
    """
    first = text.peek()
    if first == b'"':
        return text.take_match(WHOLE_STRING, within)
    if first not in (b"{", b"["):
        return text.take_match(SCALAR, within)
    kept = []
    position = depth = 0
    while True:
        position = BESIDE_BRACKETS.match(text.data, position).end()
        complete = position < len(text.data) and text.data[position] != QUOTE
        if complete:
            depth += 1 if text.data[position] in OPENING else -1
            position += 1
        if depth == 0 or not complete:
            kept += [text.data[:position]] if keep else []
            text.drop(position)
            position = 0
            if depth == 0:
                return b"".join(kept)
            if not text.more(len(text.data) + 1):
                raise text.truncated(within)

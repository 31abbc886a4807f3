"""From the text of events to those of their fields that are kept."""

import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from anatomy.traces.reading.repair import repair
from anatomy.traces.reading.source import AGAIN, DamagedTraceError

UNSAID = -(2**31)
"""Stands for a stream that an event's arguments do not state."""

LARGEST_INTEGER = 2**62
NAN = math.nan
UNREADABLE = (msgspec.DecodeError, RecursionError)
TRUNCATED = "Input data was truncated"
"""What msgspec says, without a place."""
PLACE = re.compile(r"\(byte (\d+)\)")


Integer = Annotated[int, msgspec.Meta(gt=-LARGEST_INTEGER, lt=LARGEST_INTEGER)]


class Arguments(msgspec.Struct, gc=False, frozen=True):
    """What is kept of the arguments of every event."""

    stream: Integer = UNSAID
    correlation: Integer = -1


class Event(msgspec.Struct, gc=False):
    """An event with times as numbers, NaN where there is none."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: int | float = NAN
    dur: int | float = NAN
    args: Arguments = Arguments()


class ExactEvent(Event, gc=False):
    """An event with its time stamp as text."""

    ts: msgspec.Raw = msgspec.Raw()


class AnyEvent(msgspec.Struct):
    """Whatever an event's fields may be, with its time stamp as text."""

    ph: Any = ""
    cat: Any = ""
    name: Any = ""
    pid: Any = ""
    tid: Any = ""
    ts: msgspec.Raw = msgspec.Raw()
    dur: Any = NAN
    args: Any = None


EVENTS = msgspec.json.Decoder(list[Event])
EXACT_EVENTS = msgspec.json.Decoder(list[ExactEvent])
ANY_EVENTS = msgspec.json.Decoder(list[AnyEvent])
ANY_EVENT = msgspec.json.Decoder(AnyEvent)
ANYTHING = msgspec.json.Decoder(Any)


def decode_event(text: bytes, offset: int, counts: Counter[str]) -> AnyEvent | None:
    """One element of the list of events, repaired where need be; None where it is no object.

    `offset` is its place in the file's text, `counts` as in `repair`.

    Raises DamagedTraceError where it is not JSON.
    """
    if not text.startswith(b"{"):
        decode_value(text, offset, counts)
        return None
    try:
        return ANY_EVENT.decode(repair(text, counts))
    except UNREADABLE as error:
        raise not_json(text, offset, error) from error


def decode_value(text: bytes, offset: int, counts: Counter[str]) -> Any:
    """A JSON value, repaired where need be; see `decode_event`."""
    try:
        return ANYTHING.decode(repair(text, counts))
    except UNREADABLE as error:
        raise not_json(text, offset, error) from error


def fault_in_beginning(text: bytes) -> Exception | None:
    """What keeps a text, repaired where need be, from being the beginning of a longer one that is JSON."""
    try:
        ANYTHING.decode(repair(text, Counter()))
    except UNREADABLE as error:
        return None if str(error) == TRUNCATED else error
    return None


def find_arguments(
    text: bytes, separator: bytes, wanted: list[tuple[str, Any]], is_kept: Callable[[str], bool]
) -> list[dict[str, Any]] | None:
    """All arguments of some events of a list, without decoding the others.

    `text` is a JSON list, `separator` what lies between its events from bracket to bracket, `wanted` names and time
    stamps as decoded, in the order of the list; `is_kept` says of a category whether its events can be wanted. None
    where the text spells them in a way in which they can't be found.
    """
    result = []
    place = 1
    for name, stamp in wanted:
        spelt = msgspec.json.encode(name)
        found = text.find(spelt, place)
        while found >= 0:
            before, behind = text.rfind(separator, place, found), text.find(separator, found)
            begin = place if before < 0 else before + len(separator) - 1
            end = len(text) - 1 if behind < 0 else behind + 1
            try:
                event = ANY_EVENT.decode(memoryview(text)[begin:end])
                same = event.name == name and _spells(bytes(event.ts), stamp)
                same = same and event.ph == "X" and is_kept(str(event.cat))
            except UNREADABLE:
                return None
            if same:
                result.append(arguments_of(event))
                place = end + len(separator) - 2
                break
            # Another event's arguments have the name as a value.
            found = text.find(spelt, end)
        else:
            return None
    return result


def not_json(text: bytes, offset: int, error: Exception) -> DamagedTraceError:
    """The error for a piece of text at an offset that a decoder did not take."""
    found = PLACE.search(str(error))
    place = min(int(found[1]), len(text)) if found else 0
    near = text[max(place - 20, 0) : place + 20].decode(errors="replace")
    return DamagedTraceError(f"not valid JSON near byte {offset + place}, at {near!r}: {error}; {AGAIN}")


def arguments_of(event: AnyEvent) -> dict[str, Any]:
    """All arguments of an event, if it has any."""
    return event.args if isinstance(event.args, dict) else {}


def fit(event: AnyEvent) -> ExactEvent:
    """The event with every field of its type; what isn't is as if it were not there."""
    args = arguments_of(event)
    return ExactEvent(
        ph=event.ph if isinstance(event.ph, str) else "",
        cat=str(event.cat),
        name="" if event.name is None else str(event.name),
        pid=event.pid if _is_integer(event.pid) else str(event.pid),
        tid=event.tid if _is_integer(event.tid) else str(event.tid),
        ts=event.ts,
        dur=event.dur if isinstance(event.dur, float) or _is_integer(event.dur) else NAN,
        args=Arguments(
            stream=args["stream"] if _is_integer(args.get("stream")) else UNSAID,
            correlation=args["correlation"] if _is_integer(args.get("correlation")) else -1,
        ),
    )


def _spells(text: bytes, stamp: msgspec.Raw | int | float) -> bool:
    """Whether a text, which may be absent, is that of a time stamp."""
    if isinstance(stamp, msgspec.Raw):
        return text == bytes(stamp)
    return ANYTHING.decode(text) == stamp if text else math.isnan(stamp)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST_INTEGER

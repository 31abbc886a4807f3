"""Events as they are decoded, gathered into columns."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import ValidationError

from anatomy.phases import ANNOTATION_PREFIX
from anatomy.traces.naming import STEP_PREFIX, is_communication
from anatomy.traces.reading import decoding, times
from anatomy.traces.reading.codes import Codes, PairCodes
from anatomy.traces.reading.events import GPU_KINDS, Events, Kind, assemble
from anatomy.traces.reading.repair import is_utf8, repair

KINDS: dict[str, Kind] = {
    "cpu_op": Kind.OP,
    "operator": Kind.OP,
    "user_annotation": Kind.ANNOTATION,
    "gpu_user_annotation": Kind.GPU_ANNOTATION,
    "kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "memset": Kind.MEMSET,
    "cuda_runtime": Kind.LAUNCH,
    "cuda_driver": Kind.LAUNCH,
    "runtime": Kind.LAUNCH,
}
"""What is kept, by Kineto's category in lower case, old and new. Synchronisation rows, Python frames, overheads and the
profiler's own spans are not work of the rank and are left out."""

COLUMNS: dict[str, type] = {
    "kind": np.uint8,
    "name": np.int32,
    "thread": np.int32,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "stream": np.int32,
    "correlation": np.int64,
}

NARROW = 2**31 - 1

BAD_START = "a bad time stamp"
BAD_LENGTH = "a missing or bad duration"
NEGATIVE = "a negative duration"
EARLY = "a kernel before its launch"


class KindOf(dict):
    """Kinds by category as it is spelt, None for what is not kept."""

    def __missing__(self, category: str) -> int | None:
        kind = KINDS.get(category.lower())
        self[category] = value = None if kind is None else int(kind)
        return value


class Rows(NamedTuple):
    """Kept events as one sequence per column; `ts` as `times.of_numbers` or `times.of_texts` take it."""

    kind: tuple[int, ...] = ()
    name: tuple[int, ...] = ()
    thread: tuple[int, ...] = ()
    ts: tuple[Any, ...] = ()
    dur: tuple[float, ...] = ()
    stream: tuple[int, ...] = ()
    correlation: tuple[int, ...] = ()


class Collector:
    """Takes a trace's events chunk by chunk and keeps what `Events` has.

    num_seen counts events of every sort, `dropped` those without a usable time by reason, `repaired` what `repair` did.
    """

    def __init__(self) -> None:
        self.num_seen = 0
        self.dropped: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()
        # A bytearray grows in place, and NumPy can look at it in the end without a copy.
        self._columns = {name: bytearray() for name in COLUMNS}
        self._names, self._threads, self._kind_of = Codes(), PairCodes(), KindOf()
        self._communicates = b""
        self._args: dict[int, dict[str, Any]] = {}
        self._decoder = decoding.EVENTS

    def __len__(self) -> int:
        return len(self._columns["kind"])

    def take_chunk(self, text: bytes, separator: bytes) -> bool:
        """Take a JSON list of events; False, and nothing is taken, where it is not one even when it is repaired.

        `separator` is what lies between two events in this trace.
        """
        if is_utf8(text) and self._take(text, separator):
            return True
        counts: Counter[str] = Counter()
        repaired = repair(text, counts)
        taken = repaired != text and self._take(repaired, separator)
        if taken:
            self.repaired += counts
        return taken

    def take_pieces(self, pieces: Iterable[tuple[bytes, int]]) -> None:
        """Take the texts of single elements of the list of events, each with its place in the file's text.

        Raises DamagedTraceError where one is not JSON and can't be repaired.
        """
        events = [decoding.decode_event(text, offset, self.repaired) for text, offset in pieces]
        self._take_unusual([event for event in events if event is not None])

    def _take(self, text: bytes, separator: bytes) -> bool:
        try:
            if not self._take_usual(text, separator):
                self._take_unusual(decoding.ANY_EVENTS.decode(text))
        except decoding.UNREADABLE:
            return False
        return True

    def _take_usual(self, text: bytes, separator: bytes) -> bool:
        """Take a list of events the quick way, which needs every field to be of its usual type."""
        try:
            events = self._decoder.decode(text)
        except ValidationError:
            return False
        rows = self._rows(events)
        start_ns = times.of_numbers(rows.ts) if self._decoder is decoding.EVENTS else times.of_texts(rows.ts)
        if start_ns is None:
            # Once a trace is such that only the text of its time stamps is exact, it remains so.
            self._decoder = decoding.EXACT_EVENTS
            rows = self._rows(self._decoder.decode(text))
            start_ns = times.of_texts(rows.ts)
        talking = self._talking(rows)
        wanted = [(self._names.seen[rows.name[row]], rows.ts[row]) for row in talking]
        args = decoding.find_arguments(text, separator, wanted, self._is_kept)
        if args is None:
            return False
        self.num_seen += len(events)
        self._append(rows, start_ns, dict(zip(talking, args, strict=True)))
        return True

    def _take_unusual(self, events: list[decoding.AnyEvent]) -> None:
        """Take events whose fields may be anything."""
        self.num_seen += len(events)
        kept = [event for event in events if event.ph == "X" and self._is_kept(str(event.cat))]
        rows = self._rows([decoding.fit(event) for event in kept])
        args = {row: decoding.arguments_of(kept[row]) for row in self._talking(rows)}
        self._append(rows, times.of_texts(rows.ts), args)

    def finish(self, base_ns: int) -> Events:
        """The events, with `base_ns` added to their times; nothing can be taken any more."""
        columns = {name: np.frombuffer(column, COLUMNS[name]) for name, column in self._columns.items()}
        self._columns.clear()
        usable = columns["end_ns"] < times.LARGEST_TIME - base_ns
        if not usable.all():
            self.dropped[BAD_START] += int((~usable).sum())
            place = np.cumsum(usable) - 1
            self._args = {int(place[row]): value for row, value in self._args.items() if usable[row]}
            columns = {name: column[usable] for name, column in columns.items()}
        columns["start_ns"] += base_ns
        columns["end_ns"] += base_ns
        self._name_annotations(columns)
        self._complete_streams(columns)
        threads = self._label_threads(columns)
        names = tuple(self._names.seen)
        events, num_early = assemble(GivenAway(columns), columns.pop("correlation"), names, threads, self._args)
        self.dropped[EARLY] += num_early
        return events

    def _is_kept(self, category: str) -> bool:
        return self._kind_of[category] is not None

    def _rows(self, events: list[Any]) -> Rows:
        kind_of, name_code, thread_code = self._kind_of, self._names, self._threads
        rows = [
            (
                kind,
                name_code[event.name],
                thread_code[event.pid][event.tid],
                event.ts,
                event.dur,
                (args := event.args).stream,
                args.correlation,
            )
            for event in events
            if (kind := kind_of[event.cat]) is not None and event.ph == "X"
        ]
        return Rows(*zip(*rows, strict=True)) if rows else Rows()

    def _talking(self, rows: Rows) -> list[int]:
        """Which rows are communication, all of whose arguments are kept."""
        known = len(self._communicates)
        self._communicates += bytes(map(is_communication, self._names.seen[known:]))
        return np.flatnonzero(np.frombuffer(self._communicates, bool)[_column(rows.name, np.int32)]).tolist()

    def _append(self, rows: Rows, start_ns: np.ndarray, args: dict[int, dict[str, Any]]) -> None:
        """Append the rows with a usable time and count the others; `args` is by row."""
        length_ns = times.of_durations(rows.dur)
        columns = {"start_ns": start_ns, "end_ns": start_ns + length_ns, "stream": self._streams(rows.stream)}
        columns |= {name: _column(getattr(rows, name), COLUMNS[name]) for name in COLUMNS if name not in columns}
        stamped, timed = start_ns != times.BAD, length_ns < times.LARGEST_TIME - start_ns
        kept = stamped & timed & (length_ns >= 0)
        place = np.arange(len(self), len(self) + len(kept))
        if not kept.all():
            self.dropped[BAD_START] += int((~stamped).sum())
            self.dropped[BAD_LENGTH] += int((stamped & ~timed).sum())
            self.dropped[NEGATIVE] += int((stamped & timed & (length_ns < 0)).sum())
            place = len(self) + np.cumsum(kept) - 1
            columns = {name: column[kept] for name, column in columns.items()}
        self._args.update((int(place[row]), value) for row, value in args.items() if kept[row])
        for name, column in columns.items():
            self._columns[name] += column.data

    def _streams(self, stream: Sequence[int]) -> np.ndarray:
        column = _column(stream, np.int64)
        # Some profilers identify a stream by an address, of which the low bits differ.
        return np.where((column > NARROW) | (column < decoding.UNSAID), column & NARROW, column).astype(np.int32)

    def _name_annotations(self, columns: dict[str, np.ndarray]) -> None:
        """Without a category of their own, annotations are operators by which only their name shows what they are."""
        names = self._names.seen
        named = np.array([name.startswith((STEP_PREFIX, ANNOTATION_PREFIX)) for name in names], dtype=bool)
        columns["kind"][named[columns["name"]] & (columns["kind"] == Kind.OP)] = Kind.ANNOTATION

    def _complete_streams(self, columns: dict[str, np.ndarray]) -> None:
        """On the GPU, what does not state its stream is on that which its thread is named after."""
        tids = [tid if isinstance(tid, int) and abs(tid) < NARROW else -1 for _, tid in self._threads.seen]
        on_gpu = np.isin(columns["kind"], GPU_KINDS)
        unsaid = columns["stream"] == decoding.UNSAID
        columns["stream"][~on_gpu] = -1
        unsaid &= on_gpu
        columns["stream"][unsaid] = np.array(tids, dtype=np.int32)[columns["thread"][unsaid]]

    def _label_threads(self, columns: dict[str, np.ndarray]) -> tuple[str, ...]:
        """Number the threads by their label `pid/tid`; returns the labels."""
        labels = Codes()
        codes = np.array([labels[f"{pid}/{tid}"] for pid, tid in self._threads.seen], dtype=np.int32)
        columns["thread"][:] = codes[columns["thread"]]
        return tuple(labels.seen)


class GivenAway(Mapping):
    """Columns, each of which is forgotten when it is asked for, so that its memory is free when it has been used."""

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self._columns = columns

    def __getitem__(self, name: str) -> np.ndarray:
        return self._columns.pop(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def _column(values: Sequence[int], dtype: type) -> np.ndarray:
    return np.fromiter(values, dtype=dtype, count=len(values))

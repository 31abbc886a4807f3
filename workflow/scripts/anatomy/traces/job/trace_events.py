"""Slices and arrows on tracks, written as a Chrome Trace Event file (JSON, gzipped).

The format is Google's "Trace Event Format"; ui.perfetto.dev and chrome://tracing read it. Three of its rules are easily
broken, and viewers then drop or misplace what breaks them:

- Slices of one track nest or do not overlap. `lay` gives those that do neither another track.
- Every slice is written as its begin (`B`) and its end (`E`) rather than as one event with a duration (`X`), whose end
  viewers compute in floating point: slices that end together would then differ by a nanosecond and nest no longer.
- An arrow is two events, each bound to the slice that is open on its track then, the innermost. So at one instant ends
  come first, begins second, arrows last.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from isal import isal_zlib

END, BEGIN, ARROW = range(3)

EVENTS_AT_ONCE = 20_000
"""Events turned into text at once: some megabytes."""

GZIP = {"level": 2, "wbits": 31}
"""A gzip stream whose header has neither a name nor a time, so that equal timelines have equal bytes."""

FRACTIONS = tuple(f".{nanoseconds:03d}}}" for nanoseconds in range(1000))


@dataclass(frozen=True)
class Track:
    """A row of the timeline: a thread, in the words of the format."""

    process: int
    thread: int

    def text(self, phase: str) -> str:
        """The beginning of an event of this track."""
        return f'{{"ph":"{phase}","pid":{self.process},"tid":{self.thread}'


def described(name: str, colour: str | None = None, args: Mapping[str, Any] | None = None) -> str:
    """What a slice says of itself, as a piece of JSON. `colour` is one that chrome://tracing has a name for."""
    text = f',"name":{_json(name)}'
    if colour is not None:
        text += f',"cname":"{colour}"'
    if args:
        text += f',"args":{_json(args)}'
    return text


def with_number(text: str, name: str, number: float) -> str:
    """What `described` made of some arguments, with one more."""
    return f'{text[:-1]},"{name}":{number}}}'


def lay(starts: np.ndarray, ends: np.ndarray, nested: bool) -> tuple[np.ndarray, np.ndarray]:
    """Spread slices over as few lanes as a first fit needs, so that in each they do not overlap, or if `nested` nest.

    Slices [n] have a length and are sorted by start, of those that start together the longest first. Returns the lane
    and the depth within it of each [n].
    """
    if not (starts[1:] < ends[:-1]).any():
        return np.zeros(len(starts), dtype=np.int64), np.zeros(len(starts), dtype=np.int64)
    lanes: list[int] = []
    depths: list[int] = []
    open_ends: list[list[int]] = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        lane = 0
        while lane < len(open_ends) and not _fits(open_ends[lane], start, end, nested):
            lane += 1
        if lane == len(open_ends):
            open_ends.append([])
        lanes.append(lane)
        depths.append(len(open_ends[lane]))
        open_ends[lane].append(end)
    return np.array(lanes, dtype=np.int64), np.array(depths, dtype=np.int64)


def _fits(open_ends: list[int], start: int, end: int, nested: bool) -> bool:
    """Whether a slice can lie in a lane; `open_ends` are those of its slices not ended yet, the innermost last."""
    while open_ends and open_ends[-1] <= start:
        open_ends.pop()
    return not open_ends or (nested and end <= open_ends[-1])


class TraceEvents:
    """What a timeline shows, in the order in which it was added; times are int64 ns by one clock.

    `processes` are the numbers that processes may have: those of threads must differ from them.
    """

    def __init__(self, processes: int) -> None:
        self._next_thread = processes
        self._metadata: list[str] = []
        self._texts: list[str] = []
        self._columns: list[tuple[np.ndarray, ...]] = []
        self._num_arrows = 0

    def process(self, number: int, name: str, place: int, label: str | None = None) -> None:
        """Name a process and say at which place it is shown."""
        facts = {"process_name": {"name": name}, "process_sort_index": {"sort_index": place}}
        if label is not None:
            facts["process_labels"] = {"labels": label}
        self._metadata += [_metadata(f'"pid":{number}', fact, value) for fact, value in facts.items()]

    def track(self, process: int, name: str) -> Track:
        """A new track below those that the process has."""
        track = Track(process, self._next_thread)
        place = f'"pid":{process},"tid":{track.thread}'
        self._metadata.append(_metadata(place, "thread_name", {"name": name}))
        self._metadata.append(_metadata(place, "thread_sort_index", {"sort_index": track.thread}))
        self._next_thread += 1
        return track

    def slices(
        self,
        track: Track,
        starts: np.ndarray,
        ends: np.ndarray,
        texts: Sequence[str],
        which: np.ndarray | None = None,
        depth: np.ndarray | int = 0,
    ) -> None:
        """Add slices [n] of some length, which nest in those of the track; `depth` says in how many.

        `texts` are from `described`: one per slice, or those that `which` [n] points to.
        """
        which = np.arange(len(starts)) if which is None else which
        depth = np.broadcast_to(depth, len(starts))
        self._add(ends, END, -depth, np.zeros(len(starts), dtype=np.int64), [track.text("E")])
        self._add(starts, BEGIN, depth, which, [track.text("B") + text for text in texts])

    def arrows(self, name: str, sources: Sequence[tuple[Track, int]], targets: Sequence[tuple[Track, int]]) -> None:
        """Add arrows [n], each between the innermost slices of two tracks at an instant of each."""
        first = self._num_arrows
        for place, (phase, bound, ends) in enumerate((("s", "", sources), ("f", ',"bp":"e"', targets))):
            said = f',"cat":"{name}","name":"{name}"{bound},"id":'
            texts = [f"{track.text(phase)}{said}{number}" for number, (track, _) in enumerate(ends, start=first)]
            instants = np.array([instant for _, instant in ends], dtype=np.int64)
            self._add(instants, ARROW, np.full(len(ends), place), np.arange(len(ends)), texts)
        self._num_arrows += len(sources)

    def write(self, path: Path, about: Mapping[str, Any]) -> None:
        """Write everything, sorted by time, as microseconds since the first start, exact to the nanosecond; `about` and
        that start are put beside the events."""
        instants, kinds, places, texts = (np.concatenate(column) for column in zip(*self._columns, strict=True))
        base_ns = int(instants.min())
        order = np.lexsort([places, kinds, instants])
        # As text: JavaScript would round a number of this size.
        about = {**about, "base_time_ns": str(base_ns)}
        compressor = isal_zlib.compressobj(**GZIP)
        with path.open("wb") as file:
            head = f'{{"displayTimeUnit":"ns","otherData":{_json(about)},"traceEvents":[\n'
            file.write(compressor.compress((head + ",\n".join(self._metadata)).encode()))
            for text in self._lines(texts[order], instants[order] - base_ns):
                file.write(compressor.compress(text.encode()))
            file.write(compressor.compress(b"\n]}\n"))
            file.write(compressor.flush())

    def _add(self, instants: np.ndarray, kind: int, places: np.ndarray, which: np.ndarray, texts: list[str]) -> None:
        kinds = np.full(len(instants), kind, dtype=np.int8)
        self._columns.append((instants.astype(np.int64), kinds, places.astype(np.int32), which + len(self._texts)))
        self._texts += texts

    def _lines(self, texts: np.ndarray, instants: np.ndarray) -> Iterator[str]:
        """The events as text, many at once."""
        begun = self._texts
        for first in range(0, len(texts), EVENTS_AT_ONCE):
            chosen = slice(first, first + EVENTS_AT_ONCE)
            whole, fraction = np.divmod(instants[chosen], 1000)
            rows = zip(texts[chosen].tolist(), whole.tolist(), fraction.tolist(), strict=True)
            yield "".join([f',\n{begun[text]},"ts":{us}{FRACTIONS[ns]}' for text, us, ns in rows])


def _metadata(place: str, name: str, args: Mapping[str, Any]) -> str:
    return f'{{"ph":"M",{place},"name":"{name}","args":{_json(args)}}}'


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()

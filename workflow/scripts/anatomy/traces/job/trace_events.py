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

ENCODER = msgspec.json.Encoder()

EVENTS_AT_ONCE = 20_000
"""Events turned into text at once: some megabytes."""

GZIP = {"level": 2, "wbits": 31}
"""A gzip stream whose header has neither a name nor a time, so that equal timelines have equal bytes."""

THREE_DIGITS = np.array([f"{number:03d}" for number in range(1000)] + [str(number) for number in range(1000)], object)
FRACTIONS = np.array([f".{nanoseconds:03d}}}" for nanoseconds in range(1000)], object)


@dataclass(frozen=True)
class Track:
    """A row of the timeline: a thread, in the words of the format."""

    process: int
    thread: int

    def text(self, phase: str) -> str:
        """The beginning of an event of this track."""
        return f'{{"ph":"{phase}","pid":{self.process},"tid":{self.thread}'


def described(name: str, colour: str | None = None, args: Mapping[str, Any] | msgspec.Struct | None = None) -> str:
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
    lanes, depths = np.zeros(len(starts), dtype=np.int64), np.zeros(len(starts), dtype=np.int64)
    alone = np.append(True, starts[1:] >= np.maximum.accumulate(ends[:-1]))
    rows = np.flatnonzero(~(alone & np.append(alone[1:], True))) if len(starts) else []
    if len(rows) == 0:
        return lanes, depths
    open_ends: list[list[int]] = []
    found = []
    for start, end in zip(starts[rows].tolist(), ends[rows].tolist(), strict=True):
        lane = 0
        while lane < len(open_ends) and not _fits(open_ends[lane], start, end, nested):
            lane += 1
        if lane == len(open_ends):
            open_ends.append([])
        found.append((lane, len(open_ends[lane])))
        open_ends[lane].append(end)
    lanes[rows], depths[rows] = zip(*found, strict=True)
    return lanes, depths


def _fits(open_ends: list[int], start: int, end: int, nested: bool) -> bool:
    """Whether a slice can lie in a lane; `open_ends` are those of its slices not ended yet, the innermost last."""
    while open_ends and open_ends[-1] <= start:
        open_ends.pop()
    return not open_ends or (nested and end <= open_ends[-1])


def lanes_of(starts: np.ndarray, ends: np.ndarray) -> list[np.ndarray]:
    """Which slices go on each of as many tracks as `lay` needs for none to overlap: indices."""
    lanes, _ = lay(starts, ends, nested=False)
    return [np.flatnonzero(lanes == lane) for lane in range(lanes.max(initial=-1) + 1)]


@dataclass(frozen=True)
class Block:
    """Events [n] that have their place among those of one instant in common: by kind, and then by `place`.

    instants int64, ns; texts: what each says, as an index.
    """

    kind: int
    place: int
    instants: np.ndarray
    texts: np.ndarray


class TraceEvents:
    """What a timeline shows, in the order in which it was added; times are int64 ns by one clock.

    `processes` are the numbers that processes may have: those of threads must differ from them.
    """

    def __init__(self, processes: int) -> None:
        self._next_thread = processes
        self._metadata: list[str] = []
        self._texts: list[str] = []
        self._blocks: list[Block] = []
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
        depth: int = 0,
    ) -> None:
        """Add slices [n] of some length, which nest in `depth` others of the track.

        `texts` are from `described`: one per slice, or those that `which` [n] points to.
        """
        which = np.arange(len(starts)) if which is None else which
        self._add(END, -depth, ends, np.zeros(len(starts), dtype=np.int64), [track.text("E")])
        begin = track.text("B")
        self._add(BEGIN, depth, starts, which, [begin + text for text in texts])

    def arrows(
        self,
        name: str,
        tracks: Sequence[Track],
        sources: tuple[np.ndarray, np.ndarray],
        targets: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """Add arrows [n], each between the innermost slices of two tracks at an instant of each.

        Where they begin and end is given as indices into `tracks` [n] and instants [n].
        """
        for place, (phase, bound, (which, instants)) in enumerate((("s", "", sources), ("f", ',"bp":"e"', targets))):
            begins = [f'{track.text(phase)},"cat":"{name}","name":"{name}"{bound},"id":' for track in tracks]
            texts = [f"{begins[index]}{number}" for number, index in enumerate(which.tolist(), start=self._num_arrows)]
            self._add(ARROW, place, instants, np.arange(len(texts)), texts)
        self._num_arrows += len(sources[0])

    def write(self, path: Path, about: Mapping[str, Any]) -> None:
        """Write everything, sorted by time, as microseconds since the first start, exact to the nanosecond; `about` and
        that start are put beside the events."""
        # What is sorted stably by time stays in this order at every instant.
        blocks = sorted(self._blocks, key=lambda block: (block.kind, block.place))
        instants, texts = (np.concatenate([getattr(block, name) for block in blocks]) for name in ("instants", "texts"))
        base_ns = int(instants.min())
        order = np.argsort(instants, kind="stable")
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

    def _add(self, kind: int, place: int, instants: np.ndarray, which: np.ndarray, texts: list[str]) -> None:
        self._blocks.append(Block(kind, place, instants.astype(np.int64), which + len(self._texts)))
        self._texts += [f',\n{text},"ts":' for text in texts]

    def _lines(self, texts: np.ndarray, instants: np.ndarray) -> Iterator[str]:
        """The events as text, many at once, from times since the first one in ns, ascending."""
        begun = np.array(self._texts, dtype=object)
        for first in range(0, len(texts), EVENTS_AT_ONCE):
            chosen = slice(first, first + EVENTS_AT_ONCE)
            # Strings that are there already are joined several times faster than numbers are formatted.
            yield "".join(np.column_stack([begun[texts[chosen]], *_microseconds(instants[chosen])]).ravel().tolist())


def _microseconds(instants: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times in ns, ascending [n], as the parts of a text in microseconds, objects [n] each."""
    whole, nanoseconds = np.divmod(instants, 1000)
    thousands, rest = np.divmod(whole, 1000)
    first = np.flatnonzero(np.append(True, thousands[1:] != thousands[:-1]))
    names = np.array([str(number) if number else "" for number in thousands[first].tolist()], dtype=object)
    rest[thousands == 0] += 1000  # without leading zeros where nothing is before them
    return np.repeat(names, np.diff(np.append(first, len(instants)))), THREE_DIGITS[rest], FRACTIONS[nanoseconds]


def _metadata(place: str, name: str, args: Mapping[str, Any]) -> str:
    return f'{{"ph":"M",{place},"name":"{name}","args":{_json(args)}}}'


def _json(value: Any) -> str:
    return ENCODER.encode(value).decode()

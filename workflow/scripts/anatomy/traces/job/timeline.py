"""One timeline of all ranks on one clock: the file `timeline.json.gz`, for ui.perfetto.dev or chrome://tracing.

Each rank is a process with these tracks: its steps; its annotated phases; what it did, without gap or overlap; its
collectives, each split into waiting and transfer, with arrows from the rank that arrived last to those that waited for
it; and one track for each GPU stream and communicating CPU thread. A further process shows the critical path. Slices
that would overlap without being nested are put on further tracks of the same name; those without length are left out.

The file's size is bounded whatever the job's: by `MOST_PIECES` of what ranks and streams did, of which short neighbours
are merged above it, and by `MOST_ANNOTATIONS` each of phases, collectives and elements of the critical path, of which
the longest are shown. The file says what was merged or left out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from anatomy.platforms import PLATFORMS
from anatomy.traces.columns import MISSING, Columns, Named, concatenated, take
from anatomy.traces.job.collective_slices import add_arrows, add_collectives
from anatomy.traces.job.critical_path import on_common_clock
from anatomy.traces.job.pieces import Pieces, pieces_of
from anatomy.traces.job.trace_events import TraceEvents, Track, described, lanes_of, lay, with_number
from anatomy.traces.rank.annotations import PHASES
from anatomy.traces.rank.decomposition import CATEGORIES
from anatomy.traces.rank.record import RankRecord
from anatomy.traces.rank.summaries import WHOLE_RANK

MOST_PIECES = 100_000
MOST_ANNOTATIONS = 20_000

COLOURS = {
    "compute": "thread_state_running",
    "communication": "rail_response",
    "preparation": "rail_load",
    "copy": "yellow",
    "idle": "grey",
    "other": "generic_work",
}
"""What chrome://tracing calls the colours of the categories; ui.perfetto.dev chooses its own."""

Offsets = Mapping[int, int]


def write_timeline(
    path: Path,
    records: Mapping[int, RankRecord],
    tables: Mapping[str, Mapping[str, Any]],
    offsets: Offsets,
    facts: Mapping[str, Any],
) -> None:
    """Write the timeline of a job; the same job always gives the same bytes.

    `records` have the phases of each rank; `tables` are columns: steps, collectives, intervals and critical_path as
    described in `anatomy.traces.tables`, and clocks where there are any. Category, phase and stream of intervals are
    `Named`; elsewhere categories and phases are indices into `CATEGORIES` and `PHASES`. `offsets` is what to take from
    each rank's times, in ns, to have them on the reference rank's clock, on which the critical path is already; a rank
    without one is shown by its own clock, and the file says so. `facts` are the manifest's.
    """
    highest = max(records)
    events = TraceEvents(processes=highest + 2)
    activity = _Activity.of(tables["intervals"], offsets)
    phases = _Longest.of(_phases(records), offsets, "phases")
    collectives = _Longest.of(tables["collectives"], offsets, "pieces of communication")
    critical = _Longest.of(tables["critical_path"], {}, "elements of the critical path")
    _add_critical_path(events, critical.by_rank, tables["collectives"], highest + 1)
    unknown = _unknown_clocks(records, tables, offsets)
    halves: list[tuple[Track, Columns]] = []
    for place, rank in enumerate(sorted(records)):
        events.process(rank, f"rank {rank}", place, "by its own clock: offset unknown" if rank in unknown else None)
        _add_steps(events, tables["steps"], rank, offsets)
        if rank in phases.by_rank:
            _add_phases(events, phases.by_rank[rank], rank)
        activity.add(events, rank, whole_rank=True)
        if rank in collectives.by_rank:
            halves += add_collectives(events, collectives.by_rank[rank], rank)
        activity.add(events, rank, whole_rank=False)
    add_arrows(events, halves)
    about = {
        "kind": PLATFORMS.get(str(facts.get("trace_kind")), "unknown"),
        "clock_offsets_ns": {str(rank): offsets.get(rank) for rank in sorted(records)},
        "left_out": [note for note in (activity.note, phases.note, collectives.note, critical.note) if note],
    }
    events.write(path, about)


@dataclass(frozen=True)
class _Activity:
    """What ranks and streams did.

    streams: of each rank, the name and the number of the track of each stream, in the order in which they are shown
    pieces: the pieces of all tracks; bounds: where those of each track begin and end [tracks + 1]
    labels: the category and phase that each label of a piece stands for
    """

    streams: dict[int, list[tuple[str, int]]]
    pieces: Pieces
    bounds: np.ndarray
    labels: list[tuple[str, str]]
    note: str | None

    @classmethod
    def of(cls, intervals: Mapping[str, Any], offsets: Offsets) -> "_Activity":
        """Merge short neighbours where there are more than `MOST_PIECES`."""
        track, tracks = _tracks(intervals["rank"], intervals["stream"])
        category, phase = intervals["category"], intervals["phase"]
        label = category.codes.astype(np.int16) * len(phase.names) + phase.codes
        work = {"track": track, "label": label, "start_ns": intervals["start_ns"], "end_ns": intervals["end_ns"]}
        shift_ns = np.array([offsets.get(rank, 0) for rank, _ in tracks], dtype=np.int64)
        pieces, cell_ns = pieces_of(work, shift_ns, MOST_PIECES)
        streams: dict[int, list[tuple[str, int]]] = {}
        for number, (rank, stream) in sorted(enumerate(tracks), key=lambda item: _natural(item[1][1])):
            streams.setdefault(rank, []).append((stream, number))
        bounds = np.searchsorted(pieces.track, np.arange(len(tracks) + 1, dtype=pieces.track.dtype))
        labels = [(one, other) for one in category.names for other in phase.names]
        note = None if cell_ns is None else f"activity shorter than {cell_ns // 1000} us is merged with its neighbours"
        return cls(streams, pieces, bounds, labels, note)

    def add(self, events: TraceEvents, rank: int, whole_rank: bool) -> None:
        """Add the track of a rank as a whole, or else one for each of its streams, and more where its work overlaps."""
        for stream, number in self.streams.get(rank, ()):
            if (stream == WHOLE_RANK) != whole_rank:
                continue
            own = slice(*self.bounds[number : number + 2])
            starts, ends = self.pieces.start_ns[own], self.pieces.end_ns[own]
            shown, which = np.unique(
                self.pieces.count[own] * len(self.labels) + self.pieces.label[own], return_inverse=True
            )
            texts = [self._text(*divmod(value, len(self.labels))) for value in shown.tolist()]
            for on in lanes_of(starts, ends):
                track = events.track(rank, "activity" if whole_rank else stream)
                events.slices(track, starts[on], ends[on], texts, which[on])

    def _text(self, count: int, label: int) -> str:
        category, phase = self.labels[label]
        return described(category, COLOURS.get(category), {"phase": phase} | ({"merged": count} if count > 1 else {}))


@dataclass(frozen=True)
class _Longest:
    """At most `MOST_ANNOTATIONS` rows on the common clock, each of some length, by rank in the order in which `lay`
    needs them; and what to say where there were more."""

    by_rank: dict[int, Columns]
    note: str | None

    @classmethod
    def of(cls, rows: Columns, offsets: Offsets, what: str) -> "_Longest":
        starts, ends = on_common_clock(rows, offsets)
        order = np.lexsort([-ends, starts])
        order = order[ends[order] > starts[order]]
        note = None
        if len(order) > MOST_ANNOTATIONS:
            note = f"of {len(order)} {what} the longest {MOST_ANNOTATIONS} are shown"
            by_length = np.argsort((starts - ends)[order], kind="stable")
            order = order[np.sort(by_length[:MOST_ANNOTATIONS])]
        order = order[np.argsort(rows["rank"][order], kind="stable")]
        chosen = take({**rows, "start_ns": starts, "end_ns": ends}, order)
        ranks, first = np.unique(chosen["rank"], return_index=True)
        bounds = pairwise([*first.tolist(), len(order)])
        return cls({rank: take(chosen, slice(*rows)) for rank, rows in zip(ranks.tolist(), bounds, strict=True)}, note)


def _tracks(rank: np.ndarray, stream: Named) -> tuple[np.ndarray, list[tuple[int, str]]]:
    """The track of each row, int32 [n], numbered as they come; and the rank and stream of each track."""
    differs = (rank[1:] != rank[:-1]) | (stream.codes[1:] != stream.codes[:-1])
    begins = np.flatnonzero(np.append(True, differs)[: len(rank)])
    code = rank[begins].astype(np.int64) * len(stream.names) + stream.codes[begins]
    _, first, place = np.unique(code, return_index=True, return_inverse=True)
    number = np.argsort(np.argsort(first)).astype(np.int32)[place]
    tracks = [divmod(value, len(stream.names)) for value in code[np.sort(first)].tolist()]
    track = np.repeat(number, np.diff(np.append(begins, len(rank))))
    return track, [(owner, stream.names[index]) for owner, index in tracks]


def _phases(records: Mapping[int, RankRecord]) -> Columns:
    names = ("phase", "start_ns", "end_ns")
    parts = [{name: record.phases[name] for name in names} for record in records.values()]
    ranks = [np.full(len(part["phase"]), rank) for rank, part in zip(records, parts, strict=True)]
    return concatenated(parts) | {"rank": np.concatenate(ranks)}


def _add_steps(events: TraceEvents, steps: Columns, rank: int, offsets: Offsets) -> None:
    own = np.flatnonzero(steps["rank"] == rank)
    own = own[np.argsort(steps["start_ns"][own], kind="stable")]
    starts = steps["start_ns"][own] - offsets.get(rank, 0)
    texts = [described(f"step {step}") for step in steps["step"][own].tolist()]
    events.slices(events.track(rank, "steps"), starts, starts + steps["wall_ns"][own], texts)


def _add_phases(events: TraceEvents, phases: Columns, rank: int) -> None:
    starts, ends, codes = phases["start_ns"], phases["end_ns"], phases["phase"]
    lanes, depths = lay(starts, ends, nested=True)
    texts = [described(phase) for phase in PHASES]
    for lane in range(lanes.max() + 1):
        track = events.track(rank, "phases")
        for depth in range(depths[lanes == lane].max() + 1):
            on = (lanes == lane) & (depths == depth)
            events.slices(track, starts[on], ends[on], texts, codes[on], depth)


def _add_critical_path(events: TraceEvents, path: Mapping[int, Columns], collectives: Columns, process: int) -> None:
    """A process of its own, above the ranks: of each rank, what of it determined the steps' length."""
    if not path:
        return
    events.process(process, "critical path", -1)
    kinds = dict(zip(collectives["collective"].tolist(), collectives["kind"].tolist(), strict=True))
    names = ("category", "phase", "element", "collective", "slack_to_next_ns")
    for rank, own in path.items():
        texts = []
        for category, phase, element, collective, slack in zip(*(own[name].tolist() for name in names), strict=True):
            kind = kinds[collective] if element == "transfer" else None
            texts.append(with_number(_element_text(category, phase, kind), "slack_to_next_us", slack / 1000))
        starts, ends = own["start_ns"], own["end_ns"]
        for on in lanes_of(starts, ends):
            track = events.track(process, f"through rank {rank}")
            events.slices(track, starts[on], ends[on], [texts[index] for index in on.tolist()])


@cache
def _element_text(category: int, phase: int, kind: str | None) -> str:
    """What an element of the critical path says of itself; `kind` is that of the collective of a transfer."""
    name = CATEGORIES[category]
    return described(f"{kind}: transfer" if kind else name, COLOURS.get(name), {"phase": PHASES[phase]})


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """A key that sorts names by the numbers within them."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


def _unknown_clocks(records: Mapping[int, RankRecord], tables: Mapping[str, Columns], offsets: Offsets) -> set[int]:
    """Ranks of which nothing says how their clock differs from those of others."""
    unknown = set(records) - set(offsets) if len(records) > 1 else set()
    clocks = tables.get("clocks")
    if clocks is not None:
        unknown |= set(clocks["rank"][clocks["offset_ns"] == MISSING].tolist())
    return unknown

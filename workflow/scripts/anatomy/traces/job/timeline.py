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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from anatomy.traces.job.pieces import Pieces, coarsened, pieces_of
from anatomy.traces.job.trace_events import TraceEvents, Track, described, lay, with_number
from anatomy.traces.rank.annotations import PHASES
from anatomy.traces.rank.record import RankRecord

MOST_PIECES = 100_000
MOST_ANNOTATIONS = 20_000

WHOLE_RANK = "rank"

KINDS = {"cuda-nccl": "GPU and NCCL", "cuda": "GPU", "cpu-gloo": "CPU and Gloo", "cpu": "CPU"}

COLOURS = {
    "compute": "thread_state_running",
    "communication": "rail_response",
    "preparation": "rail_load",
    "copy": "yellow",
    "idle": "grey",
    "other": "generic_work",
}
"""What chrome://tracing calls the colours of the categories; ui.perfetto.dev chooses its own."""

WAITING = described("waiting", "terrible")
TRANSFER = described("transfer", "good")

Offsets = Mapping[int, int]


def write_timeline(
    path: Path,
    records: Mapping[int, RankRecord],
    tables: Mapping[str, pd.DataFrame],
    offsets: Offsets,
    facts: Mapping[str, Any],
) -> None:
    """Write the timeline of a job; the same job always gives the same bytes.

    `records` have the phases of each rank; `tables` are steps, collectives, intervals and critical_path as described in
    `anatomy.traces.tables`, and clocks where there are any. `offsets` is what to take from each rank's times, in ns, to
    have them on the reference rank's clock, on which the critical path is already; a rank without one is shown by its
    own clock, and the file says so. `facts` are the manifest's.
    """
    highest = max(records)
    events = TraceEvents(processes=highest + 2)
    activity = _Activity.of(tables["intervals"], offsets)
    phases = _Longest.of(_phases(records), offsets, "phases")
    collectives = _Longest.of(tables["collectives"], offsets, "pieces of communication")
    critical = _Longest.of(tables["critical_path"], {}, "elements of the critical path")
    _add_critical_path(events, critical.rows, tables["collectives"], highest + 1)
    unknown = _unknown_clocks(records, tables, offsets)
    bound: list[_Bound] = []
    for place, rank in enumerate(sorted(records)):
        events.process(rank, f"rank {rank}", place, "by its own clock: offset unknown" if rank in unknown else None)
        _add_steps(events, tables["steps"], rank, offsets)
        _add_phases(events, phases.of_rank(rank), rank)
        activity.add(events, rank, whole_rank=True)
        bound += _add_collectives(events, collectives.of_rank(rank), rank)
        activity.add(events, rank, whole_rank=False)
    _add_arrows(events, bound)
    about = {
        "kind": KINDS.get(str(facts.get("trace_kind")), "unknown"),
        "clock_offsets_ns": {str(rank): offsets.get(rank) for rank in sorted(records)},
        "left_out": [note for note in (activity.note, phases.note, collectives.note, critical.note) if note],
    }
    events.write(path, about)


@dataclass(frozen=True)
class _Activity:
    """What ranks and streams did: pieces, the rank and stream of each track, and what each piece says of itself."""

    pieces: Pieces
    tracks: list[tuple[int, str]]
    texts: list[str]
    text: np.ndarray
    note: str | None

    @classmethod
    def of(cls, intervals: pd.DataFrame, offsets: Offsets) -> "_Activity":
        """Merge short neighbours where there are more than `MOST_PIECES`."""
        track, tracks = _pairs(intervals["rank"], intervals["stream"])
        label, labels = _pairs(intervals["category"], intervals["phase"])
        starts, ends = _corrected(intervals, offsets)
        pieces, cell_ns = coarsened(pieces_of(track, label, starts, ends), MOST_PIECES)
        shown, text = np.unique(pieces.label + len(labels) * pieces.count, return_inverse=True)
        texts = []
        for count, code in (divmod(value, len(labels)) for value in shown.tolist()):
            category, phase = labels[code]
            merged = {"merged": count} if count > 1 else {}
            texts.append(described(category, COLOURS.get(category), {"phase": phase} | merged))
        note = None if cell_ns is None else f"activity shorter than {cell_ns // 1000} us is merged with its neighbours"
        return cls(pieces, tracks, texts, text, note)

    def add(self, events: TraceEvents, rank: int, whole_rank: bool) -> None:
        """Add the track of a rank as a whole, or else one for each of its streams, and more where its work overlaps."""
        chosen = [
            (_natural(stream), index)
            for index, (owner, stream) in enumerate(self.tracks)
            if owner == rank and (stream == WHOLE_RANK) == whole_rank
        ]
        for _, index in sorted(chosen):
            first, last = np.searchsorted(self.pieces.track, [index, index + 1])
            starts, ends = self.pieces.start_ns[first:last], self.pieces.end_ns[first:last]
            used, which = np.unique(self.text[first:last], return_inverse=True)
            texts = [self.texts[text] for text in used.tolist()]
            for on in _lanes(starts, ends):
                track = events.track(rank, "activity" if whole_rank else self.tracks[index][1])
                events.slices(track, starts[on], ends[on], texts, which[on])


@dataclass(frozen=True)
class _Longest:
    """At most `MOST_ANNOTATIONS` rows on the common clock, each of some length, in the order in which `lay` needs them;
    and what to say where there were more."""

    rows: pd.DataFrame
    note: str | None

    @classmethod
    def of(cls, rows: pd.DataFrame, offsets: Offsets, what: str) -> "_Longest":
        starts, ends = _corrected(rows, offsets)
        order = np.lexsort([-ends, starts])
        order = order[ends[order] > starts[order]]
        note = None
        if len(order) > MOST_ANNOTATIONS:
            note = f"of {len(order)} {what} the longest {MOST_ANNOTATIONS} are shown"
            by_length = np.argsort((starts - ends)[order], kind="stable")
            order = order[np.sort(by_length[:MOST_ANNOTATIONS])]
        return cls(rows.assign(start_ns=starts, end_ns=ends).iloc[order], note)

    def of_rank(self, rank: int) -> pd.DataFrame:
        return self.rows[self.rows["rank"] == rank]


@dataclass(frozen=True)
class _Bound:
    """The transfer of a matched collective on one rank, to which an arrow can be bound."""

    collective: int
    rank: int
    straggler: int
    track: Track
    start_ns: int
    inside_ns: int


def _phases(records: Mapping[int, RankRecord]) -> pd.DataFrame:
    return pd.concat([pd.DataFrame(record.phases).assign(rank=rank) for rank, record in records.items()])


def _add_steps(events: TraceEvents, steps: pd.DataFrame, rank: int, offsets: Offsets) -> None:
    own = steps[steps["rank"] == rank].sort_values("start_ns")
    starts = own["start_ns"].to_numpy(np.int64) - offsets.get(rank, 0)
    texts = [described(f"step {step}") for step in own["step"]]
    events.slices(events.track(rank, "steps"), starts, starts + own["wall_ns"].to_numpy(np.int64), texts)


def _add_phases(events: TraceEvents, phases: pd.DataFrame, rank: int) -> None:
    starts, ends, codes = (phases[name].to_numpy(np.int64) for name in ("start_ns", "end_ns", "phase"))
    lanes, depths = lay(starts, ends, nested=True)
    texts = [described(phase) for phase in PHASES]
    for lane in np.unique(lanes):
        on = lanes == lane
        events.slices(events.track(rank, "phases"), starts[on], ends[on], texts, codes[on], depths[on])


def _add_collectives(events: TraceEvents, collectives: pd.DataFrame, rank: int) -> list[_Bound]:
    """The collectives of one rank with their two halves; returns to what arrows can be bound."""
    starts, ends = collectives["start_ns"].to_numpy(np.int64), collectives["end_ns"].to_numpy(np.int64)
    known = collectives["wait_ns"].notna().to_numpy(bool)
    turns = np.clip(starts + collectives["wait_ns"].fillna(0).to_numpy(np.int64), starts, ends)
    stragglers = collectives["straggler"].fillna(-1).to_numpy(np.int64)
    numbers, texts = collectives["collective"].to_numpy(np.int64), _collective_texts(collectives)
    bound = []
    for on in _lanes(starts, ends):
        track = events.track(rank, "collectives")
        events.slices(track, starts[on], ends[on], [texts[index] for index in on.tolist()])
        waits, moves = on[known[on] & (turns[on] > starts[on])], on[known[on] & (turns[on] < ends[on])]
        for text, first, last in ((WAITING, starts[waits], turns[waits]), (TRANSFER, turns[moves], ends[moves])):
            events.slices(track, first, last, [text], np.zeros(len(first), dtype=np.int64), depth=1)
        # At the instant at which waiting ends, chrome://tracing takes it for still open.
        inside = np.minimum(turns[moves] + 1, ends[moves] - 1)
        columns = (column.tolist() for column in (numbers[moves], stragglers[moves], turns[moves], inside))
        rows = zip(*columns, strict=True)
        bound += [_Bound(number, rank, straggler, track, turn, within) for number, straggler, turn, within in rows]
    return bound


def _collective_texts(collectives: pd.DataFrame) -> list[str]:
    """What the slices of collectives say; what is missing is not said."""
    args = {
        **{name: collectives[name] for name in ("group", "sequence", "phase", "bytes", "group_size")},
        "waiting_us": collectives["wait_ns"] / 1000,
        "transfer_us": collectives["transfer_ns"] / 1000,
        **{name: collectives[name] for name in ("straggler", "matched_by")},
        "algorithm_bandwidth_GB_per_s": collectives["algorithm_bandwidth"] / 1e9,
        "bus_bandwidth_GB_per_s": collectives["bus_bandwidth"] / 1e9,
    }
    columns = [column.astype(object).where(column.notna(), None).tolist() for column in args.values()]
    rows = zip(*columns, strict=True)
    said = [{name: value for name, value in zip(args, row, strict=True) if value is not None} for row in rows]
    return [described(kind, args=row) for kind, row in zip(collectives["kind"], said, strict=True)]


def _add_arrows(events: TraceEvents, bound: Sequence[_Bound]) -> None:
    """From where the straggler of a collective arrives to where the others' waiting ends."""
    last = {item.collective: item for item in bound if item.rank == item.straggler}
    sources, targets = [], []
    for item in bound:
        source = last.get(item.collective)
        # By clocks that are not well known, a rank may have finished before the last one arrived.
        if source is not None and source is not item and item.start_ns >= source.start_ns:
            sources.append((source.track, source.start_ns))
            targets.append((item.track, item.inside_ns))
    events.arrows("arrival", sources, targets)


def _add_critical_path(events: TraceEvents, path: pd.DataFrame, collectives: pd.DataFrame, process: int) -> None:
    """A process of its own, above the ranks: of each rank, what of it determined the steps' length."""
    if path.empty:
        return
    events.process(process, "critical path", -1)
    kinds = dict(zip(collectives["collective"], collectives["kind"], strict=True))
    for rank, own in path.groupby("rank"):
        kind = own["collective"].map(kinds).astype(object).where(own["element"] == "transfer", None)
        said = zip(own["category"], own["phase"], kind, own["slack_to_next_ns"], strict=True)
        texts = [with_number(_element_text(*what), "slack_to_next_us", slack / 1000) for *what, slack in said]
        starts, ends = own["start_ns"].to_numpy(np.int64), own["end_ns"].to_numpy(np.int64)
        for on in _lanes(starts, ends):
            track = events.track(process, f"through rank {rank}")
            events.slices(track, starts[on], ends[on], [texts[index] for index in on.tolist()])


@cache
def _element_text(category: str, phase: str, kind: str | None) -> str:
    """What an element of the critical path says of itself; `kind` is that of the collective of a transfer."""
    return described(f"{kind}: transfer" if kind else category, COLOURS.get(category), {"phase": phase})


def _lanes(starts: np.ndarray, ends: np.ndarray) -> list[np.ndarray]:
    """Which slices go on each of as many tracks as are needed for none to overlap: indices."""
    lanes, _ = lay(starts, ends, nested=False)
    return [np.flatnonzero(lanes == lane) for lane in np.unique(lanes)]


def _corrected(rows: pd.DataFrame, offsets: Offsets) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of rows on the common clock, int64 [n] each."""
    codes, ranks = pd.factorize(rows["rank"])
    offset = np.array([offsets.get(int(rank), 0) for rank in ranks], dtype=np.int64)[codes]
    return rows["start_ns"].to_numpy(np.int64) - offset, rows["end_ns"].to_numpy(np.int64) - offset


def _pairs(first: pd.Series, second: pd.Series) -> tuple[np.ndarray, list[tuple[Any, str]]]:
    """The distinct pairs of values, and for each row [n] the index of its pair."""
    (one, firsts), (two, seconds) = pd.factorize(first), pd.factorize(second)
    pair, distinct = pd.factorize(one.astype(np.int64) * len(seconds) + two)
    split = (divmod(int(code), len(seconds)) for code in distinct)
    return pair, [(firsts[left], str(seconds[right])) for left, right in split]


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """A key that sorts names by the numbers within them."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


def _unknown_clocks(
    records: Mapping[int, RankRecord], tables: Mapping[str, pd.DataFrame], offsets: Offsets
) -> set[int]:
    """Ranks of which nothing says how their clock differs from those of others."""
    unknown = set(records) - set(offsets) if len(records) > 1 else set()
    clocks = tables.get("clocks")
    if clocks is not None:
        unknown |= set(clocks.loc[clocks["offset_ns"].isna(), "rank"])
    return unknown

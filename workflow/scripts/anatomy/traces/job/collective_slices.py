"""Collectives on a timeline: slices with two halves, and arrows from the last rank to arrive to those that waited."""

from typing import Any

import msgspec
import numpy as np

from anatomy.traces.columns import MISSING, Columns, concatenated
from anatomy.traces.job.trace_events import TraceEvents, Track, described, lanes_of
from anatomy.traces.rank.annotations import PHASES

WAITING = described("waiting", "terrible")
TRANSFER = described("transfer", "good")


def add_collectives(events: TraceEvents, collectives: Columns, rank: int) -> list[tuple[Track, Columns]]:
    """The collectives of one rank, of some length and in the order in which `lay` needs them, with their two halves.

    Returns by track the transfers [k], to which arrows can be bound: collective, start_ns, inside_ns, and whether the
    rank is the collective's straggler.
    """
    starts, ends, waited = (collectives[name] for name in ("start_ns", "end_ns", "wait_ns"))
    known = waited != MISSING
    turns = np.clip(starts + np.where(known, waited, 0), starts, ends)
    texts = _collective_texts(collectives)
    halves = []
    for on in lanes_of(starts, ends):
        track = events.track(rank, "collectives")
        events.slices(track, starts[on], ends[on], [texts[index] for index in on.tolist()])
        waits, moves = on[known[on] & (turns[on] > starts[on])], on[known[on] & (turns[on] < ends[on])]
        for text, first, last in ((WAITING, starts[waits], turns[waits]), (TRANSFER, turns[moves], ends[moves])):
            events.slices(track, first, last, [text], np.zeros(len(first), dtype=np.int64), depth=1)
        bound = {
            "collective": collectives["collective"][moves],
            "start_ns": turns[moves],
            # At the instant at which waiting ends, chrome://tracing takes it for still open.
            "inside_ns": np.minimum(turns[moves] + 1, ends[moves] - 1),
            "last": collectives["straggler"][moves] == rank,
        }
        halves.append((track, bound))
    return halves


class _Said(msgspec.Struct, omit_defaults=True):
    """What a slice says of a collective; what is missing is not said."""

    group: str | None = None
    sequence: int | None = None
    phase: str | None = None
    bytes: int | None = None
    group_size: int | None = None
    waiting_us: float | None = None
    transfer_us: float | None = None
    straggler: int | None = None
    matched_by: str | None = None
    algorithm_bandwidth_GB_per_s: float | None = None
    bus_bandwidth_GB_per_s: float | None = None


def _collective_texts(collectives: Columns) -> list[str]:
    """What the slices of collectives say."""
    columns = (
        *(collectives[name] for name in ("group", "sequence")),
        np.array(PHASES, dtype=object)[collectives["phase"]],
        *(collectives[name] for name in ("bytes", "group_size")),
        *(
            np.where(collectives[name] == MISSING, np.nan, collectives[name] / 1000)
            for name in ("wait_ns", "transfer_ns")
        ),
        *(collectives[name] for name in ("straggler", "matched_by")),
        *(collectives[name] / 1e9 for name in ("algorithm_bandwidth", "bus_bandwidth")),
    )
    rows = zip(collectives["kind"].tolist(), *map(_known, columns), strict=True)
    return [described(kind, args=_Said(*said)) for kind, *said in rows]


def _known(values: np.ndarray) -> list[Any]:
    """The values of a column, None where they are missing."""
    if values.dtype == object:
        return values.tolist()
    missing = np.isnan(values) if values.dtype.kind == "f" else values == MISSING
    return np.where(missing, None, values.astype(object)).tolist()


def add_arrows(events: TraceEvents, halves: list[tuple[Track, Columns]]) -> None:
    """From where the straggler of a collective arrives to where the others' waiting ends."""
    if not halves:
        return
    tracks, bound = [track for track, _ in halves], concatenated([columns for _, columns in halves])
    track = np.repeat(np.arange(len(halves)), [len(columns["last"]) for _, columns in halves])
    numbers, place = np.unique(bound["collective"], return_inverse=True)
    arrival = np.full(len(numbers), -1)
    arrival[place[bound["last"]]] = np.flatnonzero(bound["last"])
    source, start = arrival[place], bound["start_ns"]
    # By clocks that are not well known, a rank may have finished before the last one arrived.
    target = np.flatnonzero((source >= 0) & (source != np.arange(len(source))) & (start >= start[source]))
    source = source[target]
    events.arrows("arrival", tracks, (track[source], start[source]), (track[target], bound["inside_ns"][target]))

"""Offsets between the clocks of ranks: recorded by training, or estimated from matched collectives.

In a collective that synchronises, no rank q can end before the last rank r has arrived. With the offset o of a clock
from the reference rank's, in ns on each rank's own clock,

    start_r - o_r <= end_q - o_q      hence      start_r - end_q <= o_r - o_q <= end_r - start_q

for every such collective. The largest of the left sides and the smallest of the right ones are *bounds* between which
the truth lies for certain, as those of a message sent and answered are in the network time protocol; they are as close
as the shortest transfers. Within them, the median over all collectives of the difference of the ends is the estimate,
since all ranks are let go at about the same time. Its uncertainty is the distance to the further bound.

An all-to-all in which two ranks send each other nothing does not hold one up for the other. And clocks drift. Either
makes bounds contradict each other; all-to-alls are then left out. If the bounds still do, no single offset is right,
and the differences of the ends, with the shortest transfers on either side, take the place of the bounds.

Ranks of one host share a clock, and a correction by what is only noise would make up waiting. So an offset that can't
be told from 0, because 0 is within the bounds, is 0, with an uncertainty that covers what it may be instead.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from anatomy.traces.columns import MISSING, Columns, take
from anatomy.traces.job.matching import is_synchronising
from anatomy.traces.reading.events import CLOCK_RESOLUTION_NS

REFERENCE, EXCHANGE, COLLECTIVES, NOT_KNOWN = "reference", "exchange", "collectives", "unknown"

Entry = tuple[int, int, str, int]
"""Offset, uncertainty, method and number of collectives of a rank."""

CLOCK_COLUMNS = {
    "rank": np.int64,
    "offset_ns": np.int64,
    "uncertainty_ns": np.int64,
    "method": object,
    "collectives": np.int64,
}


def estimate_clocks(
    rows: Columns, ranks: Iterable[int], recorded: Mapping[str, Any] | None = None
) -> tuple[Columns, list[str]]:
    """How far the clock of each rank is ahead of that of the reference rank.

    `rows` are those of `match_collectives`, `ranks` the ranks that have a trace, `recorded` what training wrote of its
    clock exchange (`anatomy.training.clocks`), or None. The reference is that of the exchange, else the lowest rank; an
    exchange with a rank that has no trace is not used. A rank is estimated against the reference, or where they share
    no collective, against the rank next to it on the shortest way there.

    Returns the clocks, and notes on what they mean for waiting. Columns: rank, int64; offset_ns, what is to be
    subtracted from the rank's time stamps, and uncertainty_ns (int64, `MISSING` where unknown); method (object:
    "reference", "exchange", "collectives" or "unknown"); collectives, how many were used, int64.
    """
    ranks = sorted(ranks)
    usable = recorded if recorded and recorded["reference"] in ranks else None
    reference = usable["reference"] if usable else ranks[0]
    known: dict[int, Entry] = {reference: (0, 0, REFERENCE, 0)}
    if usable:
        known |= _from_exchange(usable["exchanges"], set(ranks) - {reference})
    known |= _from_collectives(rows, known, reference)
    unknown: Entry = (MISSING, MISSING, NOT_KNOWN, 0)
    entries = zip(*((rank, *known.get(rank, unknown)) for rank in ranks), strict=True)
    clocks = {
        name: np.array(values, dtype=dtype)
        for (name, dtype), values in zip(CLOCK_COLUMNS.items(), entries, strict=True)
    }
    return clocks, _notes(clocks)


def applied_offsets(clocks: Columns) -> dict[int, int]:
    """The offsets in ns to subtract by rank; ranks whose clock is unknown are left out."""
    offsets = zip(clocks["rank"].tolist(), clocks["offset_ns"].tolist(), strict=True)
    return {rank: offset for rank, offset in offsets if offset != MISSING}


def _applied(offset: int, lowest: int, highest: int) -> tuple[int, int]:
    """The offset to apply, and its uncertainty, from an estimate and its bounds."""
    if lowest <= 0 <= highest:
        return 0, max(-lowest, highest)
    return offset, max(offset - lowest, highest - offset)


def _from_exchange(exchanges: Iterable[Mapping[str, Any]], ranks: set[int]) -> dict[int, Entry]:
    """The offset of each rank in the middle between its exchanges, between which it is taken to drift evenly; what it
    drifts in half of that time is part of the uncertainty."""
    offsets: dict[int, list[tuple[int, int]]] = {}
    for entry in exchanges:
        offsets.setdefault(entry["rank"], []).append((entry["offset_ns"], entry["uncertainty_ns"]))
    result: dict[int, Entry] = {}
    for rank in offsets.keys() & ranks:
        lowest, highest = min(offsets[rank])[0], max(offsets[rank])[0]
        middle = (lowest + highest) // 2
        uncertainty = max(uncertainty for _, uncertainty in offsets[rank]) + highest - middle
        result[rank] = (*_applied(middle, middle - uncertainty, middle + uncertainty), EXCHANGE, 0)
    return result


def _from_collectives(rows: Columns, known: Mapping[int, Entry], reference: int) -> dict[int, Entry]:
    """The ranks that the known ones lead to by collectives."""
    columns = {name: rows[name] for name in ("collective", "rank", "kind", "start_ns", "end_ns")}
    rows = take(columns, rows["matched"] & is_synchronising(rows["kind"]))
    # The known ranks' offset and bounds; what is found here starts from what it was found from.
    reached = {rank: (entry[0], entry[0] - entry[1], entry[0] + entry[1]) for rank, entry in known.items()}
    found: dict[int, Entry] = {}
    queue = [reference, *(rank for rank in known if rank != reference)]
    ahead = np.flatnonzero(~np.isin(rows["rank"], list(reached)))
    while queue and len(ahead):
        hub = queue.pop(0)
        met = _relative(rows, hub, ahead)
        for rank, (offset, lowest, highest, count) in met.items():
            base = reached[hub]
            reached[rank] = (base[0] + offset, base[1] + lowest, base[2] + highest)
            found[rank] = (*_applied(*reached[rank]), COLLECTIVES, count)
            queue.append(rank)
        ahead = ahead[~np.isin(rows["rank"][ahead], list(met))]
    return found


def _relative(rows: Columns, hub: int, others: np.ndarray) -> dict[int, tuple[int, int, int, int]]:
    """Of each rank that met `hub`: offset from its clock, lower and upper bound, number of collectives used.

    `others` are the rows of the ranks in question [k].
    """
    collective, start, end = rows["collective"], rows["start_ns"], rows["end_ns"]
    own = np.flatnonzero(rows["rank"] == hub)
    row_of_hub = np.full(collective.max(initial=-1) + 1, -1)
    row_of_hub[collective[own]] = own
    others = others[row_of_hub[collective[others]] >= 0]
    others = others[np.argsort(rows["rank"][others], kind="stable")]
    own = row_of_hub[collective[others]]
    pairs = {
        "exchanges": rows["kind"][others] == "all_to_all",
        "ends_ns": end[others] - end[own],
        "before_ns": end[others] - start[others] + CLOCK_RESOLUTION_NS,
        "after_ns": end[own] - start[own] + CLOCK_RESOLUTION_NS,
    }
    ranks, first = np.unique(rows["rank"][others], return_index=True)
    edges = [*first.tolist(), len(others)]
    return {
        rank: _estimate(take(pairs, slice(edges[place], edges[place + 1]))) for place, rank in enumerate(ranks.tolist())
    }


def _estimate(pairs: Columns) -> tuple[int, int, int, int]:
    """Offset, lower and upper bound, and number of collectives used, from those in which two ranks met."""
    lowest, highest = _bounds(pairs)
    if lowest > highest and not pairs["exchanges"].all():
        pairs = take(pairs, ~pairs["exchanges"])
        lowest, highest = _bounds(pairs)
    ends = np.sort(pairs["ends_ns"])
    if lowest > highest:
        lowest, highest = int(ends[0] - pairs["before_ns"].min()), int(ends[-1] + pairs["after_ns"].min())
    # A mean of the two middle ones would be float64, which loses the digits of large offsets.
    middle = int(ends[(len(ends) - 1) // 2])
    return min(max(middle, lowest), highest), lowest, highest, len(ends)


def _bounds(pairs: Columns) -> tuple[int, int]:
    """Between what the offset of two ranks lies for certain; the wrong way round where their collectives disagree."""
    lowest, highest = pairs["ends_ns"] - pairs["before_ns"], pairs["ends_ns"] + pairs["after_ns"]
    return int(lowest.max()), int(highest.min())


def _notes(clocks: Columns) -> list[str]:
    """What a reader of waiting times has to know about the clocks that they are by."""
    notes = []
    unknown = clocks["rank"][clocks["method"] == NOT_KNOWN].tolist()
    if unknown:
        notes.append(
            f"clocks of ranks {_listed(unknown)} can't be compared with the others: no collective that synchronises "
            "is matched and no exchange was recorded; whether they waited is not known"
        )
    known = take(clocks, (clocks["offset_ns"] != MISSING) & (clocks["method"] != REFERENCE))
    moved = take(known, known["offset_ns"] != 0)
    if len(moved["rank"]):
        most = np.abs(moved["offset_ns"]).argmax()
        offset_ms, uncertainty_ms = moved["offset_ns"][most] / 1e6, moved["uncertainty_ns"][most] / 1e6
        notes.append(
            f"clocks of ranks {_listed(moved['rank'].tolist())} are corrected, the most that of rank "
            f"{moved['rank'][most]}, by {offset_ms:.3f} ms (± {uncertainty_ms:.3f} ms)"
        )
    if len(known["rank"]):
        notes.append(
            f"{len(known['rank']) - len(moved['rank'])} of {len(known['rank'])} clocks can't be told from the "
            f"reference's; arrivals of different ranks are good to {known['uncertainty_ns'].max() / 1e6:.3f} ms or "
            "better"
        )
    return notes


def _listed(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown}, … ({len(ranks)} in all)" if len(ranks) > 8 else shown

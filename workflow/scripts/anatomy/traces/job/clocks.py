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
import pandas as pd

from anatomy.traces.job.matching import SYNCHRONISING
from anatomy.traces.reading.events import CLOCK_RESOLUTION_NS

REFERENCE, EXCHANGE, COLLECTIVES, NOT_KNOWN = "reference", "exchange", "collectives", "unknown"

Entry = tuple[int, int, str, int]
"""Offset, uncertainty, method and number of collectives of a rank."""

CLOCK_COLUMNS = {
    "rank": "int64",
    "offset_ns": "Int64",
    "uncertainty_ns": "Int64",
    "method": "object",
    "collectives": "int64",
}


def estimate_clocks(
    rows: pd.DataFrame, ranks: Iterable[int], recorded: Mapping[str, Any] | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """How far the clock of each rank is ahead of that of the reference rank.

    `rows` are those of `match_collectives`, `ranks` the ranks that have a trace, `recorded` what training wrote of its
    clock exchange (`anatomy.training.clocks`), or None. The reference is that of the exchange, else the lowest rank; an
    exchange with a rank that has no trace is not used. A rank is estimated against the reference, or where they share
    no collective, against the rank next to it on the shortest way there.

    Returns the clocks, and notes on what they mean for waiting. Columns: rank; offset_ns, what is to be subtracted from
    the rank's time stamps, and uncertainty_ns (Int64, missing where unknown); method ("reference", "exchange",
    "collectives" or "unknown"); collectives, how many were used.
    """
    ranks = sorted(ranks)
    usable = recorded if recorded and recorded["reference"] in ranks else None
    reference = usable["reference"] if usable else ranks[0]
    known: dict[int, Entry] = {reference: (0, 0, REFERENCE, 0)}
    if usable:
        known |= _from_exchange(usable["exchanges"], set(ranks) - {reference})
    known |= _from_collectives(rows, known, reference)
    unknown = (pd.NA, pd.NA, NOT_KNOWN, 0)
    table = [(rank, *known.get(rank, unknown)) for rank in ranks]
    clocks = pd.DataFrame(table, columns=list(CLOCK_COLUMNS)).astype(CLOCK_COLUMNS)
    return clocks, _notes(clocks)


def applied_offsets(clocks: pd.DataFrame) -> dict[int, int]:
    """The offsets in ns to subtract by rank; ranks whose clock is unknown are left out."""
    found = clocks[clocks["offset_ns"].notna()]
    return dict(zip(found["rank"].tolist(), found["offset_ns"].astype(np.int64).tolist(), strict=True))


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


def _from_collectives(rows: pd.DataFrame, known: Mapping[int, Entry], reference: int) -> dict[int, Entry]:
    """The ranks that the known ones lead to by collectives."""
    rows = rows.loc[rows["matched"] & rows["kind"].isin(SYNCHRONISING)]
    rows = rows[["collective", "rank", "kind", "start_ns", "end_ns"]]
    # The known ranks' offset and bounds; what is found here starts from what it was found from.
    reached = {rank: (entry[0], entry[0] - entry[1], entry[0] + entry[1]) for rank, entry in known.items()}
    found: dict[int, Entry] = {}
    queue = [reference, *(rank for rank in known if rank != reference)]
    while queue and len(rows):
        hub = queue.pop(0)
        rows = rows[(rows["rank"] == hub) | ~rows["rank"].isin(set(reached) - set(queue))]
        for rank, (offset, lowest, highest, count) in _relative(rows, hub, set(reached)).items():
            base = reached[hub]
            reached[rank] = (base[0] + offset, base[1] + lowest, base[2] + highest)
            found[rank] = (*_applied(*reached[rank]), COLLECTIVES, count)
            queue.append(rank)
    return found


def _relative(rows: pd.DataFrame, hub: int, known: set[int]) -> dict[int, tuple[int, int, int, int]]:
    """Of each rank that is not known and met `hub`: offset from its clock, lower and upper bound, collectives used."""
    own = rows.loc[rows["rank"] == hub, ["collective", "start_ns", "end_ns"]]
    others = rows[~rows["rank"].isin(known)]
    met = others.merge(own, on="collective", suffixes=("", "_hub"))
    pairs = pd.DataFrame(
        {
            "rank": met["rank"],
            "exchanges": met["kind"] == "all_to_all",
            "ends_ns": met["end_ns"] - met["end_ns_hub"],
            "before_ns": met["end_ns"] - met["start_ns"] + CLOCK_RESOLUTION_NS,
            "after_ns": met["end_ns_hub"] - met["start_ns_hub"] + CLOCK_RESOLUTION_NS,
        }
    )
    result = {}
    for rank, pair in pairs.groupby("rank"):
        sure = pair[~pair["exchanges"]]
        lowest, highest = _bounds(pair)
        if lowest > highest and len(sure):
            pair = sure
            lowest, highest = _bounds(pair)
        ends = np.sort(pair["ends_ns"].to_numpy())
        if lowest > highest:
            lowest, highest = int(ends[0] - pair["before_ns"].min()), int(ends[-1] + pair["after_ns"].min())
        # A mean of the two middle ones would be float64, which loses the digits of large offsets.
        middle = int(ends[(len(ends) - 1) // 2])
        result[int(rank)] = (min(max(middle, lowest), highest), lowest, highest, len(pair))
    return result


def _bounds(pair: pd.DataFrame) -> tuple[int, int]:
    """Between what the offset of two ranks lies for certain; the wrong way round where their collectives disagree."""
    return int((pair["ends_ns"] - pair["before_ns"]).max()), int((pair["ends_ns"] + pair["after_ns"]).min())


def _notes(clocks: pd.DataFrame) -> list[str]:
    """What a reader of waiting times has to know about the clocks that they are by."""
    notes = []
    unknown = clocks.loc[clocks["method"] == NOT_KNOWN, "rank"].tolist()
    if unknown:
        notes.append(
            f"clocks of ranks {_listed(unknown)} can't be compared with the others: no collective that synchronises "
            "is matched and no exchange was recorded; whether they waited is not known"
        )
    known = clocks[clocks["offset_ns"].notna() & (clocks["method"] != REFERENCE)]
    moved = known[known["offset_ns"] != 0]
    if len(moved):
        furthest = moved.loc[moved["offset_ns"].abs().astype(np.int64).idxmax()]
        notes.append(
            f"clocks of ranks {_listed(moved['rank'].tolist())} are corrected, the most that of rank "
            f"{furthest['rank']}, by {furthest['offset_ns'] / 1e6:.3f} ms (± {furthest['uncertainty_ns'] / 1e6:.3f} ms)"
        )
    if len(known):
        notes.append(
            f"{len(known) - len(moved)} of {len(known)} clocks can't be told from the reference's; arrivals of "
            f"different ranks are good to {known['uncertainty_ns'].max() / 1e6:.3f} ms or better"
        )
    return notes


def _listed(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown}, … ({len(ranks)} in all)" if len(ranks) > 8 else shown

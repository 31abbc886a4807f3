"""Collectives matched across ranks: which pieces of communication of different ranks are one and the same.

The order of calls, since waiting is by a common clock, and clocks are compared by what is matched:

    rows, notes = match_collectives(by_rank, world)               who met whom
    clocks, notes = estimate_clocks(rows, ranks, recorded)        job/clocks.py
    rows = split_waiting(rows, applied_offsets(clocks))           job/waiting.py: who waited for whom
    notes = impossible_notes(rows)                                job/waiting.py
    rows = add_bandwidths(rows)                                   job/bandwidth.py
    states = split(communicating, rows of one rank, gpu)          job/waiting.py: what became of a rank's time
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from anatomy.traces.rank.communication import UNKNOWN
from anatomy.traces.rank.record import Columns

SYNCHRONISING = ("all_reduce", "all_to_all", "all_gather", "reduce_scatter", "barrier")
"""Kinds in which no rank can finish before all have arrived."""

OPTIONAL = ("group_size", "sequence", "bytes")
"""Columns that are missing where a trace does not say, in `find_collectives` as `UNKNOWN`."""


def match_collectives(by_rank: Mapping[int, Columns], world: Sequence[int]) -> tuple[pd.DataFrame, list[str]]:
    """Match what `find_collectives` found on each rank.

    `world` are all ranks of the job, also those without a trace. Collectives belong together when they have the same
    group and the same sequence number, or where there are no numbers, the same place in the order of the group's
    collectives in the step. A set is matched where every rank of the group has one and all are of one kind. Where the
    counts or the kinds of a group differ between ranks in a step, none of that group's in that step is matched, since
    an order with a hole says nothing; where there are numbers, only those with that number are not. A message is
    matched with its counterpart by order within the step, where each side names the other. Of a group that states
    neither its ranks nor its size, all of the job is taken to be members.

    Returns the rows of all ranks, with group_size, sequence and bytes nullable and, in addition,
        rank int64
        matched bool; matched_by object ("sequence", "order", None where not matched)
        collective int64: one number for all that belongs together, by first arrival
    in the order of collective and rank; and notes on what was not matched.
    """
    rows = _united(by_rank)
    block, expected = _blocks(rows, world)
    place = pd.DataFrame({"block": block, "rank": rows["rank"]}).groupby(["block", "rank"]).cumcount().to_numpy()
    # One row per rank at most: a rank's rows of one block have different places.
    number = pd.DataFrame({"block": block, "place": place}).groupby(["block", "place"], sort=False).ngroup().to_numpy()
    complete = _complete(rows, number, expected)
    whole = np.ones(int(block.max(initial=-1)) + 1, dtype=bool)
    whole[block[~complete]] = False
    rows["matched"] = whole[block]
    by = np.where(rows["sequence"].notna() & ~rows["point_to_point"], "sequence", "order")
    rows["matched_by"] = np.where(rows["matched"], by, None)
    rows["collective"] = np.where(rows["matched"], number, number.max(initial=-1) + 1 + np.arange(len(rows)))
    rows["collective"] = numbered_by_arrival(rows, rows["start_ns"].to_numpy())
    return rows.sort_values(["collective", "rank"], ignore_index=True), _notes(rows, world, sorted(by_rank))


def numbered_by_arrival(rows: pd.DataFrame, arrival_ns: np.ndarray) -> np.ndarray:
    """The collectives of `rows` numbered anew by their first arrival [n]; `arrival_ns` int64 [n]."""
    codes, _ = pd.factorize(rows["collective"])
    first = np.full(codes.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, codes, arrival_ns)
    result = np.empty(len(first), dtype=np.int64)
    result[np.argsort(first, kind="stable")] = np.arange(len(first))
    return result[codes]


def unmatched_share(rows: pd.DataFrame) -> float | None:
    """Share of all pieces of communication that have no counterpart; None where there is no communication."""
    return float((~rows["matched"]).mean()) if len(rows) else None


def _united(by_rank: Mapping[int, Columns]) -> pd.DataFrame:
    """The rows of all ranks, with the rank itself filled in as the unnamed side of its messages."""
    frames = [pd.DataFrame(dict(columns)).assign(rank=np.int64(rank)) for rank, columns in sorted(by_rank.items())]
    rows = pd.concat(frames, ignore_index=True)
    for column in OPTIONAL:
        rows[column] = rows[column].astype("Int64").mask(rows[column] == UNKNOWN)
    sends = rows["point_to_point"] & (rows["source"] == UNKNOWN) & (rows["destination"] != UNKNOWN)
    receives = rows["point_to_point"] & (rows["source"] != UNKNOWN) & (rows["destination"] == UNKNOWN)
    rows["source"] = rows["source"].mask(sends, rows["rank"])
    rows["destination"] = rows["destination"].mask(receives, rows["rank"])
    return rows


def _blocks(rows: pd.DataFrame, world: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Which rows are matched as one, or not at all, int64 [n]; and of how many ranks a set of them is, int64 [n].

    The latter is -1 where the members are unknown or the row is of a rank that is none.
    """
    names, ranks = pd.factorize(rows["group"])[0], pd.factorize(rows["group_ranks"])[0]
    sizes = rows["group_size"].fillna(len(world)).to_numpy(dtype=np.int64)
    message, rank = rows["point_to_point"].to_numpy(), rows["rank"].to_numpy()
    source, destination = rows["source"].to_numpy(), rows["destination"].to_numpy()
    expected = np.where(sizes == len(world), len(world), UNKNOWN)
    expected[~np.isin(rank, np.asarray(world))] = UNKNOWN
    for code, members in enumerate(rows["group_ranks"].dropna().unique()):
        own = ranks == code
        expected[own] = np.where(np.isin(rank[own], members), len(set(members)), UNKNOWN)
    named = (source != UNKNOWN) & (destination != UNKNOWN) & (source != destination)
    expected[message] = np.where(named & ((rank == source) | (rank == destination)), 2, UNKNOWN)[message]
    numbered = rows["sequence"].notna().to_numpy() & ~message
    turn = np.where(numbered, rows["sequence"].fillna(0).to_numpy(dtype=np.int64), rows["step"])
    keys = pd.DataFrame({"name": names, "ranks": ranks, "message": message, "numbered": numbered, "turn": turn})
    keys["source"], keys["destination"] = np.where(message, source, UNKNOWN), np.where(message, destination, UNKNOWN)
    # A message whose sides are not named is a block of its own, since nothing can be said of its order.
    keys["lonely"] = np.where(message & ~named, np.arange(len(rows)), UNKNOWN)
    return keys.groupby(list(keys), sort=False).ngroup().to_numpy(), expected


def _complete(rows: pd.DataFrame, number: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Whether every rank of the set that each row belongs to has a row in it, and all are of one kind, bool [n]."""
    if len(rows) == 0:
        return np.empty(0, dtype=bool)
    present = np.bincount(number)[number] == expected
    kinds = pd.factorize(rows["kind"])[0]
    first = np.empty(number.max() + 1, dtype=np.int64)
    first[number] = kinds
    agrees = present & (kinds == first[number])
    return np.bincount(number, weights=~agrees)[number] == 0


def _notes(rows: pd.DataFrame, world: Sequence[int], present: list[int]) -> list[str]:
    notes = []
    unmatched = int((~rows["matched"]).sum())
    if unmatched:
        absent = len(set(world) - set(present))
        why = f"; {absent} of {len(world)} ranks have no trace" if absent else ""
        messages = int((rows["point_to_point"] & ~rows["matched"]).sum())
        why += f"; {messages} are messages between two ranks that do not name each other" if messages else ""
        share = f"{unmatched / len(rows):.0%}"
        notes.append(
            f"{unmatched} of {len(rows)} pieces of communication ({share}) are not matched across ranks{why}: "
            "whether they waited is not known"
        )
    by_order = int((rows["matched_by"] == "order").sum())
    if by_order and len(world) > 1:
        notes.append(
            f"{by_order} of {len(rows)} pieces of communication have no sequence number and are matched by their order "
            "within group and step"
        )
    return notes

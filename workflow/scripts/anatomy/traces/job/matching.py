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

from anatomy.traces.columns import MISSING, Columns, concatenated, grouped, take
from anatomy.traces.rank.communication import UNKNOWN

SYNCHRONISING = ("all_reduce", "all_to_all", "all_gather", "reduce_scatter", "barrier")
"""Kinds in which no rank can finish before all have arrived."""

OPTIONAL = ("group_size", "sequence", "bytes")
"""Columns that are `MISSING` where a trace does not say, in `find_collectives` `UNKNOWN`."""

MATCHED_BY = np.array([None, "order", "sequence"], dtype=object)


def match_collectives(by_rank: Mapping[int, Columns], world: Sequence[int]) -> tuple[Columns, list[str]]:
    """Match what `find_collectives` found on each rank.

    `world` are all ranks of the job, also those without a trace. Collectives belong together when they have the same
    group and the same sequence number, or where there are no numbers, the same place in the order of the group's
    collectives in the step. A set is matched where every rank of the group has one and all are of one kind. Where the
    counts or the kinds of a group differ between ranks in a step, none of that group's in that step is matched, since
    an order with a hole says nothing; where there are numbers, only those with that number are not. A message is
    matched with its counterpart by order within the step, where each side names the other. Of a group that states
    neither its ranks nor its size, all of the job is taken to be members.

    Returns the rows of all ranks, with `MISSING` in group_size, sequence and bytes, and, in addition,
        rank int64
        matched bool; matched_by object ("sequence", "order", None where not matched)
        collective int64: one number for all that belongs together, 0, 1, … by first arrival
    in the order of collective and rank; and notes on what was not matched.
    """
    rows = _united(by_rank)
    members, groups = numbered(rows["group_ranks"])
    block, expected = _blocks(rows, members), _expected(rows, members, groups, world)
    # One row per rank at most: a rank's rows of one block have different places.
    number, _ = grouped(block, _places(block, rows["rank"]))
    whole = np.ones(int(block.max(initial=-1)) + 1, dtype=bool)
    whole[block[~_complete(rows, number, expected)]] = False
    matched = whole[block]
    by = np.where(matched, 1 + ((rows["sequence"] != MISSING) & ~rows["point_to_point"]), 0)
    collective = np.where(matched, number, number.max(initial=-1) + 1 + np.arange(len(number)))
    rows |= {"matched": matched, "matched_by": MATCHED_BY[by]}
    rows |= {"collective": numbered_by_arrival(collective, rows["start_ns"])}
    rows = take(rows, np.lexsort([rows["rank"], rows["collective"]]))
    return rows, _notes(rows, world, sorted(by_rank))


def numbered_by_arrival(collective: np.ndarray, arrival_ns: np.ndarray) -> np.ndarray:
    """Collectives numbered anew by their first arrival, int64 [n]; those that arrive together as their rows come.

    `collective` and `arrival_ns` are int64 [n].
    """
    code, row = grouped(collective)
    first = np.full(len(row), np.iinfo(np.int64).max)
    np.minimum.at(first, code, arrival_ns)
    result = np.empty(len(first), dtype=np.int64)
    result[np.lexsort([row, first])] = np.arange(len(first))
    return result[code]


def numbered(values: np.ndarray) -> tuple[np.ndarray, list]:
    """The distinct values of a column of objects [n], as they come, and the index of each row's among them, int64 [n].

    A value is hashed once for as many rows as it is the same object of, since a group may have a million ranks.
    """
    objects = values.tolist()
    identities = list(map(id, objects))
    places: dict = {}
    place_of = {
        identity: places.setdefault(value, len(places))
        for identity, value in dict(zip(identities, objects, strict=True)).items()
    }
    return np.fromiter(map(place_of.__getitem__, identities), np.int64, len(identities)), list(places)


def is_synchronising(kinds: np.ndarray) -> np.ndarray:
    """Which of some kinds [n] are `SYNCHRONISING`, bool [n]."""
    code, names = numbered(kinds)
    return np.array([name in SYNCHRONISING for name in names], dtype=bool)[code]


def unmatched_share(rows: Columns) -> float | None:
    """Share of all pieces of communication that have no counterpart; None where there is no communication."""
    matched = rows["matched"]
    return float((~matched).mean()) if len(matched) else None


def _united(by_rank: Mapping[int, Columns]) -> Columns:
    """The rows of all ranks in their order, with the rank itself filled in as the unnamed side of its messages."""
    ranks = sorted(by_rank)
    rows = dict(concatenated([by_rank[rank] for rank in ranks]))
    rank = np.repeat(np.array(ranks, dtype=np.int64), [len(by_rank[rank]["step"]) for rank in ranks])
    rows |= {name: np.where(rows[name] == UNKNOWN, MISSING, rows[name]) for name in OPTIONAL}
    source, destination, message = rows["source"], rows["destination"], rows["point_to_point"]
    sends = message & (source == UNKNOWN) & (destination != UNKNOWN)
    receives = message & (source != UNKNOWN) & (destination == UNKNOWN)
    sides = {"source": np.where(sends, rank, source), "destination": np.where(receives, rank, destination)}
    return rows | sides | {"rank": rank}


def _names_both(rows: Columns) -> np.ndarray:
    """Of which rows source and destination are known, and not the same, bool [n]."""
    source, destination = rows["source"], rows["destination"]
    return (source != UNKNOWN) & (destination != UNKNOWN) & (source != destination)


def _blocks(rows: Columns, members: np.ndarray) -> np.ndarray:
    """Which rows are matched as one, or not at all, int64 [n]; `members` [n] numbers the groups' ranks."""
    names, _ = numbered(rows["group"])
    message = rows["point_to_point"]
    by_number, named = ~message & (rows["sequence"] != MISSING), message & _names_both(rows)
    # A message whose sides are not named is a block of its own, since nothing can be said of its order.
    cases = [by_number, named, message]
    sort = np.select(cases, [1, 2, 3], 0)
    turn = np.select(cases, [rows["sequence"], rows["step"], np.arange(len(names))], rows["step"])
    sides = [np.where(named, rows[name], UNKNOWN) for name in ("source", "destination")]
    return grouped(names, members, sort, turn, *sides)[0]


def _expected(rows: Columns, members: np.ndarray, groups: list[tuple | None], world: Sequence[int]) -> np.ndarray:
    """Of how many ranks the set is that each row belongs to, int64 [n].

    `members` [n] are indices into `groups`, the ranks of each, None where unknown. The result is -1 where the members
    are unknown or the row is of a rank that is none.
    """
    rank, message = rows["rank"], rows["point_to_point"]
    pair, first = grouped(members, rank)
    ranks = rank[first].tolist()
    edges = np.searchsorted(members[first], np.arange(len(groups) + 1)).tolist()
    counted: list[int] = []
    for code, group in enumerate(groups):
        among = world if group is None else set(group)
        counted += [len(among) if own in among else UNKNOWN for own in ranks[edges[code] : edges[code + 1]]]
    expected = np.array(counted, dtype=np.int64)[pair]
    unnamed = np.array([group is None for group in groups], dtype=bool)[members]
    expected[unnamed & (rows["group_size"] != MISSING) & (rows["group_size"] != len(world))] = UNKNOWN
    own_message = _names_both(rows) & ((rank == rows["source"]) | (rank == rows["destination"]))
    return np.where(message, np.where(own_message, 2, UNKNOWN), expected)


def _places(block: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """The place of each row among the rank's rows of its block, int64 [n]."""
    code, _ = grouped(block, rank)
    count = np.bincount(code)
    place = np.empty(len(code), dtype=np.int64)
    place[np.argsort(code, kind="stable")] = np.arange(len(code)) - np.repeat(np.cumsum(count) - count, count)
    return place


def _complete(rows: Columns, number: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Whether every rank of the set that each row belongs to has a row in it, and all are of one kind, bool [n]."""
    if len(number) == 0:
        return np.empty(0, dtype=bool)
    kind, _ = numbered(rows["kind"])
    any_kind = np.empty(number.max() + 1, dtype=np.int64)
    any_kind[number] = kind
    agrees = (np.bincount(number)[number] == expected) & (kind == any_kind[number])
    return np.bincount(number, weights=~agrees)[number] == 0


def _notes(rows: Columns, world: Sequence[int], present: list[int]) -> list[str]:
    notes = []
    matched, total = rows["matched"], len(rows["matched"])
    unmatched = int((~matched).sum())
    if unmatched:
        absent = len(world) - sum(rank in world for rank in present)
        why = f"; {absent} of {len(world)} ranks have no trace" if absent else ""
        messages = int((rows["point_to_point"] & ~matched).sum())
        why += f"; {messages} are messages between two ranks that do not name each other" if messages else ""
        share = f"{unmatched / total:.0%}"
        notes.append(
            f"{unmatched} of {total} pieces of communication ({share}) are not matched across ranks{why}: "
            "whether they waited is not known"
        )
    by_order = int((matched & (rows["matched_by"] == "order")).sum())
    if by_order and len(world) > 1:
        notes.append(
            f"{by_order} of {total} pieces of communication have no sequence number and are matched by their order "
            "within group and step"
        )
    return notes

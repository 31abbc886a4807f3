"""Collectives matched across ranks: who waited for whom, and how long the transfer itself took.

A collective can't move data before its last rank has arrived. So on each rank the time from its own arrival to the last
arrival is *waiting*, and the rest is *transfer*, in which the waiting of one transfer step for another is included.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

SYNCHRONISING = ("all_reduce", "all_to_all", "all_gather", "reduce_scatter", "barrier")
"""Kinds in which no rank can finish before all have arrived."""

CLOCK_TOLERANCE_NS = 100_000


def match_collectives(by_rank: Mapping[int, pd.DataFrame], world: list[int]) -> tuple[pd.DataFrame, list[str]]:
    """Match what `find_collectives` found on each rank.

    `world` are all ranks of the job, also those without a trace. Collectives belong together when they have the same
    group and the same sequence number, or where there are no numbers, the same place in the order of the group's
    collectives in the step. A set is matched where every rank of the group has one and all are of one kind. Where the
    counts or the kinds of a group and step differ between ranks, none of them is matched, since an order with a hole
    says nothing.

    Returns the rows of all ranks with rank, collective (index by first arrival), matched, wait_ns, transfer_ns and
    straggler (NA where not matched), and notes on what was not matched.
    """
    rows = pd.concat([frame.assign(rank=rank) for rank, frame in sorted(by_rank.items())], ignore_index=True)
    rows["block"] = rows["sequence"].fillna(rows["step"])
    rows["position"] = _positions(rows)
    block = ["group", "point_to_point", "block"]
    sets = rows.groupby([*block, "position"], sort=False).ngroup().rename("set")
    complete = {number: _is_complete(group, world) for number, group in rows.groupby(sets)}
    # A message between two ranks has no counterpart that a trace could name.
    rows["matched"] = sets.map(complete).astype(bool) & ~rows["point_to_point"]
    rows["matched"] = rows.groupby(block)["matched"].transform("all").astype(bool)
    rows["collective"] = _numbers(rows["start_ns"], sets.where(rows["matched"], len(rows) + np.arange(len(rows))))
    _split(rows)
    return rows.sort_values(["collective", "rank"], ignore_index=True), _notes(rows, world, sorted(by_rank))


def _positions(rows: pd.DataFrame) -> pd.Series:
    """The place of each row among those of its rank, group and step; 0 where a sequence number says it."""
    places = rows.groupby(["rank", "group", "point_to_point", "step"]).cumcount()
    return places.where(rows["sequence"].isna(), 0)


def _numbers(starts: pd.Series, sets: pd.Series) -> pd.Series:
    """Number sets by their first start."""
    order = pd.DataFrame({"first": starts.groupby(sets).transform("min"), "set": sets}).drop_duplicates()
    order = order.sort_values(["first", "set"])["set"]
    return sets.map(pd.Series(np.arange(len(order)), index=order.to_numpy())).astype("int64")


def _is_complete(group: pd.DataFrame, world: list[int]) -> bool:
    """Whether every rank of the group has exactly one row, all of the same kind."""
    ranks, size = group["group_ranks"].iloc[0], group["group_size"].iloc[0]
    if ranks is None and (pd.isna(size) or size == len(world)):
        ranks = world
    return ranks is not None and sorted(group["rank"]) == sorted(ranks) and group["kind"].nunique() == 1


def _split(rows: pd.DataFrame) -> None:
    """Add wait_ns, transfer_ns and straggler to the rows."""
    sets = rows.groupby("collective")
    arrival = sets["start_ns"].transform("max")
    boundary = arrival.clip(lower=rows["start_ns"], upper=rows["end_ns"])
    last = rows.loc[sets["start_ns"].idxmax()].set_index("collective")["rank"] if len(rows) else rows["rank"]
    for name, values in (
        ("wait_ns", boundary - rows["start_ns"]),
        ("transfer_ns", rows["end_ns"] - boundary),
        ("straggler", rows["collective"].map(last)),
    ):
        rows[name] = values.astype("Int64").where(rows["matched"])


def _notes(rows: pd.DataFrame, world: list[int], present: list[int]) -> list[str]:
    notes = []
    if len(present) > 1:
        notes.append(
            "arrivals of different ranks are compared by the clocks of their traces: right for ranks of one host; "
            "offsets between hosts are not estimated"
        )
    unmatched = int((~rows["matched"]).sum())
    if unmatched:
        absent = len(set(world) - set(present))
        why = f"; {absent} of {len(world)} ranks have no trace" if absent else ""
        notes.append(f"{unmatched} of {len(rows)} pieces of communication are not matched across ranks{why}")
    if len(rows) and len(world) > 1 and rows["sequence"].isna().all():
        notes.append("no sequence numbers: collectives are matched by their order within group and step")
    matched = rows[rows["matched"] & rows["kind"].isin(SYNCHRONISING)].groupby("collective")
    early = matched["end_ns"].min() < matched["start_ns"].max() - CLOCK_TOLERANCE_NS
    if early.any():
        notes.append(
            f"{int(early.sum())} of {len(early)} matched collectives end on one rank before another arrives: the "
            "clocks differ, or the order does not match, and waiting and transfer are not to be trusted"
        )
    return notes

"""Waiting and transfer: who waited for whom in a collective, and what became of a rank's time in communication.

A collective can't move data before its last rank has arrived. So on each rank the time from its own arrival to the last
arrival is *waiting*, and the rest is *transfer*, in which the waiting of one transfer step for another is included.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from anatomy.traces.intervals import spans_of, union
from anatomy.traces.job.matching import SYNCHRONISING, numbered_by_arrival
from anatomy.traces.rank.record import Columns

STATES = ("waiting_ns", "transfer_ns", "unknown_ns")

CLOCK_TOLERANCE_NS = 100_000


def split_waiting(rows: pd.DataFrame, offsets: Mapping[int, int]) -> pd.DataFrame:
    """The rows of `match_collectives`, split by the common clock.

    `offsets` are how far the clocks of ranks are ahead, in ns (`applied_offsets`). Adds arrival_ns (Int64, the start on
    the reference rank's clock, missing where the rank's offset is unknown), wait_ns and transfer_ns (Int64, of the
    rank's own duration), and straggler (Int64, the last rank to arrive); the latter three are missing where the
    collective is not matched or the offset of one of its ranks is unknown. Collectives are numbered and sorted by their
    first arrival.
    """
    ranks, own = np.unique(rows["rank"].to_numpy(dtype=np.int64), return_inverse=True)
    located = np.array([rank in offsets for rank in ranks.tolist()], dtype=bool)[own]
    shift = np.array([offsets.get(rank, 0) for rank in ranks.tolist()], dtype=np.int64)[own]
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    arrival = start - shift
    codes, names = pd.factorize(rows["collective"])
    last = np.full(len(names), np.iinfo(np.int64).min)
    np.maximum.at(last, codes, arrival)
    boundary = np.clip(last[codes] + shift, start, end)
    straggler = np.full(len(names), np.iinfo(np.int64).max)
    latest = arrival == last[codes]
    np.minimum.at(straggler, codes[latest], rows["rank"].to_numpy()[latest])
    comparable = np.ones(len(names), dtype=bool)
    comparable[codes[~located | ~rows["matched"].to_numpy(dtype=bool)]] = False
    result = rows.assign(
        collective=numbered_by_arrival(rows, arrival),
        arrival_ns=pd.array(arrival, dtype="Int64"),
        wait_ns=pd.array(boundary - start, dtype="Int64"),
        transfer_ns=pd.array(end - boundary, dtype="Int64"),
        straggler=pd.array(straggler[codes], dtype="Int64"),
    )
    result.loc[~located, "arrival_ns"] = pd.NA
    result.loc[~comparable[codes], ["wait_ns", "transfer_ns", "straggler"]] = pd.NA
    return result.sort_values(["collective", "rank"], ignore_index=True)


def split(communicating: Columns, rows: pd.DataFrame, gpu: bool) -> Columns:
    """What one rank did while it communicated.

    `communicating` are disjoint pieces of time (step, phase, start_ns, end_ns, overlapped), `rows` the rank's own of
    `split_waiting`. An instant is transfer where a collective in flight transfers; else unknown where one is in flight
    of which it is not known; else waiting where one waits for a rank that has not arrived. Where no collective is in
    flight, it is the call that starts one on a CPU, which counts as transfer, and on a GPU (`gpu`) communication that
    was launched outside of the steps, of which nothing is known.

    Returns for each piece step, phase and overlapped (bool), and waiting_ns, transfer_ns and unknown_ns (int64), which
    add up to its length exactly.
    """
    start, end = np.asarray(communicating["start_ns"]), np.asarray(communicating["end_ns"])
    own_start, own_end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    known = rows["wait_ns"].notna().to_numpy()
    boundary = own_start + rows["wait_ns"].fillna(0).to_numpy(dtype=np.int64)
    layers = (
        spans_of(boundary[known], own_end[known]),
        spans_of(own_start[~known], own_end[~known]),
        spans_of(own_start[known], boundary[known]),
    )
    # What each layer covers beyond those before it is what it decides.
    reach = [np.zeros(len(start), dtype=np.int64)]
    reach += [_covered(union(np.concatenate(layers[: count + 1])), start, end) for count in range(len(layers))]
    transfer, unknown, waiting = np.diff(reach, axis=0)
    rest = end - start - reach[-1]
    transfer, unknown = (transfer, unknown + rest) if gpu else (transfer + rest, unknown)
    pieces = {name: communicating[name] for name in ("step", "phase", "overlapped")}
    return pieces | dict(zip(STATES, (waiting, transfer, unknown), strict=True))


def impossible_notes(rows: pd.DataFrame) -> list[str]:
    """A note where collectives of `split_waiting` end on one rank well before another arrives."""
    chosen = rows[rows["wait_ns"].notna() & rows["kind"].isin(SYNCHRONISING)]
    end = chosen["end_ns"] - chosen["start_ns"] + chosen["arrival_ns"].astype(np.int64)
    sets = pd.DataFrame({"collective": chosen["collective"], "end": end, "arrival": chosen["arrival_ns"]})
    sets = sets.groupby("collective").agg({"end": "min", "arrival": "max"})
    early = int((sets["end"] < sets["arrival"].astype(np.int64) - CLOCK_TOLERANCE_NS).sum())
    if not early:
        return []
    return [
        f"{early} of {len(sets)} matched collectives end on one rank before another arrives: the clocks drift, the "
        "order does not match, or ranks sent each other nothing; their waiting and transfer are not to be trusted"
    ]


def _covered(spans: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """How much of each piece [start, end) disjoint spans cover, int64 [n]."""
    if len(spans) == 0:
        return np.zeros(len(start), dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(spans[:, 1] - spans[:, 0])])

    def up_to(instants: np.ndarray) -> np.ndarray:
        index = np.searchsorted(spans[:, 0], instants, side="right")
        inside = np.minimum(instants, spans[index - 1, 1]) - spans[index - 1, 0]
        return np.where(index > 0, before[index - 1] + inside, 0)

    return up_to(end) - up_to(start)

"""Waiting and transfer: who waited for whom in a collective, and what became of a rank's time in communication.

A collective can't move data before its last rank has arrived. So on each rank the time from its own arrival to the last
arrival is *waiting*, and the rest is *transfer*, in which the waiting of one transfer step for another is included.
"""

from collections.abc import Mapping

import numpy as np

from anatomy.traces.columns import MISSING, Columns, grouped, take
from anatomy.traces.intervals import covered_before, spans_of, union
from anatomy.traces.job.matching import is_synchronising, numbered_by_arrival

STATES = ("waiting_ns", "transfer_ns", "unknown_ns")

CLOCK_TOLERANCE_NS = 100_000

INT64 = np.iinfo(np.int64)


def split_waiting(rows: Columns, offsets: Mapping[int, int]) -> Columns:
    """The rows of `match_collectives`, split by the common clock.

    `offsets` are how far the clocks of ranks are ahead, in ns (`applied_offsets`). Adds, all int64, arrival_ns (the
    start on the reference rank's clock, `MISSING` where the rank's offset is unknown), wait_ns and transfer_ns (of the
    rank's own duration), and straggler (the last rank to arrive); the latter three are `MISSING` where the collective
    is not matched or the offset of one of its ranks is unknown. Collectives are numbered and sorted by their first
    arrival.
    """
    ranks, own = np.unique(rows["rank"], return_inverse=True)
    located = np.array([rank in offsets for rank in ranks.tolist()], dtype=bool)[own]
    shift = np.array([offsets.get(rank, 0) for rank in ranks.tolist()], dtype=np.int64)[own]
    start, end = rows["start_ns"], rows["end_ns"]
    arrival = start - shift
    code, first = grouped(rows["collective"])
    last = np.full(len(first), INT64.min)
    np.maximum.at(last, code, arrival)
    boundary = np.clip(last[code] + shift, start, end)
    straggler = np.full(len(first), INT64.max)
    latest = arrival == last[code]
    np.minimum.at(straggler, code[latest], rows["rank"][latest])
    comparable = np.ones(len(first), dtype=bool)
    comparable[code[~located | ~rows["matched"]]] = False
    found = {"wait_ns": boundary - start, "transfer_ns": end - boundary, "straggler": straggler[code]}
    result = {
        **rows,
        "collective": numbered_by_arrival(code, arrival),
        "arrival_ns": np.where(located, arrival, MISSING),
        **{name: np.where(comparable[code], values, MISSING) for name, values in found.items()},
    }
    return take(result, np.lexsort([result["rank"], result["collective"]]))


def split(communicating: Columns, rows: Columns, gpu: bool) -> Columns:
    """What one rank did while it communicated.

    `communicating` are disjoint pieces of time (step, phase, start_ns, end_ns, overlapped), `rows` the rank's own of
    `split_waiting`. An instant is transfer where a collective in flight transfers; else unknown where one is in flight
    of which it is not known; else waiting where one waits for a rank that has not arrived. Where no collective is in
    flight, it is the call that starts one on a CPU, which counts as transfer, and on a GPU (`gpu`) communication that
    was launched outside of the steps, of which nothing is known.

    Returns for each piece step, phase and overlapped (bool), and waiting_ns, transfer_ns and unknown_ns (int64), which
    add up to its length exactly.
    """
    start, end = communicating["start_ns"], communicating["end_ns"]
    own_start, own_end, known = rows["start_ns"], rows["end_ns"], rows["wait_ns"] != MISSING
    boundary = own_start + np.where(known, rows["wait_ns"], 0)
    layers = (
        spans_of(boundary[known], own_end[known]),
        spans_of(own_start[~known], own_end[~known]),
        spans_of(own_start[known], boundary[known]),
    )
    # What each layer covers beyond those before it is what it decides.
    reach = [np.zeros(len(start), dtype=np.int64)]
    for count in range(1, len(layers) + 1):
        covered = union(np.concatenate(layers[:count]))
        reach.append(covered_before(covered, end) - covered_before(covered, start))
    transfer, unknown, waiting = np.diff(reach, axis=0)
    rest = end - start - reach[-1]
    transfer, unknown = (transfer, unknown + rest) if gpu else (transfer + rest, unknown)
    pieces = {name: communicating[name] for name in ("step", "phase", "overlapped")}
    return pieces | dict(zip(STATES, (waiting, transfer, unknown), strict=True))


def impossible_notes(rows: Columns) -> list[str]:
    """A note where collectives of `split_waiting` end on one rank well before another arrives."""
    chosen = (rows["wait_ns"] != MISSING) & is_synchronising(rows["kind"])
    arrival, length = rows["arrival_ns"][chosen], (rows["end_ns"] - rows["start_ns"])[chosen]
    code, sets = grouped(rows["collective"][chosen])
    first_end, last_arrival = np.full(len(sets), INT64.max), np.full(len(sets), INT64.min)
    np.minimum.at(first_end, code, arrival + length)
    np.maximum.at(last_arrival, code, arrival)
    early = int((first_end < last_arrival - CLOCK_TOLERANCE_NS).sum())
    if not early:
        return []
    return [
        f"{early} of {len(sets)} matched collectives end on one rank before another arrives: the clocks drift, the "
        "order does not match, or ranks sent each other nothing; their waiting and transfer are not to be trusted"
    ]

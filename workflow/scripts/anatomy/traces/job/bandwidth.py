"""Bandwidths of collectives by the definitions of NVIDIA's nccl-tests.

The *algorithm bandwidth* is a collective's size over its time. The *bus bandwidth* multiplies it by the share of the
size that has to cross each rank's link in the best algorithm, so that it can be compared with the hardware's, whatever
the number of ranks n.

The size is the larger of a rank's input and output: for an all-gather and a reduce-scatter what all ranks hold
together, for an all-to-all one rank's whole buffer, for everything else one rank's. Of an exchange of messages
(`all_to_all_v`) it is what the rank sent or received, whichever is more, so that the two bandwidths are the same.

Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md; those of all-to-all, gather and scatter
from the tests' own code.
"""

import numpy as np

from anatomy.traces.columns import MISSING, Columns, grouped
from anatomy.traces.job.matching import numbered

TRANSFER, DURATION = "transfer", "duration"


def bus_factor(kind: str, ranks: np.ndarray) -> np.ndarray:
    """Bus over algorithm bandwidth of a kind of collective by the number of its ranks, float64 [n].

    `ranks` is float64, NaN where unknown; so is the result there where it depends on them, and for kinds that move
    nothing or are not known.
    """
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (ranks - 1) / ranks
    if kind in ("broadcast", "reduce", "send_recv", "all_to_all_v"):
        return np.ones(len(ranks))
    return np.full(len(ranks), np.nan)


def add_bandwidths(rows: Columns) -> Columns:
    """The rows of `split_waiting` with the bandwidths that each rank saw.

    Adds algorithm_bandwidth and bus_bandwidth (float64, bytes per second, NaN where unknown), and bandwidth_of (object,
    None where there is none), the time they are over: "transfer", from the last rank's arrival on; or where that is not
    known, "duration", all of the rank's own time, in which it may have waited, so that both are lower bounds.

    Missing where the bytes are unknown, the time is 0 (a rank may be done before the last arrives), or nothing is
    moved; the bus bandwidth also where the number of ranks is unknown and matters.
    """
    known = rows["transfer_ns"] != MISSING
    time_ns = np.where(known, rows["transfer_ns"], rows["end_ns"] - rows["start_ns"]).astype(np.float64)
    kinds, names = numbered(rows["kind"])
    idle = np.array([kind == "barrier" for kind in names], dtype=bool)[kinds]
    # `MISSING` is below 0.
    moves = (time_ns > 0) & (rows["bytes"] > 0) & ~idle
    # bytes / ns * 1e9 = bytes per second
    algorithm = np.divide(rows["bytes"] * 1e9, time_ns, out=np.full(len(moves), np.nan), where=moves)
    ranks, factor = _num_ranks(rows), np.full(len(moves), np.nan)
    for code, kind in enumerate(names):
        factor[kinds == code] = bus_factor(kind, ranks[kinds == code])
    over = np.array([None, DURATION, TRANSFER], dtype=object)[np.where(moves, 1 + known, 0)]
    return {**rows, "algorithm_bandwidth": algorithm, "bus_bandwidth": algorithm * factor, "bandwidth_of": over}


def _num_ranks(rows: Columns) -> np.ndarray:
    """How many ranks took part, float64 [n]: as the trace says, else as were matched, else NaN."""
    code, _ = grouped(rows["collective"])
    met = np.where(rows["matched"], np.bincount(code)[code], np.nan)
    return np.where(rows["group_size"] != MISSING, rows["group_size"], met)

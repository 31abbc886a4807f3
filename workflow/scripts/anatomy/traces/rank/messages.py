"""Messages that a program posts as one collective of its own, put together to one piece of communication."""

from collections.abc import Callable

import numpy as np

from anatomy.traces.columns import Columns, grouped, take

UNKNOWN = -1
"""In columns of integers, what the trace does not say."""


def unite(pieces: Columns, around: np.ndarray, kind_of: Callable[[int], str]) -> Columns:
    """Pieces of communication, as `find_collectives` has them, with those of each annotated collective made one.

    `around` int64 [n] is the annotation within which each was launched, -1 where there is none; an annotation is a
    piece itself, the first of its own. `kind_of` says of what kind an annotation's collective is. The whole ends when
    its last message does; its bytes are those sent or those received, whichever are more.
    """
    inside = np.flatnonzero(around >= 0)
    if len(inside) == 0:
        return pieces
    code, first = grouped(around[inside])
    first = inside[first]
    result = {name: column.copy() for name, column in pieces.items()}
    # Rounding can put the first call on the very start of the annotation, which is no message for that.
    result["point_to_point"][first] = False
    result["source"][first] = result["destination"][first] = UNKNOWN
    result["kind"][first] = [kind_of(row) for row in around[first].tolist()]
    np.maximum.at(result["end_ns"], first[code], pieces["end_ns"][inside])
    result["bytes"][first] = _larger_way(take(result, inside), code, len(first))
    kept = around < 0
    kept[first] = True
    return take(result, kept)


def _larger_way(pieces: Columns, code: np.ndarray, count: int) -> np.ndarray:
    """Bytes of the messages of each code, of the direction that has more; `UNKNOWN` where a message's are, int64."""
    message = pieces["point_to_point"]
    sent, received = (message & (pieces[side] == UNKNOWN) for side in ("source", "destination"))
    totals = np.zeros((2, count), dtype=np.int64)
    for total, way in zip(totals, (sent, received), strict=True):
        np.add.at(total, code[way], pieces["bytes"][way])
    result = totals.max(axis=0)
    result[code[message & ((sent == received) | (pieces["bytes"] == UNKNOWN))]] = UNKNOWN
    return result

"""Messages that a program posts as one collective of its own, put together to one piece of communication."""

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from anatomy.traces.columns import Columns, grouped, take

UNKNOWN = -1
"""In columns of integers, what the trace does not say."""

STATED = re.compile(r"(\S+) \[(\d{1,9}(?:, \d{1,9})*)\]")
"""A collective of some ranks: its kind, and their numbers."""


def unite(pieces: Columns, around: np.ndarray, stated_by: Callable[[int], str]) -> Columns:
    """Pieces of communication, as `find_collectives` has them, with those of each annotated collective made one.

    `around` int64 [n] is the annotation within which each was launched, -1 where there is none; an annotation is a
    piece itself, the first of its own. `stated_by` is what an annotation says of its collective: the kind, and where
    not all ranks of the job take part, those that do: `all_to_all_v [0, 1]`. The whole ends when its last message does;
    its bytes are those sent or those received, whichever are more.
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
    for piece, row in zip(first.tolist(), around[first].tolist(), strict=True):
        result["kind"][piece], ranks = _kind_and_ranks(stated_by(row))
        if ranks is not None:
            result["group_ranks"][piece], result["group_size"][piece] = ranks, len(ranks)
    np.maximum.at(result["end_ns"], first[code], pieces["end_ns"][inside])
    result["bytes"][first] = _larger_way(take(result, inside), code, len(first))
    kept = around < 0
    kept[first] = True
    return take(result, kept)


@lru_cache(maxsize=4096)
def _kind_and_ranks(stated: str) -> tuple[str, tuple[int, ...] | None]:
    """The same object for the same ranks, as `matching.numbered` likes it."""
    found = STATED.fullmatch(stated)
    return (found[1], tuple(map(int, found[2].split(", ")))) if found else (stated, None)


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

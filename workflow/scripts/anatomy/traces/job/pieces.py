"""Work on many tracks as few pieces: what a timeline can show of millions of intervals."""

from dataclasses import dataclass

import numpy as np

FINEST_NS = 1000
"""Where pieces have to be merged, the first length tried."""


@dataclass(frozen=True)
class Pieces:
    """Pieces [n] of work, sorted by track and then by start.

    track and label int32: what they are, as numbers from 0; start_ns and end_ns int64: when; count int32: how many were
    merged into each.
    """

    track: np.ndarray
    label: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    count: np.ndarray

    def __len__(self) -> int:
        return len(self.track)


def pieces_of(track: np.ndarray, label: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> Pieces:
    """Pieces of some length from intervals in any order; those of one track and label that touch are one."""
    chosen = np.flatnonzero(end_ns > start_ns)
    order = chosen[np.argsort(start_ns[chosen], kind="stable")]
    order = order[np.argsort(track[order], kind="stable")]
    numbers = (column[order].astype(np.int32) for column in (track, label))
    pieces = Pieces(*numbers, start_ns[order], end_ns[order], count=np.ones(len(order), dtype=np.int32))
    same = (pieces.track[1:] == pieces.track[:-1]) & (pieces.label[1:] == pieces.label[:-1])
    united = _merged(pieces, same & (pieces.start_ns[1:] == pieces.end_ns[:-1]))
    return Pieces(united.track, united.label, united.start_ns, united.end_ns, np.ones_like(united.count))


def coarsened(pieces: Pieces, most: int) -> tuple[Pieces, int | None]:
    """Pieces of which short neighbours are merged until there are at most `most`, or as many as there are tracks.

    Time is cut into cells of one length, the shortest of 1, 2, 4, … us that does: pieces shorter than it that follow
    one another and start in the same cell become one, with the label of the longest. So a track has at most three
    pieces per cell: a long one, and short ones before and after it.

    Returns the pieces and the cells' length in ns, None where nothing was merged.
    """
    if len(pieces) <= most:
        return pieces, None
    most = max(most, len(np.unique(pieces.track)))
    cell_ns, origin = FINEST_NS, pieces.start_ns.min()
    while True:
        short = pieces.end_ns - pieces.start_ns < cell_ns
        cell = (pieces.start_ns - origin) // cell_ns
        joins = (pieces.track[1:] == pieces.track[:-1]) & (cell[1:] == cell[:-1]) & short[1:] & short[:-1]
        if len(pieces) - int(joins.sum()) <= most:
            return _merged(pieces, joins), cell_ns
        cell_ns *= 2


def _merged(pieces: Pieces, joins: np.ndarray) -> Pieces:
    """Join each piece but the first with the one before it where `joins` [n-1] says so."""
    if not joins.any():
        return pieces
    begins = np.append(True, ~joins)
    first, run = np.flatnonzero(begins), np.cumsum(begins) - 1
    length = pieces.end_ns - pieces.start_ns
    candidates = np.flatnonzero(length == np.maximum.reduceat(length, first)[run])[::-1]
    longest = np.empty_like(first)
    longest[run[candidates]] = candidates  # of equally long ones the first, which is assigned last
    return Pieces(
        pieces.track[first],
        pieces.label[longest],
        pieces.start_ns[first],
        np.maximum.reduceat(pieces.end_ns, first),
        np.add.reduceat(pieces.count, first),
    )

"""Work on many tracks as few pieces: what a timeline can show of millions of intervals.

Until it is known which intervals are merged, one byte of each is all that is kept beside them: there is then no second
copy of a table of millions.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from anatomy.traces.columns import Columns, take

FINEST_NS = 1000
"""Where pieces have to be merged, the first length tried."""

AT_ONCE = 1 << 17
"""Intervals that are looked at together."""

TOUCHES, NEVER = -1, 127


@dataclass(frozen=True)
class Pieces:
    """Pieces [n] of work, sorted by track and then by start.

    track and label: what they are, as numbers from 0; start_ns and end_ns int64: when; count int64: how many were
    merged into each.
    """

    track: np.ndarray
    label: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    count: np.ndarray

    def __len__(self) -> int:
        return len(self.track)


def pieces_of(work: Columns, shift_ns: np.ndarray, most: int) -> tuple[Pieces, int | None]:
    """Intervals as at most `most` pieces, or as many as there are tracks.

    `work` has track and label (numbers from 0), start_ns and end_ns (int64) of intervals in any order, and `shift_ns`,
    int64 [tracks], is what to take from the times of each track. Intervals without length are left out; those of one
    track and label that touch are one piece.

    Where these are too many, time is cut into cells of one length, the shortest of 1, 2, 4, … us that does: pieces
    shorter than it that follow one another and start in the same cell become one, with the label of the longest. So a
    track has at most three pieces per cell: a long one, and short ones before and after it.

    Returns the pieces and the cells' length in ns, None where nothing was merged.
    """
    work = _in_order(work)
    levels = _touching(work)
    level = TOUCHES
    if np.count_nonzero(levels > level) > most:
        most = max(most, _add_levels(levels, work, shift_ns))
        while np.count_nonzero(levels > level) > most:
            level += 1
    return _merged(work, shift_ns, levels, level), None if level == TOUCHES else FINEST_NS << level


def _in_order(work: Columns) -> Columns:
    """The intervals of some length, by track and start; where they are so already, as they are."""
    track, starts = work["track"], work["start_ns"]
    lasts = work["end_ns"] > starts
    ascends = (track[1:] > track[:-1]) | ((track[1:] == track[:-1]) & (starts[1:] >= starts[:-1]))
    if lasts.all() and ascends.all():
        return work
    chosen = np.flatnonzero(lasts)
    order = chosen[np.argsort(starts[chosen], kind="stable")]
    return take(work, order[np.argsort(track[order], kind="stable")])


def _touching(work: Columns) -> np.ndarray:
    """`TOUCHES` where an interval is one piece with the one before it, else `NEVER`, int8 [n]."""
    touches = work["start_ns"][1:] == work["end_ns"][:-1]
    for name in ("track", "label"):
        touches &= work[name][1:] == work[name][:-1]
    levels = np.full(len(work["track"]), NEVER, dtype=np.int8)
    levels[1:][touches] = TOUCHES
    return levels


def _add_levels(levels: np.ndarray, work: Columns, shift_ns: np.ndarray) -> int:
    """Write into `levels` from which length of cells on a piece is merged with the one before it.

    The length is `FINEST_NS` times two to the power of the level. It holds for all longer ones too: of two times, their
    cells are the same from the highest binary digit on in which they differ, and a piece is short from its own highest
    digit on, all in units of the finest cells. Where the piece before is of another track, the level stays `NEVER`.

    Returns the number of tracks.
    """
    track, starts = work["track"], work["start_ns"]
    begins = np.append(0, np.flatnonzero(track[1:] != track[:-1]) + 1)
    origin = (starts[begins] - shift_ns[track[begins]]).min()
    begin = until = 0
    while until < len(levels):
        until = min(until + AT_ONCE, len(levels))
        while until < len(levels) and levels[until] == TOUCHES:
            until += 1
        first = begin + np.flatnonzero(levels[begin:until] != TOUCHES)
        start, end = _spans(work, shift_ns, first, until)
        length, cell = (end - start) // FINEST_NS, (start - origin) // FINEST_NS
        digits = np.frexp((cell[1:] ^ cell[:-1]) | length[1:] | length[:-1])[1]
        levels[first[1:]] = np.where(track[first[1:]] == track[first[:-1]], digits, NEVER)
        # The last piece is looked at again, beside the one after it.
        begin = first[-1]
    return len(begins)


def _spans(work: Columns, shift_ns: np.ndarray, first: np.ndarray, until: int) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of pieces that begin with the rows `first` [k] and follow one another up to row `until`."""
    shift = shift_ns[work["track"][first]]
    return work["start_ns"][first] - shift, work["end_ns"][np.append(first[1:], until) - 1] - shift


def _merged(work: Columns, shift_ns: np.ndarray, levels: np.ndarray, level: int) -> Pieces:
    """The pieces of which those are merged with the one before them whose level is no higher than `level`."""
    begins = np.flatnonzero(levels > level)
    bounds = np.unique(np.searchsorted(begins, np.arange(0, len(levels), AT_ONCE)))
    bounds = [*begins[bounds[bounds < len(begins)]].tolist(), len(levels)]
    parts = [[work["track"][:0], work["label"][:0], *np.empty((3, 0), dtype=np.int64)]]
    for begin, until in pairwise(bounds):
        first = begin + np.flatnonzero(levels[begin:until] != TOUCHES)
        start, end = _spans(work, shift_ns, first, until)
        run = np.flatnonzero(levels[first] > level)
        count = np.diff(np.append(run, len(first)))
        label = work["label"][first[_longest(end - start, run, count)]]
        parts.append([work["track"][first[run]], label, start[run], np.maximum.reduceat(end, run), count])
    return Pieces(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _longest(length: np.ndarray, run: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The place of the longest piece of each run, of equally long ones the first; runs begin at `run`."""
    if len(run) == len(length):
        return run
    of = np.repeat(np.arange(len(run)), count)
    candidates = np.flatnonzero(length == np.maximum.reduceat(length, run)[of])[::-1]
    longest = np.empty_like(run)
    longest[of[candidates]] = candidates  # the first is assigned last
    return longest

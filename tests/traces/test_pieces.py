"""Millions of intervals as few pieces: within the bound, nothing lost, and as merging them one by one would have it."""

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anatomy.traces.job import pieces as module
from anatomy.traces.job.pieces import pieces_of

TRACKS = 3
ALL = 1 << 40
"""More pieces than there ever are."""

span = st.tuples(st.integers(0, 5000), st.integers(0, 5000)).map(lambda pair: (min(pair), max(pair)))
rows = st.lists(st.tuples(st.integers(0, TRACKS - 1), st.integers(0, 3), span), min_size=1, max_size=40)
shifts = st.lists(st.integers(-2000, 2000), min_size=TRACKS, max_size=TRACKS)


def work(*rows):
    """Columns from (track, label, start, end)."""
    names = ("track", "label", "start_ns", "end_ns")
    return {name: np.array(column, dtype=np.int64) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def pieces_from(rows, most=ALL, shift=(0,) * TRACKS):
    """(track, label, start, end, count) of each piece, and the cells' length."""
    pieces, cell_ns = pieces_of(work(*rows), np.array(shift, dtype=np.int64), most)
    columns = (pieces.track, pieces.label, pieces.start_ns, pieces.end_ns, pieces.count)
    return list(zip(*(column.tolist() for column in columns), strict=True)), cell_ns


def one_by_one(rows, most, shift):
    """The same by going through the intervals of each track in order, and trying one length of cells after another."""
    kept = [
        (track, label, start - shift[track], end - shift[track]) for track, label, start, end in rows if end > start
    ]
    fine = []
    for track, label, start, end in sorted(kept, key=lambda row: (row[0], row[2])):
        if fine and fine[-1][:2] == (track, label) and fine[-1][3] == start:
            start = fine.pop()[2]
        fine.append((track, label, start, end))
    coarse, cell_ns = [[piece] for piece in fine], None
    most = max(most, len({piece[0] for piece in fine}))
    while len(coarse) > most:
        cell_ns = 2 * cell_ns if cell_ns else 1000
        coarse = list(_runs(fine, cell_ns))
    merged = []
    for run in coarse:
        longest = max(run, key=lambda piece: piece[3] - piece[2])
        merged.append((run[0][0], longest[1], run[0][2], max(piece[3] for piece in run), len(run)))
    return merged, cell_ns


def _runs(fine, cell_ns):
    """The pieces that one length of cells makes one."""
    origin = min(piece[2] for piece in fine)

    def key(numbered):
        number, (track, _, start, end) = numbered
        return (track, (start - origin) // cell_ns) if end - start < cell_ns else number

    for _, run in groupby(enumerate(fine), key):
        yield [piece for _, piece in run]


@pytest.mark.parametrize("at_once", [1, 3, module.AT_ONCE])
@settings(max_examples=150)
@given(rows=rows, most=st.integers(1, 10), shift=shifts)
def test_pieces_are_those_that_merging_one_by_one_gives_however_many_are_looked_at_at_once(at_once, rows, most, shift):
    rows = [(track, label, *span) for track, label, span in rows]
    # Of intervals that start together, which is first is as good as any.
    rows = list({(row[0], row[2]): row for row in rows}.values())
    before, module.AT_ONCE = module.AT_ONCE, at_once
    try:
        assert pieces_from(rows, most, shift) == one_by_one(rows, most, shift)
    finally:
        module.AT_ONCE = before


@settings(max_examples=100)
@given(rows=rows, most=st.integers(1, 10))
def test_coarsening_keeps_its_bound_and_covers_what_was_there(rows, most):
    rows = [(track, label, *span) for track, label, span in rows]
    fine, _ = pieces_from(rows)
    coarse, cell_ns = pieces_from(rows, most)
    bound = max(most, len({piece[0] for piece in fine}))
    assert len(coarse) <= bound
    assert (cell_ns is None) == (len(fine) <= bound)
    assert sum(piece[4] for piece in coarse) == len(fine)
    for track, _, start, end, _ in fine:
        assert any(track == piece[0] and piece[2] <= start and end <= piece[3] for piece in coarse)


def test_pieces_of_one_label_that_touch_are_one():
    rows = [(0, 5, 10, 20), (0, 5, 0, 10), (0, 6, 20, 30), (1, 6, 30, 40), (1, 6, 41, 41)]
    assert pieces_from(rows) == ([(0, 5, 0, 20, 1), (0, 6, 20, 30, 1), (1, 6, 30, 40, 1)], None)


def test_each_track_is_shifted_by_its_own_clock():
    rows = [(0, 1, 100, 110), (1, 1, 5100, 5110)]
    assert pieces_from(rows, shift=(0, 5000)) == ([(0, 1, 100, 110, 1), (1, 1, 100, 110, 1)], None)


def test_short_neighbours_in_a_cell_are_one_with_the_label_of_the_longest():
    # Cells of 1 us hold pieces 1 to 3 and piece 5; piece 4 is longer than a cell and stays.
    rows = [(0, 1, 0, 100), (0, 2, 200, 600), (0, 1, 600, 900), (0, 3, 950, 2100), (0, 4, 2200, 2300)]
    assert pieces_from(rows, most=3) == ([(0, 2, 0, 900, 3), (0, 3, 950, 2100, 1), (0, 4, 2200, 2300, 1)], 1000)


def test_a_cell_is_merged_at_the_first_length_that_does():
    # 999 ns are short in cells of 1 us, 1000 ns only in those of 2 us; so are starts at 0 and 1999 in one cell.
    assert pieces_from([(0, 1, 0, 999), (0, 2, 999, 1998)], most=1)[1] == 1000
    assert pieces_from([(0, 1, 0, 1000), (0, 2, 1999, 2000)], most=1)[1] == 2000


def test_no_intervals_are_no_pieces():
    empty = {name: np.empty(0, dtype=np.int64) for name in ("track", "label", "start_ns", "end_ns")}
    pieces, cell_ns = pieces_of(empty, np.empty(0, dtype=np.int64), 5)
    assert (len(pieces), cell_ns) == (0, None)

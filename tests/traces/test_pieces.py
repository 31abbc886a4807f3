"""Millions of intervals as few pieces: within the bound, and nothing lost."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anatomy.traces.job.pieces import coarsened, pieces_of

span = st.tuples(st.integers(0, 5000), st.integers(0, 5000)).map(lambda pair: (min(pair), max(pair)))
pieces = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), span), min_size=1, max_size=40)


@settings(max_examples=200, deadline=None)
@given(rows=pieces, most=st.integers(1, 10))
def test_coarsening_keeps_its_bound_and_covers_what_was_there(rows, most):
    columns = [np.array(column, dtype=np.int64) for column in zip(*((a, b, *c) for a, b, c in rows), strict=True)]
    fine = pieces_of(*columns)
    coarse, cell_ns = coarsened(fine, most)
    assert len(coarse) <= max(most, len(np.unique(fine.track)))
    assert (cell_ns is None) == (len(fine) <= most)
    assert coarse.count.sum() == len(fine)
    for track in np.unique(fine.track):
        before, after = fine.track == track, coarse.track == track
        assert fine.start_ns[before].min() == coarse.start_ns[after].min()
        assert fine.end_ns[before].max() == coarse.end_ns[after].max()
        for start, end in zip(fine.start_ns[before], fine.end_ns[before], strict=True):
            assert ((coarse.start_ns[after] <= start) & (end <= coarse.end_ns[after])).any()


def arrays(*rows):
    """Track, label, start and end from rows."""
    return [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)]


def test_pieces_of_one_label_that_touch_are_one():
    pieces = pieces_of(*arrays((0, 5, 10, 20), (0, 5, 0, 10), (0, 6, 20, 30), (1, 6, 30, 40), (1, 6, 41, 41)))
    assert pieces.track.tolist() == [0, 0, 1]
    assert pieces.label.tolist() == [5, 6, 6]
    assert pieces.start_ns.tolist() == [0, 20, 30]
    assert pieces.end_ns.tolist() == [20, 30, 40]


def test_short_neighbours_in_a_cell_are_one_with_the_label_of_the_longest():
    # Cells of 1 us hold pieces 1 to 3 and piece 5; piece 4 is longer than a cell and stays.
    rows = [(0, 1, 0, 100), (0, 2, 200, 600), (0, 1, 600, 900), (0, 3, 950, 2100), (0, 4, 2200, 2300)]
    pieces, cell_ns = coarsened(pieces_of(*arrays(*rows)), most=3)
    assert cell_ns == 1000
    assert pieces.label.tolist() == [2, 3, 4]
    assert pieces.start_ns.tolist() == [0, 950, 2200]
    assert pieces.end_ns.tolist() == [900, 2100, 2300]
    assert pieces.count.tolist() == [3, 1, 1]

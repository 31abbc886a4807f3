"""The algebra, against sets of instants."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anatomy.traces.intervals import (
    covered_before,
    covers,
    cut,
    index_at,
    innermost,
    is_nesting_order,
    parents,
    separate,
    spans_of,
    union,
)

HORIZON = 40
some_spans = st.lists(st.tuples(st.integers(0, HORIZON), st.integers(0, HORIZON)), max_size=12).map(
    lambda pairs: np.array(pairs, dtype=np.int64).reshape(-1, 2)
)
parentheses = st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=60)
"""Whether a span opens or the last one closes, and how much later that is."""


def nested_spans(events: list[tuple[bool, int]]) -> np.ndarray:
    """Spans that nest, in nesting order, none empty."""
    open_spans, spans, now = [], [], 0
    for opens, pause in [*events, *((False, 1) for _ in events)]:
        now += pause
        if opens:
            open_spans.append(len(spans))
            spans.append([now, now])
        elif open_spans:
            spans[open_spans.pop()][1] = now
    spans = [span for span in spans if span[1] > span[0]]
    return np.array(sorted(spans, key=lambda span: (span[0], -span[1])), dtype=np.int64).reshape(-1, 2)


def instants_of(spans: np.ndarray) -> set[int]:
    return {instant for start, end in spans.tolist() for instant in range(start, end)}


def total_length(spans: np.ndarray) -> int:
    return int((spans[:, 1] - spans[:, 0]).sum())


def is_disjoint(spans: np.ndarray) -> bool:
    return bool((spans[:, 0] < spans[:, 1]).all() and (spans[1:, 0] > spans[:-1, 1]).all())


@given(some_spans)
def test_union_covers_what_any_span_covers(spans):
    united = union(spans)
    assert is_disjoint(united)
    assert instants_of(united) == instants_of(spans)
    assert total_length(united) == len(instants_of(spans))


@given(some_spans)
def test_covers_says_which_instants_lie_in_a_span(spans):
    instants = np.arange(HORIZON)
    assert set(np.flatnonzero(covers(union(spans), instants))) == instants_of(spans)


@given(some_spans)
def test_innermost_gives_each_instant_to_the_span_that_started_last(spans):
    pieces, owner = innermost(spans)
    found = {
        instant: index for (a, b), index in zip(pieces.tolist(), owner.tolist(), strict=True) for instant in range(a, b)
    }
    assert set(found) == instants_of(spans)
    assert total_length(pieces) == len(found)
    for instant, index in found.items():
        covering = [(start, -end) for start, end in spans.tolist() if start <= instant < end]
        assert (spans[index, 0], -spans[index, 1]) == max(covering)


@given(parentheses)
def test_innermost_of_nested_spans_agrees_with_their_parents(events):
    spans = nested_spans(events)
    pieces, owner = innermost(spans)
    lengths = np.zeros(len(spans), dtype=np.int64)
    np.add.at(lengths, owner, pieces[:, 1] - pieces[:, 0])
    expected = spans[:, 1] - spans[:, 0]
    around = parents(spans[:, 0], spans[:, 1])
    for index, parent in enumerate(around):
        if parent >= 0:
            expected[parent] -= spans[index, 1] - spans[index, 0]
    assert lengths.tolist() == expected.tolist()


@given(st.one_of(some_spans, parentheses.map(nested_spans)))
def test_the_parent_is_the_smallest_span_around(spans):
    spans = spans[spans[:, 1] > spans[:, 0]]
    spans = spans[np.lexsort([-spans[:, 1], spans[:, 0]])]
    assert is_nesting_order(spans[:, 0], spans[:, 1])
    pairs = list(enumerate(spans.tolist()))
    crossing = any(first[0] < second[0] < first[1] < second[1] for _, first in pairs for _, second in pairs)
    found = parents(spans[:, 0], spans[:, 1])
    assert (found is None) == crossing
    if not crossing:
        for index, (start, end) in pairs:
            # Of equal spans, the later one lies in the earlier.
            around = [other for other, span in pairs[:index] if span[0] <= start and end <= span[1]]
            assert found[index] == max(around, default=-1)


def test_order_by_start_and_then_by_length_is_nesting_order():
    assert is_nesting_order(np.array([1, 1, 2]), np.array([9, 5, 9]))
    assert not is_nesting_order(np.array([1, 1]), np.array([5, 9]))
    assert not is_nesting_order(np.array([2, 1]), np.array([3, 9]))


@given(some_spans, st.integers(1, 5))
def test_separate_parts_share_no_instant_and_hold_every_span(spans, size):
    rows = np.argsort(spans[:, 0], kind="stable")
    parts = list(separate(spans[:, 0], spans[:, 1], rows, size))
    assert [row for part in parts for row in part] == rows.tolist()
    parts = [spans[part] for part in parts]
    for index, part in enumerate(parts):
        others = [instants_of(other) for other in parts[:index]]
        assert instants_of(part).isdisjoint(set().union(*others))


def test_separate_cuts_as_soon_as_it_may():
    starts, ends = np.array([0, 1, 5, 6, 20]), np.array([4, 3, 30, 8, 25])
    assert [part.tolist() for part in separate(starts, ends, np.arange(5), 1)] == [[0, 1], [2, 3, 4]]


@given(some_spans, some_spans)
def test_cut_keeps_what_lies_in_windows_apart(spans, windows):
    spans, windows = union(spans), union(windows)
    pieces, span, window = cut(spans, windows)
    assert sum(len(instants_of(piece[None])) for piece in pieces) == len(instants_of(spans) & instants_of(windows))
    for piece, own, around in zip(pieces, span, window, strict=True):
        assert piece[0] < piece[1]
        assert instants_of(piece[None]) == instants_of(spans[own : own + 1]) & instants_of(windows[around : around + 1])


def test_windows_that_touch_cut_what_crosses_them():
    pieces, span, window = cut(spans_of([0, 12], [11, 13]), spans_of([0, 5, 10], [5, 10, 12]))
    assert pieces.tolist() == [[0, 5], [5, 10], [10, 11]]
    assert (span.tolist(), window.tolist()) == ([0, 0, 0], [0, 1, 2])


@given(some_spans)
def test_covered_before_counts_the_instants_before(spans):
    covered = instants_of(spans)
    counts = [len([instant for instant in covered if instant < end]) for end in range(HORIZON + 2)]
    assert covered_before(union(spans), np.arange(HORIZON + 2)).tolist() == counts


def test_nothing_changes_its_input():
    spans = spans_of([5, 1, 3], [6, 4, 9])
    before = spans.copy()
    united = union(spans)
    innermost(spans), index_at(united, np.arange(10)), cut(united, united), parents(united[:, 0], united[:, 1])
    assert (spans == before).all()


def test_touching_spans_become_one():
    assert union(spans_of([0, 5], [5, 9])).tolist() == [[0, 9]]


def test_nanoseconds_of_19_digits_stay_exact():
    start = 1_694_128_201_554_123_456
    assert total_length(union(spans_of([start, start + 1], [start + 2, start + 7]))) == 7

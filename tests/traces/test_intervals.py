"""The algebra, against sets of instants."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anatomy.traces.intervals import (
    clip,
    covers,
    index_at,
    innermost,
    intersection,
    spans_of,
    subtraction,
    total_length,
    union,
)

HORIZON = 40
some_spans = st.lists(st.tuples(st.integers(0, HORIZON), st.integers(0, HORIZON)), max_size=12).map(
    lambda pairs: np.array(pairs, dtype=np.int64).reshape(-1, 2)
)


def instants_of(spans: np.ndarray) -> set[int]:
    return {instant for start, end in spans.tolist() for instant in range(start, end)}


def is_disjoint(spans: np.ndarray) -> bool:
    return bool((spans[:, 0] < spans[:, 1]).all() and (spans[1:, 0] > spans[:-1, 1]).all())


@given(some_spans)
def test_union_covers_what_any_span_covers(spans):
    united = union(spans)
    assert is_disjoint(united)
    assert instants_of(united) == instants_of(spans)
    assert total_length(united) == len(instants_of(spans))


@given(some_spans, some_spans)
def test_intersection_and_subtraction_are_those_of_sets(first, second):
    first, second = union(first), union(second)
    both, only = intersection(first, second), subtraction(first, second)
    assert is_disjoint(both)
    assert is_disjoint(only)
    assert instants_of(both) == instants_of(first) & instants_of(second)
    assert instants_of(only) == instants_of(first) - instants_of(second)


@given(some_spans, st.integers(0, HORIZON), st.integers(0, HORIZON))
def test_clip_keeps_what_lies_in_the_window(spans, start, end):
    start, end = min(start, end), max(start, end)
    assert instants_of(clip(union(spans), start, end)) == instants_of(spans) & set(range(start, end))


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


def test_nothing_changes_its_input():
    spans = spans_of([5, 1, 3], [6, 4, 9])
    before = spans.copy()
    union(spans), innermost(spans), index_at(union(spans), np.arange(10))
    assert (spans == before).all()


def test_touching_spans_become_one():
    assert union(spans_of([0, 5], [5, 9])).tolist() == [[0, 9]]


def test_nanoseconds_of_19_digits_stay_exact():
    start = 1_694_128_201_554_123_456
    assert total_length(union(spans_of([start, start + 1], [start + 2, start + 7]))) == 7

"""Splits that are made from a seed, and splits that a source brings."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anatomy.errors import StudyError
from anatomy.graphs.splits import NONE, TEST, TRAIN, VAL, make_split, split_from


@given(st.lists(st.integers(-1, 3), min_size=4, max_size=60), st.integers(0, 5), st.booleans())
def test_each_labelled_node_is_in_one_part(labels: list[int], seed: int, stratify: bool) -> None:
    values = np.array([0, 0, *labels])
    split = make_split(values, 0.5, 0.25, seed, stratify)
    assert (split == NONE).tolist() == (values == -1).tolist()
    assert set(split.tolist()) <= {NONE, TRAIN, VAL, TEST}


@given(st.integers(0, 10), st.floats(0.1, 0.6), st.floats(0, 0.4))
def test_stratified_shares_hold_in_each_class(seed: int, train: float, val: float) -> None:
    labels = np.repeat([0, 1, 2], [20, 50, 130])
    split = make_split(labels, train, val, seed)
    for label, size in enumerate([20, 50, 130]):
        part = split[labels == label]
        assert (part == TRAIN).sum() == np.rint(train * size)
        assert (part != TEST).sum() == np.rint((train + val) * size)


def test_the_seed_decides() -> None:
    labels = np.arange(1000) % 7
    first, again, other = (make_split(labels, 0.5, 0.25, seed) for seed in (3, 3, 4))
    assert first.tolist() == again.tolist() != other.tolist()


def test_shares_that_cannot_be_are_refused() -> None:
    labels = np.zeros(4, dtype=np.int64)
    with pytest.raises(StudyError, match=r"0\.8 \+ 0\.3 = 1\.1, expected at most 1"):
        make_split(labels, 0.8, 0.3, 0)
    with pytest.raises(StudyError, match="none to train on"):
        make_split(labels, 0.1, 0.3, 0)


def test_split_of_a_source() -> None:
    masks = {TRAIN: np.array([True, False, False, False]), VAL: np.array([2]), TEST: np.array([3])}
    assert split_from(masks, 4, "file").tolist() == [TRAIN, NONE, VAL, TEST]
    with pytest.raises(StudyError, match=r"file: val split: found a mask of shape \[3\], expected \[4\]"):
        split_from({VAL: np.zeros(3, dtype=bool)}, 4, "file")
    with pytest.raises(StudyError, match="file: test split: found node id 4, expected 0 to 3"):
        split_from({TEST: np.array([4])}, 4, "file")
    with pytest.raises(StudyError, match="file: test split: node 2 is in the val split as well"):
        split_from({VAL: np.array([2]), TEST: np.array([0, 2])}, 4, "file")

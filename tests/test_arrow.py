"""Columns become Arrow arrays with the same values, whatever is missing, and without pandas."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anatomy.arrow import named, numbers, texts

INTEGERS = st.lists(st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)))


@pytest.mark.parametrize("kind", ["int32", "int64"])
@given(values=INTEGERS)
def test_integers(kind, values):
    valid = np.array([value is not None for value in values], dtype=bool)
    column = np.array([7 if value is None else value for value in values], dtype=np.int64)
    assert numbers(column, kind, valid).equals(pa.array(values, type=getattr(pa, kind)()))


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=False))))
def test_floats(values):
    column = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    assert numbers(column, "float64", ~np.isnan(column)).equals(pa.array(values, type=pa.float64()))


@given(st.lists(st.booleans()))
def test_booleans(values):
    assert numbers(np.array(values, dtype=bool), "bool").equals(pa.array(values, type=pa.bool_()))


@given(st.lists(st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"])))))
def test_texts(values):
    found = texts(np.array([*values, None], dtype=object)[:-1])
    found.validate(full=True)
    assert found.to_pylist() == values


def test_named_texts():
    assert named(np.array([1, -1, 0, 1], dtype=np.int8), ("a", "b")).to_pylist() == ["b", None, "a", "b"]


def test_tables_are_written_without_pandas(tmp_path, scripts):
    code = (
        "import sys, numpy, pathlib; from anatomy.traces.tables import write_tables; "
        "write_tables(pathlib.Path(sys.argv[1]), {'clocks': {'rank': numpy.arange(2), "
        "'offset_ns': numpy.arange(2), 'uncertainty_ns': numpy.arange(2), "
        "'method': numpy.array(['reference', None], object), 'collectives': numpy.arange(2)}}); "
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env={"PYTHONPATH": str(scripts)})

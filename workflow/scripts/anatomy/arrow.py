"""Columns as Arrow arrays, over the memory of NumPy's.

`pyarrow.array` imports pandas wherever it is installed, which takes longer than all of a small job.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from anatomy.traces.columns import MISSING, Named

TYPES = {
    "int32": (pa.int32(), np.int32),
    "int64": (pa.int64(), np.int64),
    "double": (pa.float64(), np.float64),
    "bool": (pa.bool_(), np.bool_),
}
"""Kinds of columns of numbers: Arrow's and NumPy's type."""


def numbers(column: np.ndarray, kind: str) -> pa.Array:
    """A column of one of `TYPES`; `MISSING` and NaN are null."""
    arrow, numpy = TYPES[kind]
    valid = np.ones(len(column), dtype=bool)
    if column.dtype == np.int64:
        valid = column != MISSING
    elif kind == "double":
        valid = ~np.isnan(column)
    values = np.ascontiguousarray(np.where(valid, column, 0) if not valid.all() else column, dtype=numpy)
    data = np.packbits(values, bitorder="little") if kind == "bool" else values
    return pa.Array.from_buffers(arrow, len(column), [_bitmap(valid), pa.py_buffer(data)])


def texts(column: Named | Iterable[str | None]) -> pa.Array:
    """A column of text, each distinct one held once; -1 as a code and None are null."""
    if not isinstance(column, Named):
        place: dict[str | None, int] = {None: -1}
        codes = [place.setdefault(text, len(place) - 1) for text in column]
        column = Named(np.array(codes, dtype=np.int32), tuple(name for name in place if name is not None))
    codes = np.ascontiguousarray(column.codes, dtype=np.int32)
    buffers = [_bitmap(codes >= 0), pa.py_buffer(np.maximum(codes, 0))]
    return pa.DictionaryArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), len(codes), buffers), _distinct(column.names)
    )


def _distinct(names: Iterable[str]) -> pa.Array:
    encoded = [name.encode() for name in names]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(encoded), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))])


def _bitmap(valid: np.ndarray) -> pa.Buffer | None:
    """Arrow's bitmap of what is not null; None where all is."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))

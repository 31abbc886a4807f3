"""NumPy's columns as Arrow arrays, over the same memory.

`pyarrow.array` imports pandas wherever it is installed, which takes longer than all that a small job does.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

TYPES = {"int32": pa.int32(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_()}
"""Arrow's types of columns of numbers, by the names of NumPy's."""


def numbers(column: np.ndarray, kind: str, valid: np.ndarray | None = None) -> pa.Array:
    """A column [n] as one of `TYPES`; where it is not `valid`, bool [n], it is null. Without `valid` all of it is."""
    if valid is not None and valid.all():
        valid = None
    values = np.ascontiguousarray(column if valid is None else np.where(valid, column, 0), dtype=kind)
    data = np.packbits(values, bitorder="little") if kind == "bool" else values
    return pa.Array.from_buffers(TYPES[kind], len(column), [_bitmap(valid), pa.py_buffer(data)])


def texts(column: Iterable[str | None]) -> pa.Array:
    """A column of text, each distinct one held once; None is null."""
    place: dict[str | None, int] = {None: -1}
    codes = [place.setdefault(text, len(place) - 1) for text in column]
    return named(np.array(codes, dtype=np.int32), [name for name in place if name is not None])


def named(codes: np.ndarray, names: Iterable[str]) -> pa.Array:
    """A column of text given as indices into `names`, integers [n]; a negative one is null."""
    codes = np.ascontiguousarray(codes, dtype=np.int32)
    valid = codes >= 0
    indices = numbers(codes, "int32", valid)
    encoded = [name.encode() for name in names]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.DictionaryArray.from_arrays(indices, pa.Array.from_buffers(pa.string(), len(encoded), buffers))


def _bitmap(valid: np.ndarray | None) -> pa.Buffer | None:
    """Arrow's bitmap of what is not null; None where all is."""
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))

"""Tables as columns: what this stage computes with, and what a Parquet file is written from.

A data frame would need half of the time and most of the memory of a small job for being imported alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Columns = dict[str, np.ndarray]
"""A table as columns of equal length [n]."""

MISSING = int(np.iinfo(np.int64).min)
"""In columns of integers, what is not known; in float64 that is NaN, in objects None."""


@dataclass(frozen=True)
class Named:
    """A column of names without a string per row: `codes` [n] are indices into `names`, -1 where it is missing."""

    codes: np.ndarray
    names: tuple[str, ...]


def take(columns: Columns, rows: np.ndarray | slice) -> Columns:
    """Some rows of a table, by index, mask or slice."""
    return {name: column[rows] for name, column in columns.items()}


def concatenated(parts: Sequence[Columns]) -> Columns:
    """Tables of the same columns, one below the other; a single one as it is."""
    return parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def grouped(*keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the distinct combinations of keys [n], in ascending order of the first key, then the second, ….

    Keys are numbers, not objects. Returns the number of each row's combination [n] and the first row of each
    combination [groups].
    """
    order = np.lexsort(keys[::-1])
    begins = np.zeros(len(order), dtype=bool)
    begins[:1] = True
    for key in keys:
        begins[1:] |= key[order][1:] != key[order][:-1]
    code = np.empty(len(order), dtype=np.int64)
    code[order] = np.cumsum(begins) - 1
    return code, order[begins]

"""Checks that sources and the store share, on labels and features."""

import numpy as np

from anatomy.errors import StudyError


def check_finite(block: np.ndarray, first_row: int, place: str) -> None:
    """Raise StudyError at the first NaN or infinity of `block`, real [rows, num_features], from row `first_row` on."""
    # A sum is not finite if a value is not: one pass without a temporary, and the exact search only after a find.
    with np.errstate(over="ignore", invalid="ignore"):
        suspicious = not np.isfinite(block.sum(dtype=np.float64))
    if not suspicious:
        return
    rows, columns = np.nonzero(~np.isfinite(block))
    if len(rows):
        raise StudyError(
            f"{place}: node {first_row + int(rows[0])}, feature {int(columns[0])}: found "
            f"{block[rows[0], columns[0]]}, expected a finite number; correct the source's features"
        )


def labels_from(values: np.ndarray, num_nodes: int, place: str, num_classes: int | None = None) -> np.ndarray:
    """Labels as int64 [num_nodes] from one number per node; NaN and -1 become -1, unlabelled.

    Raises StudyError for another length, a fraction, or a label that is not in `range(num_classes)`. Where the source
    does not say how many classes there are, more classes than nodes are taken for damage.
    """
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.shape != (num_nodes,):
        raise StudyError(f"{place}: found shape {list(values.shape)}, expected [{num_nodes}], one label per node")
    if not np.issubdtype(values.dtype, np.number) or np.issubdtype(values.dtype, np.complexfloating):
        raise StudyError(f"{place}: found values of type {values.dtype}, expected whole numbers, one label per node")
    labels = np.where(np.isnan(values), -1, values) if np.issubdtype(values.dtype, np.floating) else values
    limit = num_classes if num_classes is not None else max(num_nodes, 1)
    wrong = np.flatnonzero((labels < -1) | (labels >= limit) | (labels != np.floor(labels)))
    if len(wrong):
        raise StudyError(
            f"{place}: node {wrong[0]}: found label {values[wrong[0]]}, expected a whole number from 0 to "
            f"{limit - 1}, or -1 for unlabelled; the file is damaged or its classes are not numbered from 0"
        )
    return labels.astype(np.int64)


def count_classes(labels: np.ndarray, place: str) -> int:
    """One more than the largest label. Raises StudyError where no node is labelled."""
    if len(labels) == 0 or labels.max() < 0:
        raise StudyError(f"{place}: found no labelled node, expected at least one")
    return int(labels.max()) + 1

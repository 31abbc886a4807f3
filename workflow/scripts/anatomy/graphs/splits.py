"""Splits into training, validation and test nodes."""

from typing import Any

import numpy as np

from anatomy.errors import StudyError

TRAIN, VAL, TEST, NONE = 0, 1, 2, -1
SPLIT_NAMES = {"train": TRAIN, "val": VAL, "test": TEST, "none": NONE}

SPLIT_OPTIONS: dict[str, dict[str, Any]] = {
    "train_fraction": {
        "type": "number",
        "exclusiveMinimum": 0,
        "maximum": 1,
        "default": 0.5,
        "description": "share of the labelled nodes to train on, where the source has no split",
    },
    "val_fraction": {
        "type": "number",
        "minimum": 0,
        "exclusiveMaximum": 1,
        "default": 0.25,
        "description": "share of the labelled nodes to validate on; the rest is for testing",
    },
    "stratify": {
        "type": "boolean",
        "default": True,
        "description": "give each class the same shares in a made split",
    },
    "seed": {
        "type": "integer",
        "minimum": 0,
        "default": 0,
        "description": "seed of everything that is made at random, the split among it",
    },
}
"""Options of every source whose split may have to be made."""


def make_split(
    labels: np.ndarray, train_fraction: float, val_fraction: float, seed: int, stratify: bool = True
) -> np.ndarray:
    """Divide the labelled nodes at random: int8 [num_nodes] of TRAIN, VAL, TEST, and NONE for the unlabelled.

    `labels` is int64 [num_nodes], -1 for unlabelled. With `stratify` the shares hold within each class, rounded.

    Raises StudyError where the fractions leave no training node or add up to more than 1.
    """
    check_fractions(train_fraction, val_fraction)
    split = np.full(len(labels), NONE, dtype=np.int8)
    labelled = np.flatnonzero(labels >= 0)
    order = labelled[np.random.default_rng([seed, 1]).permutation(len(labelled))]
    groups = labels[order] if stratify else np.zeros(len(order), dtype=np.int64)
    order = order[np.argsort(groups, kind="stable")]
    sizes = np.bincount(groups) if len(groups) else np.zeros(0, dtype=np.int64)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    train_ends = np.rint(train_fraction * sizes)
    val_ends = np.maximum(train_ends, np.rint((train_fraction + val_fraction) * sizes))
    split[order] = np.where(
        rank < np.repeat(train_ends, sizes), TRAIN, np.where(rank < np.repeat(val_ends, sizes), VAL, TEST)
    )
    if not (split == TRAIN).any():
        raise StudyError(
            f"train_fraction: found {train_fraction}, which of {len(labelled)} labelled nodes gives none to train on; "
            "expected more; raise it, or set stratify to false where classes are tiny"
        )
    return split


def check_fractions(train_fraction: float, val_fraction: float) -> None:
    """Raise StudyError where the two shares add up to more than 1."""
    if train_fraction + val_fraction > 1 + 1e-12:
        raise StudyError(
            f"train_fraction, val_fraction: found {train_fraction} + {val_fraction} = "
            f"{train_fraction + val_fraction:g}, expected at most 1; lower one of them"
        )


def split_from(members: dict[int, np.ndarray], num_nodes: int, file: str) -> np.ndarray:
    """The split of a source, int8 [num_nodes], from boolean masks [num_nodes] or node ids per TRAIN, VAL, TEST.

    Raises StudyError for a mask of another length, ids out of range, or a node in two of them.
    """
    names = {value: name for name, value in SPLIT_NAMES.items()}
    split = np.full(num_nodes, NONE, dtype=np.int8)
    for value, member in members.items():
        place = f"{file}: {names[value]} split"
        if member.dtype == bool and member.shape != (num_nodes,):
            raise StudyError(
                f"{place}: found a mask of shape {list(member.shape)}, expected [{num_nodes}], one per node"
            )
        if member.dtype != bool and len(member) and (member.min() < 0 or member.max() >= num_nodes):
            wrong = member[(member < 0) | (member >= num_nodes)][0]
            raise StudyError(f"{place}: found node id {wrong}, expected 0 to {num_nodes - 1}; the file is damaged")
        taken = split[member] != NONE
        if taken.any():
            nodes = np.flatnonzero(member) if member.dtype == bool else member
            node = int(nodes[np.flatnonzero(taken)[0]])
            raise StudyError(
                f"{place}: node {node} is in the {names[int(split[node])]} split as well; expected one split each"
            )
        split[member] = value
    return split

"""Who owns a rank's memory, from the partition, the model and the strategy's options; nothing is run or measured.

Sizes are those of float32 rows and int64 indices. Whatever is not said here (the interpreter and its libraries, files'
pages that are mapped, labels, what a step needs for a moment) is no part of an account.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from anatomy.training.options import WIDE_FEATURES

NUMBER_BYTES = 4
INDEX_BYTES = 8
STATES_PER_PARAMETER = 4
"""The weight, its gradient and Adam's two moments."""
LAYERS_OVER_RANKS = ("decoupled", "pipeline")
"""Methods whose ranks optimise some of the layers each."""
BY_BATCHES = {"fanouts", "clusters"}
"""Options that a strategy has if, and only if, it trains by batches."""
AGGREGATING_FEATURES = ("gcn", "ressage", "sage")
"""Layers whose first one aggregates features as they are, unless they are wide; exact evaluation keeps what that gives.
"""


@dataclass(frozen=True)
class Part:
    """Sizes of a rank's part: own nodes, halo nodes, rows that it sends other ranks in an exchange, and in-edges."""

    own: int
    halo: int
    sent: int
    edges: int
    is_one_of_several: bool = True

    @property
    def rows(self) -> int:
        """Own and halo rows."""
        return self.own + self.halo


@dataclass(frozen=True)
class Model:
    """The kind of its layers, the widths of what enters each and leaves the last, and how many weights there are."""

    layer: str
    widths: Sequence[int]
    num_parameters: int

    @property
    def aggregated_features(self) -> Sequence[int]:
        """Width of the features that the first layer aggregates as they are; none where it projects first."""
        narrow = self.widths[0] <= WIDE_FEATURES * self.widths[1]
        return self.widths[:1] if self.layer in AGGREGATING_FEATURES and narrow else ()

    @property
    def exchanged(self) -> Sequence[int]:
        """Widths of the rows that ranks exchange: of what enters each layer but the first."""
        return self.widths[1:-1]


def parts_of(manifest: Mapping[str, Any], rate: float = 1.0) -> list[Part]:
    """The parts of a partition's manifest, one per rank.

    With a `rate` below 1, those of an epoch of `bns`, which draws int(rate x B) of the B halo nodes of each pair of
    parts; of the edges from the halo, it has as many as are expected.
    """
    whole = np.array(manifest["halo_matrix"], dtype=np.int64)
    np.fill_diagonal(whole, 0)
    drawn = np.array([[int(rate * count) for count in row] for row in whole.tolist()])
    parts = []
    for part, num_halo, halo, sent in zip(manifest["parts"], whole.sum(0), drawn.sum(0), drawn.sum(1), strict=True):
        cut_edges = round(part["cut_edges"] * halo / num_halo) if num_halo else 0
        edges = part["edges"] - part["cut_edges"] + cut_edges
        parts.append(Part(part["nodes"], int(halo), int(sent), edges, is_one_of_several=len(whole) > 1))
    return parts


def account(part: Part, sample: Part, model: Model, strategy: Mapping[str, Any]) -> dict[str, int]:
    """Bytes by owner that a rank holds under a strategy with these options.

    `sample` is the part of an epoch, for `bns`. Of strategies that do not exchange the halo's rows before each layer,
    the account is of what all strategies on the whole graph hold; of mini-batches, of the parameters alone. Where a
    rank has moments of its own layers alone, theirs are left out.
    """
    parameters = {"parameters": NUMBER_BYTES * STATES_PER_PARAMETER * model.num_parameters}
    if BY_BATCHES.intersection(strategy):
        return parameters
    match strategy["method"]:
        case "fullgraph" | "decentralised":
            return parameters | plain(part, model)
        case "bns":
            return parameters | sampling(part, sample, model, strategy["first_layer"])
        case "pipegcn" if strategy["variant"] == "exact":
            return parameters | plain(part, model)
        case "pipegcn":
            return parameters | keeping(part, model)
        case "cached":
            owners = keeping(part, model, 1 if strategy["quantise"] == "int8" else NUMBER_BYTES)
            owners["exchange"] += _rows(part.sent, set(model.exchanged))
            return parameters | owners
        case method:
            if method in LAYERS_OVER_RANKS:
                parameters["parameters"] = NUMBER_BYTES * 2 * model.num_parameters
            return parameters | {
                "features": _rows(part.rows, model.widths[:1]),
                "structure": _block(part),
                "evaluation": _exact_evaluation(part, model),
            }


def plain(part: Part, model: Model) -> dict[str, int]:
    """Plain full-graph training; evaluation exchanges by the same tables."""
    return {
        "features": _rows(part.rows, model.widths[:1]),
        "structure": _block(part) + _backwards(part, model),
        "activations": _activations(part, model),
        "exchange": _tables(part, model, model.widths[:1]) + _returned(part, model),
        "evaluation": _first_aggregate(part, model),
    }


def sampling(part: Part, sample: Part, model: Model, first_layer: str) -> dict[str, int]:
    """`bns`: what the sample needs, beside what exact evaluation needs of the whole halo."""
    sampled_features = _rows(sample.rows, model.widths[:1]) if first_layer != "whole" else 0
    scale = NUMBER_BYTES * sample.rows  # how many nodes each row stands for
    sent_once = model.widths[:1] if first_layer == "sent" else ()
    return {
        "features": _rows(part.rows, model.widths[:1]) + sampled_features,
        "structure": _block(part) + _block(sample) + scale + _backwards(sample, model),
        "activations": _activations(part, model),
        "exchange": _tables(sample, model, sent_once) + _returned(sample, model),
        "evaluation": _exact_evaluation(part, model),
    }


def keeping(part: Part, model: Model, received_bytes: int = NUMBER_BYTES) -> dict[str, int]:
    """`pipegcn` and `cached`: of every exchange, forward and backward, what was sent, what came and what is in use.

    `received_bytes`: of a number as it comes.
    """
    in_use = part.rows + part.sent
    sent = part.sent + part.halo
    received = sum(model.exchanged) * received_bytes * (part.halo + part.sent)
    exchange = _rows(in_use + sent, model.exchanged) + received if part.is_one_of_several else 0
    return plain(part, model) | {"exchange": exchange, "evaluation": _exact_evaluation(part, model)}


def _rows(num_rows: int, widths: Iterable[int]) -> int:
    """Tables of so many rows, one of each width."""
    return NUMBER_BYTES * num_rows * sum(widths)


def _block(part: Part) -> int:
    """Whom the own nodes aggregate, in compressed rows, with how many each aggregates, and the degrees of all rows."""
    return INDEX_BYTES * (2 * part.own + 1 + part.edges) + NUMBER_BYTES * part.rows


def _backwards(part: Part, model: Model) -> int:
    """For gradients that go back along the edges of every layer but the first: the edges by source, with the
    destination and the number of each, and the edges in their own order beside that."""
    return INDEX_BYTES * (part.rows + 1 + 3 * part.edges) if len(model.widths) > 2 else 0


def _activations(part: Part, model: Model) -> int:
    """Rows that are kept from the forward to the backward pass: of each layer, what it has aggregated before a dense
    product, and of each but the last, what it puts out."""
    widths = model.widths
    aggregated = [width for width, width_out in pairwise(widths[1:]) if width <= width_out]
    first = model.aggregated_features if model.layer in AGGREGATING_FEATURES else widths[1:2]
    return _rows(part.own, [*first, *aggregated, *model.exchanged])


def _tables(part: Part, model: Model, also_sent: Sequence[int] = ()) -> int:
    """Buffers of a boundary that forward exchanges leave: own and halo rows of each layer, and rows packed to be sent,
    one buffer for all exchanges of a width."""
    packed = _rows(part.sent, {*model.exchanged, *also_sent})
    return packed + (_rows(part.rows, model.exchanged) if part.is_one_of_several else 0)


def _returned(part: Part, model: Model) -> int:
    """Buffers of a boundary that backward exchanges add: what comes, one for all of a width, and each layer's sums."""
    own = _rows(part.own, model.exchanged) if part.is_one_of_several else 0
    return _rows(part.sent, set(model.exchanged)) + own


def _first_aggregate(part: Part, model: Model) -> int:
    """What the first layer aggregates of features is the same in every evaluation, and kept."""
    return _rows(part.own, model.aggregated_features)


def _exact_evaluation(part: Part, model: Model) -> int:
    """Where training exchanges otherwise, evaluation has tables of its own."""
    return _tables(part, model, model.widths[:1]) + _first_aggregate(part, model)

"""`powerlaw`: a degree-corrected stochastic block model with power-law degrees, and features that carry the classes.

Karrer & Newman, "Stochastic blockmodels and community structure in networks", Phys. Rev. E 83, 016107 (2011). Each
node has a propensity drawn from a power law, cut at the structural cut-off sqrt(num_nodes * mean_degree) above which
simple graphs cannot stay uncorrelated (Boguñá, Pastor-Satorras & Vespignani, Eur. Phys. J. B 38, 205, 2004). Exactly
the share `homophily` of the edges joins nodes of equal class; within that, both ends are drawn by propensity. Features
are the class's centroid plus noise, so that one node says little about its class, and a neighbourhood says much.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anatomy.errors import StudyError
from anatomy.graphs import edges
from anatomy.graphs.blocks import BLOCK_ENTRIES, FeatureBlocks, rows_per_block, slices
from anatomy.graphs.options import Options, SourceInfo, estimate, source_schema
from anatomy.graphs.policies import POLICIES
from anatomy.graphs.raw import RawGraph
from anatomy.graphs.splits import SPLIT_OPTIONS, check_fractions

MAX_ROUNDS = 100
"""Rounds of drawing after which edges that are still lacking are given up."""
MAX_FILLED = 0.4
"""Share of the possible pairs of a kind that may be edges; beyond it drawing distinct ones takes too long."""

_PROPERTIES = {
    "num_nodes": {"type": "integer", "minimum": 2, "default": 100_000, "description": "nodes"},
    "mean_degree": {
        "type": "number",
        "exclusiveMinimum": 0,
        "default": 15,
        "description": "mean number of neighbours: num_nodes * mean_degree / 2 undirected edges",
    },
    "exponent": {
        "type": "number",
        "exclusiveMinimum": 2,
        "default": 2.5,
        "description": "exponent of the power law of the degrees; smaller means larger hubs",
    },
    "num_classes": {"type": "integer", "minimum": 1, "default": 16, "description": "classes, of equal size"},
    "homophily": {
        "type": "number",
        "minimum": 0,
        "maximum": 1,
        "default": 0.5,
        "description": "share of the edges that join nodes of equal class",
    },
    "num_features": {"type": "integer", "minimum": 1, "default": 64, "description": "features of a node"},
    "feature_noise": {
        "type": "number",
        "minimum": 0,
        "default": 3.7,
        "description": "standard deviation of the noise, in standard deviations of the class centroids",
    },
    **SPLIT_OPTIONS,
    "direction": POLICIES["direction"] | {"enum": ["symmetrise"]},
}


def read(options: Options, scratch: Path) -> RawGraph:
    """Draw the graph; the same options give the same graph."""
    num_nodes = options["num_nodes"]
    generator = np.random.default_rng([options["seed"], 0])
    labels = generator.permutation(np.arange(num_nodes) % options["num_classes"])
    pool = _Pool.of(labels, _propensities(options, generator), options["num_classes"])
    same, other = _edge_counts(options)
    packed = np.concatenate(
        [
            _distinct(same, lambda count: pool.draw(count, generator, same_class=True), generator),
            _distinct(other, lambda count: pool.draw(count, generator, same_class=False), generator),
        ]
    )
    return RawGraph(
        file="powerlaw",
        num_nodes=num_nodes,
        edges=packed,
        features=_features(labels, options),
        labels=labels,
        num_classes=options["num_classes"],
        listed_once=True,
    )


def check(options: Options) -> None:
    """Raise StudyError where no such graph exists, or none that could be drawn in reasonable time."""
    check_fractions(options["train_fraction"], options["val_fraction"])
    num_nodes, num_classes = options["num_nodes"], options["num_classes"]
    if num_classes > num_nodes:
        raise StudyError(f"num_classes: found {num_classes}, expected at most num_nodes, {num_nodes}; lower it")
    size, larger = divmod(num_nodes, num_classes)
    same_pairs = larger * math.comb(size + 1, 2) + (num_classes - larger) * math.comb(size, 2)
    other_pairs = math.comb(num_nodes, 2) - same_pairs
    for kind, count, pairs in zip(
        ("equal", "different"), _edge_counts(options), (same_pairs, other_pairs), strict=True
    ):
        if count > MAX_FILLED * pairs:
            raise StudyError(
                f"mean_degree, homophily: found {options['mean_degree']} and {options['homophily']}, that is {count} "
                f"edges between nodes of {kind} class, expected at most {int(MAX_FILLED * pairs)} of the {pairs} "
                f"pairs of {num_nodes} nodes in {num_classes} classes; lower mean_degree or change homophily"
            )


def _edge_counts(options: Options) -> tuple[int, int]:
    """How many undirected edges join nodes of equal, and of different class."""
    total = round(options["num_nodes"] * options["mean_degree"] / 2)
    same = round(options["homophily"] * total)
    return same, total - same


def _propensities(options: Options, generator: np.random.Generator) -> np.ndarray:
    """Expected degrees up to a factor, float64 [num_nodes]: a Pareto law, cut at the structural cut-off."""
    exponent, mean_degree = options["exponent"], options["mean_degree"]
    smallest = mean_degree * (exponent - 2) / (exponent - 1)
    degrees = smallest * (1 - generator.random(options["num_nodes"])) ** (-1 / (exponent - 1))
    return np.minimum(degrees, math.sqrt(options["num_nodes"] * mean_degree))


@dataclass(frozen=True)
class _Pool:
    """Nodes in the order of their classes, to be drawn by propensity within a class or outside it.

    `nodes` int64 [num_nodes]; `labels` of these; `ends` float64 [num_nodes], the cumulated propensity; `first` int64
    and `low` float64 [num_classes + 1], where each class begins in the two.
    """

    nodes: np.ndarray
    labels: np.ndarray
    ends: np.ndarray
    first: np.ndarray
    low: np.ndarray

    @classmethod
    def of(cls, labels: np.ndarray, propensities: np.ndarray, num_classes: int) -> "_Pool":
        nodes = np.argsort(labels, kind="stable")
        ends = np.cumsum(propensities[nodes])
        first = np.searchsorted(labels[nodes], np.arange(num_classes + 1))
        return cls(nodes, labels[nodes], ends, first, np.concatenate([[0.0], ends])[first])

    def draw(self, count: int, generator: np.random.Generator, same_class: bool) -> np.ndarray:
        """About `count` edges as packed entries, smaller id to larger, duplicates among them."""
        pieces = [self._draw(piece.stop - piece.start, generator, same_class) for piece in slices(count, BLOCK_ENTRIES)]
        return np.concatenate(pieces)

    def _draw(self, count: int, generator: np.random.Generator, same_class: bool) -> np.ndarray:
        total, last = self.ends[-1], len(self.nodes) - 1
        one = np.minimum(np.searchsorted(self.ends, generator.random(count) * total, side="right"), last)
        label = self.labels[one]
        low, high = self.low[label], self.low[label + 1]
        if same_class:
            position = low + generator.random(count) * (high - low)
        else:
            position = (high + generator.random(count) * (total - (high - low))) % total
        two = np.minimum(np.searchsorted(self.ends, position, side="right"), last)
        # Rounding can put a position just across the border of a class; such pairs are dropped like self-loops.
        good = (one != two) & ((self.labels[two] == label) == same_class)
        a, b = self.nodes[one[good]], self.nodes[two[good]]
        return np.maximum(a, b) * len(self.nodes) + np.minimum(a, b)


def _distinct(count: int, draw: Callable[[int], np.ndarray], generator: np.random.Generator) -> np.ndarray:
    """Exactly `count` distinct entries, sorted. Raises StudyError where they do not come together."""
    found = np.empty(0, dtype=np.int64)
    for attempt in range(MAX_ROUNDS):
        lacking = count - len(found)
        if lacking <= 0:
            break
        # Where few free pairs are left most draws are repeats, so later rounds draw more than they lack.
        drawn = draw(min(int(1.05 * lacking * 1.5**attempt) + 64, 4 * count + 1024))
        found = np.concatenate([found, drawn])
        found.sort()
        found = edges.merged(found)
    surplus = len(found) - count
    if surplus < 0:
        raise StudyError(
            f"powerlaw: found {len(found)} distinct edges after {MAX_ROUNDS} rounds, expected {count}; lower "
            "mean_degree, or raise num_nodes or exponent"
        )
    return np.delete(found, generator.choice(len(found), surplus, replace=False)) if surplus else found


def _features(labels: np.ndarray, options: Options) -> FeatureBlocks:
    """Centroid of the class plus noise, scaled to unit variance, made block by block."""
    num_features, noise, seed = options["num_features"], options["feature_noise"], options["seed"]
    centroids = np.random.default_rng([seed, 3]).standard_normal(
        (options["num_classes"], num_features), dtype=np.float32
    )
    scale = np.float32(1 / math.hypot(1, noise))

    def blocks() -> Iterator[np.ndarray]:
        for number, piece in enumerate(slices(len(labels), rows_per_block(num_features))):
            generator = np.random.default_rng([seed, 4, number])
            block = generator.standard_normal((piece.stop - piece.start, num_features), dtype=np.float32)
            block *= np.float32(noise)
            block += centroids[labels[piece]]
            block *= scale
            yield block

    return FeatureBlocks(len(labels), num_features, blocks)


def _resources(options: Options) -> dict[str, int]:
    listed = sum(_edge_counts(options))
    return estimate(
        options["num_nodes"], listed, options["num_features"], options, extra_memory_bytes=2 * 8 * listed + (600 << 20)
    )


SOURCE = SourceInfo(
    name="powerlaw",
    summary="a degree-corrected block model with power-law degrees, made from a seed",
    schema=source_schema(_PROPERTIES),
    read=read,
    num_nodes=lambda options: options["num_nodes"],
    resources=_resources,
    check=check,
)

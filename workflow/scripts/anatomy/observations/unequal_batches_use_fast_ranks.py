"""Do batches of unequal size win back what fast ranks waste by waiting for a slow one?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.beside_baseline import means
from anatomy.observations.common.evidence import Inconclusive, Repetitions, chosen, repetitions
from anatomy.words import listed

CLAIM = (
    "With one rank at half its speed, batches whose sizes follow the ranks' speeds win back more than half of the "
    "time that equal batches waste by waiting for it."
)
SOURCE = (
    "Poplar (Zhang et al., AAAI 2025) gives unequal GPUs unequal batches, HyScale-GNN (Lin and Prasanna, 2023) moves "
    "seed nodes between processors and accelerators while they train. The threshold is this study's own"
)
TABLE = "runs"
FIGURE = "throughput"
STATISTIC = (
    "time of a seed node (1 over seed nodes per second) with equal batches less that with unequal ones, over what "
    "equal batches waste: a rank slower by f adds (f - 1) c, c being what an equal batch computes, from which c "
    "follows; of P ranks that end together a step takes P / (P - 1 + 1 / f) c, with equal batches f c; same graph, "
    "partition, model, ranks and seed; the configuration with the smallest"
)
UNIT = "share"
DIRECTION = ">"
THRESHOLD = 0.5
OPTIONS = {
    "properties": {
        "condition": {
            "type": "string",
            "default": "slow-2x",
            "description": "The condition with one slow rank, as named in the config.",
        },
        "factor": {
            "type": "number",
            "exclusiveMinimum": 1,
            "default": 2,
            "description": "How many times slower that rank is in it.",
        },
        "methods": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "default": ["balanced", "mixed"],
            "description": "Methods of the strategies with unequal batches.",
        },
        "baseline": {
            "type": "string",
            "default": "minibatch",
            "description": "The strategy with equal batches, as named in the config.",
        },
    },
    "required": [],
}

_PAIR = ("graph", "partitioner", "num_parts", "model", "ranks", "hosts", "link_mbit", "seed")
_RATE = "train_nodes_per_s"


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One share per seed, from the table `runs`."""
    return repetitions(_won_back(table, options), DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean share won back by strategy; mean throughput with equal batches, undisturbed and with the slow rank, and by
    strategy with the slow rank."""
    rows = _won_back(table, options)
    return {
        "won_back_by_strategy": means(rows, "value", "strategy"),
        "train_nodes_per_s_by_strategy": means(rows, _RATE, "strategy"),
        "equal_batches_train_nodes_per_s": float(rows["equal"].mean()),
        "undisturbed_train_nodes_per_s": float(rows["undisturbed"].mean()),
    }


def _won_back(table: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run with unequal batches and a slow rank; `value` is the share that it wins back."""
    slow = {"condition": options["condition"]}
    rows = chosen(table, options, min_ranks=2, timed=True, method=options["methods"], **slow)
    for name, condition in (("equal", options["condition"]), ("undisturbed", None)):
        beside = chosen(table, options, min_ranks=2, timed=True, strategy=options["baseline"], condition=condition)
        beside = beside.rename(columns={_RATE: name, "run": f"{name}_run"})
        rows = rows.merge(beside[[*_PAIR, name, f"{name}_run"]], on=list(_PAIR), how="left")
    unknown = rows[rows[[_RATE, "equal", "undisturbed"]].isna().any(axis=1)]
    if not unknown.empty:
        raise Inconclusive(
            f"no throughput, or no run of {options['baseline']} with and without the slow rank to compare with, for "
            f"{listed(unknown['run'])}"
        )
    equal_s, undisturbed_s = 1 / rows["equal"], 1 / rows["undisturbed"]
    factor, ranks = options["factor"], rows["ranks"]
    computed_s = (equal_s - undisturbed_s) / (factor - 1)
    wasted_s = computed_s * (factor - ranks / (ranks - 1 + 1 / factor))
    if (wasted_s <= 0).any():
        raise Inconclusive(f"the slow rank costs equal batches nothing beside {listed(rows.loc[wasted_s <= 0, 'run'])}")
    return rows.assign(value=(equal_s - 1 / rows[_RATE]) / wasted_s, baseline_run=rows["equal_run"])

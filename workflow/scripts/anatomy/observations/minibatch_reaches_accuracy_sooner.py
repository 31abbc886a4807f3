"""Which gets to a given accuracy first, mini-batch or full-graph training?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.evidence import Inconclusive, Repetitions, chosen, paired, repetitions

CLAIM = "Mini-batch training reaches a given validation accuracy sooner than full-graph training does."
SOURCE = (
    "Bajaj et al., Graph Neural Network Training Systems: A Performance Comparison of Full-Graph and Mini-Batch "
    "(PVLDB 18, 2024): mini-batch systems converge faster"
)
TABLE = "convergence"
FIGURE = "convergence"
STATISTIC = (
    "training time of full-graph until the target accuracy over that of mini-batch, same graph, partition, model "
    "and seed; the configuration with the smallest ratio"
)
UNIT = "ratio"
DIRECTION = ">"
THRESHOLD = 1.0
OPTIONS = {
    "properties": {
        "target_share": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 1,
            "default": 0.95,
            "description": "The target, as a share of the best validation accuracy that both of a pair reach.",
        },
        "target_accuracy": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 1,
            "description": "The target itself, instead of target_share; a run that never gets there bounds the ratio.",
        },
    },
    "required": [],
}

_PAIR = ("graph", "partitioner", "num_parts", "model", "ranks", "hosts", "link_mbit", "condition")


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One ratio per seed, from the table `convergence`.

    A run that never reaches the target needs at least its whole time, so the ratio is known to be at least, or at
    most, what that gives.
    """
    pairs = _pairs(table, options)
    found = repetitions(pairs, DIRECTION, _PAIR)
    return Repetitions(
        found.values,
        found.runs,
        at_least=frozenset(int(seed) for seed in pairs.loc[pairs["never_full"], "seed"]),
        at_most=frozenset(int(seed) for seed in pairs.loc[pairs["never_mini"], "seed"]),
    )


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean target, mean times to it, and the best validation accuracies."""
    means = _pairs(table, options)[["target", "full_s", "mini_s", "best_accuracy", "best_accuracy_of_baseline"]].mean()
    names = ("target_accuracy", "fullgraph_s", "minibatch_s", "fullgraph_best_accuracy", "minibatch_best_accuracy")
    return dict(zip(names, (float(mean) for mean in means), strict=True))


def _pairs(table: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per pair of runs: target, time of each to it, or that it never got there; `value` is the ratio."""
    rows = chosen(table, options, timed=True).dropna(subset=["val_accuracy", "train_s"])
    best = rows.groupby(["run", *_PAIR, "method", "seed"], as_index=False, dropna=False)["val_accuracy"].max()
    best = best.rename(columns={"val_accuracy": "best_accuracy"})
    pairs = paired(best, "method", "fullgraph", "minibatch", "best_accuracy", _PAIR)
    both_reach = pairs[["best_accuracy", "best_accuracy_of_baseline"]].min(axis=1)
    pairs["target"] = options.get("target_accuracy") or options["target_share"] * both_reach
    curves = dict(iter(rows.sort_values("epoch").groupby("run")))
    for side, column in (("full", "run"), ("mini", "baseline_run")):
        reached = [_reached(curves[run], target) for run, target in zip(pairs[column], pairs["target"], strict=True)]
        pairs[f"{side}_s"] = [time_s for time_s, _ in reached]
        pairs[f"never_{side}"] = [never for _, never in reached]
    hopeless = pairs[pairs["never_full"] & pairs["never_mini"]]
    if not hopeless.empty:
        raise Inconclusive(
            f"neither run reaches the target with seeds {sorted(int(seed) for seed in hopeless['seed'])}"
        )
    return pairs.assign(value=pairs["full_s"] / pairs["mini_s"])


def _reached(curve: pd.DataFrame, target: float) -> tuple[float, bool]:
    """Training time until the first evaluation at or above the target, or all of it and True where there is none."""
    above = curve[curve["val_accuracy"] >= target]
    return (float(curve["train_s"].iloc[-1]), True) if above.empty else (float(above["train_s"].iloc[0]), False)

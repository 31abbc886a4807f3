"""Does a class-balanced sampler help the rank that is worst at its own nodes?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.beside_baseline import means, with_value
from anatomy.observations.common.evidence import COMPLETED, CONFIGURATION, Repetitions, chosen, paired, repetitions

CLAIM = (
    "With a class-balanced sampler, the rank that is worst at the test nodes of its own part is more than 0.005 better "
    "than with all training nodes."
)
SOURCE = (
    "EAT-DistGNN (Deshmukh et al., ICDM 2023, abstract) answers the class imbalance of parts with a class-balanced "
    "sampler; that it is the worst rank which gains, and the threshold, are this study's own hypothesis"
)
TABLE = "rank_accuracy"
FIGURE = "rank_accuracy"
STATISTIC = (
    "smallest test accuracy of a rank at its own nodes, of `eat` without a second phase less that of `minibatch`, same "
    "graph, partitioner, model, ranks and seed; the configuration with the smallest difference"
)
UNIT = "accuracy"
DIRECTION = ">"
THRESHOLD = 0.005
OPTIONS = {"properties": {}, "required": []}
METHODS = ["eat", "minibatch"]
_PAIRS = tuple(name for name in CONFIGURATION if name != "strategy")


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One difference per seed, from the table `rank_accuracy`."""
    rows = with_value(chosen(table, options, min_ranks=2, method=METHODS, shared=1.0), "test_accuracy")
    worst = rows.loc[rows.groupby("run")["test_accuracy"].idxmin()]
    pairs = paired(worst, "sampler", "balanced", "all", "test_accuracy", _PAIRS)
    pairs["value"] = pairs["test_accuracy"] - pairs["test_accuracy_of_baseline"]
    return repetitions(pairs, DIRECTION, _PAIRS)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean accuracy of the worst rank, of the best, and over all nodes, by strategy and partitioner."""
    rows = chosen(table[table["status"] == COMPLETED], options, min_ranks=2, method=METHODS)
    ends = rows.groupby("run")["test_accuracy"].agg(["min", "max"])
    runs = rows.drop_duplicates("run").set_index("run").join(ends)
    columns = {"worst_rank": "min", "best_rank": "max", "all_nodes": "run_test_accuracy"}
    return {
        f"test_accuracy_of_{name}_by_strategy_and_partitioner": means(runs, column, "strategy", "partitioner")
        for name, column in columns.items()
    }

"""Is a deep model trained faster with its layers on different ranks than with the graph's parts there?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.beside_baseline import compared, means, pipelines
from anatomy.observations.common.evidence import COMPLETED, Repetitions, chosen, repetitions

CLAIM = (
    "For models of eight layers or more, an epoch of a pipeline of layers, four chunks for every stage, is shorter "
    "than one of full-graph training in which every rank has a part of the graph."
)
SOURCE = (
    "GNNPipe (Chen et al., 2023) reports epochs of deep models that are shorter than with parts of the graph, by 1.58 "
    "times on average, since a pipeline sends a row once per stage and not once per layer"
)
TABLE = "strategies"
FIGURE = "strategies"
STATISTIC = (
    "epoch time of plain full-graph training over that of the pipeline, same graph, model, ranks and seed; the "
    "configuration with the smallest ratio"
)
UNIT = "ratio"
DIRECTION = ">"
THRESHOLD = 1.0
OPTIONS = {
    "properties": {
        "min_layers": {
            "type": "integer",
            "minimum": 2,
            "default": 8,
            "description": "Layers from which on a model is deep.",
        },
        "chunks_per_stage": {
            "type": "integer",
            "minimum": 1,
            "default": 4,
            "description": "Chunks of the graph for every stage of the pipelines that the claim is about.",
        },
    },
    "required": [],
}


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One ratio per seed, from the table `strategies`."""
    rows = pipelines(table, options["min_layers"])
    choice = {"method": "pipeline", "chunks_per_stage": options["chunks_per_stage"], "deep": True}
    return repetitions(compared(rows, options, "gain", timed=True, **choice), DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean gain of all pipelines by layers and ranks, deep or not, and by layers, ranks and chunks."""
    completed = table[table["status"] == COMPLETED]
    rows = chosen(completed, options, min_ranks=2, timed=True, method="pipeline")
    return {
        "gain_by_layers_and_ranks": means(rows, "gain", "num_layers", "ranks"),
        "gain_by_layers_ranks_and_chunks": means(rows, "gain", "num_layers", "ranks", "chunks"),
    }

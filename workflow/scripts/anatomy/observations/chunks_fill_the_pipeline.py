"""Do enough chunks keep all stages of a pipeline busy?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.beside_baseline import means, pipelines, with_value
from anatomy.observations.common.evidence import COMPLETED, Repetitions, chosen, repetitions

CLAIM = (
    "In a pipeline of layers with four chunks for every stage, stages wait and communicate for less than half of a "
    "step."
)
SOURCE = (
    "GNNPipe (Chen et al., 2023) cuts the graph into chunks so that stages work at the same time; that four for every "
    "stage bring waiting below half of a step is this study's own hypothesis"
)
TABLE = "strategies"
FIGURE = "strategies"
STATISTIC = (
    "communication of a profiled step while nothing is computed, waiting for other stages in, over its wall time, sums "
    "over ranks and steps; the configuration with the largest share"
)
UNIT = "share of a step"
DIRECTION = "<"
THRESHOLD = 0.5
OPTIONS = {
    "properties": {
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
    """One share per seed, from the table `strategies`."""
    chunks_per_stage = options["chunks_per_stage"]
    rows = chosen(
        pipelines(table), options, min_ranks=2, timed=True, method="pipeline", chunks_per_stage=chunks_per_stage
    )
    return repetitions(with_value(rows, "exposed_share"), DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean share by ranks and chunks of all pipelines, and that of the rank that waits most; how many runs each rank is
    that in."""
    completed = pipelines(table[table["status"] == COMPLETED])
    rows = chosen(completed, options, min_ranks=2, timed=True, method="pipeline")
    return {
        "share_by_ranks_and_chunks": means(rows, "exposed_share", "ranks", "chunks"),
        "share_of_most_exposed_rank_by_ranks_and_chunks": means(rows, "most_exposed_share", "ranks", "chunks"),
        "runs_by_ranks_and_most_exposed_rank": {
            f"{ranks} ranks, rank {rank}": int(num_runs)
            for (ranks, rank), num_runs in rows.groupby(["ranks", "most_exposed_rank"]).size().items()
        },
    }

"""Fixtures of the figures' tests: study tables as the tables stage writes them, made up."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from made_comparisons import (
    convergence,
    gradient_only,
    memory,
    partitions,
    policies,
    rank_accuracy,
    slowdown,
    strategies,
    throughput,
)
from made_tables import bandwidth, cache, imbalance, phases, placement, preparation, scaling, timeline, volume

MAKERS = {
    "phases": phases,
    "volume": volume,
    "scaling": scaling,
    "bandwidth": bandwidth,
    "imbalance": imbalance,
    "timeline": timeline,
    "cache": cache,
    "convergence": convergence,
    "partitions": partitions,
    "strategies": strategies,
    "gains": strategies,
    "policies": policies,
    "memory": memory,
    "placement": placement,
    "rank_accuracy": rank_accuracy,
    "gradient_only": gradient_only,
    "slowdown": slowdown,
    "throughput": throughput,
    "preparation": preparation,
}


@pytest.fixture(scope="session")
def make_table() -> Callable[..., pd.DataFrame]:
    """make_table(name, **options): a study table with nullable columns, all of them even where no run has a number."""

    def make(name: str, **options: Any) -> pd.DataFrame:
        columns = list(MAKERS[name]())
        table = MAKERS[name](**options).reindex(columns=columns).convert_dtypes()
        maybe_empty = {"link_mbit": "Int64", "condition": "string", "baseline_run": "string"}
        return table.astype({name: dtype for name, dtype in maybe_empty.items() if name in table})

    return make


@pytest.fixture(scope="session")
def make_recorded(make_table) -> Callable[..., pd.DataFrame]:
    """make_recorded(name, run, platform, status): the rows of a study table about traces recorded elsewhere."""

    def make(name: str, run: str, platform: str = "GPU and NCCL", status: str = "completed") -> pd.DataFrame:
        failed = None if status == "completed" else lambda run: status
        options = {"partitioners": ("metis",), "strategies": ("minibatch",), "seeds": (0,)}
        table = make_table(name, **options, **({"failed": failed} if failed else {}))
        unknown = ["graph", "partitioner", "num_parts", "strategy", "method", "model", "hosts", "link_mbit"]
        unknown += ["condition", "seed", "oversubscribed"]
        dtypes = table.dtypes.to_dict()
        return table.assign(**dict.fromkeys(unknown, pd.NA), run=run, platform=platform).astype(dtypes)

    return make

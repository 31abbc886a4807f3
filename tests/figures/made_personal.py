"""Tables of runs whose ranks have models or data of their own."""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from made_tables import unique_runs


def rank_accuracy(**options: Any) -> pd.DataFrame:
    rng = np.random.default_rng(9)
    rows = []
    for run in unique_runs(**{"ranks": (4,), **options}):
        if run["status"] != "completed":
            rows.append(run)
            continue
        for rank in range(run["ranks"]):
            entropy = {"metis": 1.0, "random": 3.5}.get(run["partitioner"], 4.0) + 0.4 * rank
            accuracy = 0.8 - 0.05 * entropy - 0.05 * (run["strategy"] == "minibatch") + rng.uniform(-0.02, 0.02)
            rows.append({**run, "rank": rank, "label_entropy_bits": entropy, "test_accuracy": accuracy})
    return pd.DataFrame(rows)


def gradient_only(**options: Any) -> pd.DataFrame:
    rng = np.random.default_rng(10)
    rows = []
    runs = unique_runs(**{"ranks": (4,), **options})
    for run, period in product(runs, (1, 4, 16)):
        row = {**run, "run": f"{run['run']}.p{period}", "period": period, "epochs": 16}
        row |= {"correction": {"fullgraph": "none", "minibatch": "inverse"}[run["strategy"]]}
        if run["status"] == "completed":
            row |= {"accuracy_lost": 0.01 * np.log2(period) * rng.uniform(0.8, 1.2)}
        rows.append(row)
    return pd.DataFrame(rows)

"""What all planted tables are made of."""

from typing import Any

import numpy as np

NUM_SEEDS = 8


def leading(seed: int, **values: Any) -> dict[str, Any]:
    """Run columns of one run."""
    row = {
        "graph": "powerlaw",
        "partitioner": "metis",
        "num_parts": 2,
        "strategy": "minibatch",
        "method": "minibatch",
        "model": "sage",
        "ranks": 2,
        "hosts": 1,
        "link_mbit": None,
        "condition": None,
        "seed": seed,
        "oversubscribed": False,
        "platform": "CPU and Gloo",
        "status": "completed",
    } | values
    if "method" in values:
        row["strategy"] = values["method"]
    link = "" if row["link_mbit"] is None else f".l{row['link_mbit']}"
    spread = link if row["condition"] is None else f"{link}.c-{row['condition']}"
    name = f"{row['graph']}.{row['partitioner']}-{row['ranks']}.{row['strategy']}.{row['model']}{spread}.s{seed}"
    return {"run": name} | row


class Rows:
    """As many repetitions of a run, and noise that is small beside what is planted."""

    def __init__(self, num_seeds: int = NUM_SEEDS, random_seed: int = 0) -> None:
        self.seeds = range(num_seeds)
        self.random = np.random.default_rng(random_seed)

    def _near(self, value: float) -> float:
        return value * self.random.uniform(0.97, 1.03)

"""Study tables that set runs or partitions beside each other, made up; see `made_tables`."""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from made_tables import unique_runs


def convergence(**options: Any) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    rows = []
    for run in unique_runs(**{"partitioners": ("metis",), **options}):
        if run["status"] != "completed":
            rows.append(run)
            continue
        epochs, epoch_s, rate = {"minibatch": (8, 3.1, 0.8), "fullgraph": (60, 0.5, 0.05)}[run["strategy"]]
        epoch_s *= rng.uniform(0.9, 1.1)
        for epoch in range(epochs):
            accuracy = 0.72 - 0.6 * np.exp(-rate * (epoch + 1)) + rng.normal(0, 0.004)
            rows.append(
                {
                    **run,
                    "epoch": epoch,
                    "train_s": (epoch + 1) * epoch_s,
                    "loss": 2 - accuracy,
                    "val_accuracy": accuracy,
                    "test_accuracy": accuracy - 0.01,
                }
            )
    return pd.DataFrame(rows)


def strategies(**options: Any) -> pd.DataFrame:
    """Runs beside those of `fullgraph` that completed; on one rank nothing is sent."""
    rng = np.random.default_rng(8)
    runs = unique_runs(**options)
    baselines = {baseline_of(run): run["run"] for run in runs if run["strategy"] == "fullgraph" and completed(run)}
    rows = []
    for run in runs:
        if not completed(run):
            rows.append(run)
            continue
        own = {"fullgraph": 1.0, "minibatch": 2.5}[run["strategy"]] * rng.uniform(0.95, 1.05)
        row = {**run, "epoch_s": 0.4 * own, "peak_memory_bytes": int(8e8 * own), "val_accuracy": 0.7 - 0.01 * own}
        row |= {"sent_bytes_per_epoch": 1e7 * own * (run["ranks"] - 1)}
        row |= {"exposed_s_per_step": 0.03 * own, "hidden_s_per_step": 0.01 * own}
        row |= {"baseline_run": baselines.get(baseline_of(run))}
        if row["baseline_run"]:
            is_baseline = row["baseline_run"] == run["run"]
            row |= {"gain": 1.0 if is_baseline else 1 / own}
            row |= {"accuracy_lost": 0.0 if is_baseline else 0.01 * own - 0.01}
            row |= {"accuracy_lost_in_time": 0.0 if is_baseline else 0.02 * own - 0.04}
        if run["strategy"] == "minibatch":
            row |= {"paper_gain": 16.5, "paper_claim": "throughput, up to 16.5 times, over another, on GPUs (a paper)"}
        rows.append(row)
    return pd.DataFrame(rows)


def slowdown(**options: Any) -> pd.DataFrame:
    """Every run on a machine as it is, and with one rank slower; its condition is a part of its name."""
    rng = np.random.default_rng(9)
    rows = []
    for run in unique_runs(**{"partitioners": ("metis",), **options}):
        for factor in (1, 2, 4):
            slow = {"condition": None if factor == 1 else f"slow-{factor}x", "slow_factor": factor}
            row = run | slow | {"run": f"{run['run']}.{factor}"}
            if completed(run):
                waits = run["strategy"] == "fullgraph"
                row |= {"epoch_s": (factor if waits else 2 - 1 / factor) * rng.uniform(0.95, 1.05)}
                row |= {"idle_share": (0.5 if waits else 0.1) * (1 - 1 / factor) * rng.uniform(0.9, 1.1)}
                row |= {"val_accuracy": 0.7 + rng.normal(0, 0.004)}
            rows.append(row)
    return pd.DataFrame(rows)


def policies(**options: Any) -> pd.DataFrame:
    """As `strategies`: what stands here as another strategy is another policy of the same one."""
    table = strategies(**options)
    share = 0.5 * table["exposed_s_per_step"].astype("float64") if "exposed_s_per_step" in table else None
    return table.assign(sync_share=share)


def completed(run: dict[str, Any]) -> bool:
    return run["status"] == "completed"


def baseline_of(run: dict[str, Any]) -> tuple[Any, ...]:
    """What a run and its baseline have in common, as the table has it."""
    return tuple(run[name] for name in ("graph", "model", "ranks", "seed", "platform"))


def memory(**options: Any) -> pd.DataFrame:
    rng = np.random.default_rng(8)
    owners = {"features": 16e6, "structure": 40e6, "activations": 12e6, "exchange": 9e6, "evaluation": 5e6}
    rows = []
    for run in unique_runs(**options):
        if run["status"] != "completed":
            rows.append(run)
            continue
        for rank in range(run["ranks"]):
            scale = {"metis": 1.0, "random": 1.8}.get(run["partitioner"], 1.4) * rng.uniform(0.95, 1.05)
            known = {} if run["method"] == "minibatch" else {owner: int(scale * size) for owner, size in owners.items()}
            sizes = known | {"parameters": 200_000, "kept": 3_000_000, "rest": int(rng.uniform(250e6, 260e6))}
            rows += [
                {**run, "rank": rank, "owner": owner, "bytes": size, "peak_memory_bytes": sum(sizes.values())}
                for owner, size in sizes.items()
            ]
    return pd.DataFrame(rows)


def partitions(graphs=("powerlaw",), partitioners=("hash", "ldg", "metis", "random"), ranks=(2, 4)) -> pd.DataFrame:
    scale = {"metis": 1.0, "random": 3.5, "hash": 3.4, "ldg": 2.0}
    rows = []
    for graph, partitioner, parts in product(graphs, partitioners, ranks):
        cut = int(100000 * scale[partitioner] * (1 - 1 / parts) * 2)
        rows.append(
            {
                "graph": graph,
                "partitioner": partitioner,
                "method": partitioner,
                "num_parts": parts,
                "edge_cut": cut,
                "cut_entries": 2 * cut,
                "communication_volume": cut // 3,
                "replication_factor": 1 + cut / 300000,
                "balance_nodes": 1.0 + 0.01 * (partitioner == "metis"),
                "balance_edges": 1.0 + 0.3 * (partitioner == "hash"),
                "balance_train": 1.0 + 0.05 * (partitioner in ("ldg", "hash")),
                "components": parts,
                "seconds": 0.5,
                "peak_memory_bytes": 10**9,
            }
        )
    return pd.DataFrame(rows)


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


def throughput(**options: Any) -> pd.DataFrame:
    """Of a study in which every run was repeated with a slow rank."""
    rng = np.random.default_rng(9)
    rows = []
    for run in unique_runs(**options):
        for condition, factor in ((None, 1.0), ("slow-2x", 0.6)):
            name = run["run"] + (f".c-{condition}" if condition else "")
            rate = factor * rng.uniform(2e4, 3e4) if run["status"] == "completed" else None
            rows.append({**run, "run": name, "condition": condition, "train_nodes_per_s": rate})
    return pd.DataFrame(rows)

"""Study tables as the tables stage writes them, made up: small, with every column that a figure may read."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

PLATFORM = "CPU and Gloo"
SHARES = {
    ("preparation", "sample"): 0.28,
    ("preparation", "fetch"): 0.09,
    ("preparation", "gather"): 0.11,
    ("preparation", "copy"): 0.01,
    ("compute", "aggregate"): 0.11,
    ("compute", "combine"): 0.07,
    ("compute", "loss"): 0.01,
    ("compute", "backward"): 0.12,
    ("compute", "optimize"): 0.02,
    ("communication", "fetch"): 0.05,
    ("communication", "sync"): 0.08,
    ("copy", "aggregate"): 0.02,
    ("copy", "other"): 0.01,
    ("idle", "sync"): 0.02,
    ("idle", "sample"): 0.01,
    ("other", "other"): 0.02,
}


def make_runs(
    graphs=("powerlaw",),
    partitioners=("metis", "random"),
    strategies=("fullgraph", "minibatch"),
    ranks=(2,),
    seeds=(0, 1, 2),
    models=("sage",),
    platform=PLATFORM,
    failed: Callable[[dict[str, Any]], str | None] = lambda run: None,
) -> Iterator[dict[str, Any]]:
    """The run columns of every combination; `failed` gives the status of a run that did not complete."""
    for graph, partitioner, strategy, num_ranks, model, seed in product(
        graphs, partitioners, strategies, ranks, models, seeds
    ):
        used = "single" if num_ranks == 1 else partitioner
        run = {
            "run": f"{graph}.{used}-{num_ranks}.{strategy}.{model}.s{seed}",
            "graph": graph,
            "partitioner": used,
            "num_parts": num_ranks,
            "strategy": strategy,
            "method": strategy,
            "model": model,
            "ranks": num_ranks,
            "hosts": 1,
            "link_mbit": None,
            "seed": seed,
            "oversubscribed": num_ranks > 2,
            "platform": platform,
        }
        yield {**run, "status": failed(run) or "completed"}


def unique_runs(**options: Any) -> list[dict[str, Any]]:
    """Runs without the repeated one-rank ones."""
    return list({run["run"]: run for run in make_runs(**options)}.values())


def phases(**options: Any) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = []
    for run in unique_runs(**options):
        if run["status"] != "completed":
            rows.append(run)
            continue
        weights = {key: share * rng.uniform(0.8, 1.25) for key, share in SHARES.items()}
        if run["strategy"] == "fullgraph":
            weights = {key: share for key, share in weights.items() if key[0] != "preparation"}
        step_s = rng.uniform(0.02, 0.03)
        for (group, phase), weight in weights.items():
            share = weight / sum(weights.values())
            rows.append({**run, "phase": phase, "group": group, "seconds_per_step": share * step_s, "share": share})
    return pd.DataFrame(rows)


def volume(**options: Any) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    scale = {"metis": 1.0, "random": 4.1, "hash": 3.9, "ldg": 2.2, "single": 0.0}
    kinds = {
        "minibatch": {"features": 4e7, "requests": 1.2e6, "activations": 0, "gradients": 0, "weights": 3e5},
        "fullgraph": {"features": 0, "requests": 0, "activations": 6e6, "gradients": 5e6, "weights": 2e4},
    }
    rows = []
    for run in unique_runs(**options):
        if run["status"] != "completed":
            rows.append(run)
            continue
        for kind, amount in kinds[run["method"]].items():
            factor = 1.0 if kind == "weights" else scale[run["partitioner"]]
            exact = kind in ("activations", "gradients", "weights")
            measured = amount * factor * (1 if exact else rng.uniform(0.93, 1.07))
            rows.append(
                {
                    **run,
                    "kind": kind,
                    "measured_bytes_per_epoch": measured,
                    "compared_bytes_per_epoch": measured,
                    "predicted_bytes_per_epoch": amount * factor if exact else None,
                    "edge_cut": 1000,
                    "communication_volume": 500,
                    "replication_factor": 1.2,
                }
            )
    return pd.DataFrame(rows)


def scaling(**options: Any) -> pd.DataFrame:
    rng = np.random.default_rng(2)
    rows = []
    for mode in ("strong", "weak"):
        runs = unique_runs(**{"ranks": (1, 2, 4), **options})
        for run in runs:
            base = {"minibatch": 4.0, "fullgraph": 2.2}[run["strategy"]]
            ideal = base / run["ranks"] if mode == "strong" else base
            penalty = {"metis": 0.15, "random": 0.35}.get(run["partitioner"], 0.0)
            crowd = 2.0 if run["oversubscribed"] else 1.0
            epoch_s = ideal * (1 + penalty * (run["ranks"] - 1)) * crowd * rng.uniform(0.95, 1.05)
            good = run["status"] == "completed"
            graph = run["graph"] if mode == "strong" else f"{run['graph']}-{run['ranks']}"
            rows.append(
                {
                    **run,
                    "graph": graph,
                    "run": run["run"].replace(run["graph"], graph),
                    "mode": mode,
                    "experiment": f"{mode}_scaling",
                    "epoch_s": epoch_s if good else None,
                    "train_nodes_per_s": 60000 / epoch_s if good else None,
                    "speedup": base / epoch_s if good else None,
                    "efficiency": ideal / epoch_s if good else None,
                }
            )
    return pd.DataFrame(rows)


def bandwidth(**options: Any) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    rows = []
    for run, rate in product(unique_runs(**{"partitioners": ("metis",), **options}), (None, 1000, 500, 100)):
        link = "" if rate is None else f".l{rate}"
        row = {**run, "run": f"{run['run']}{link}", "link_mbit": rate, "hosts": run["ranks"]}
        if run["status"] == "completed":
            compute_s = {"minibatch": 2.0, "fullgraph": 0.8}[run["strategy"]] * rng.uniform(0.95, 1.05)
            sent_s = 4e8 / (1e6 * (rate or 4000))
            share = sent_s / (compute_s + sent_s)
            row |= {"epoch_s": compute_s + sent_s, "profiled_step_s": 0.1, "exposed_s_per_step": 0.1 * share}
            row |= {"exposed_share": share}
        rows.append(row)
    return pd.DataFrame(rows)


def imbalance(**options: Any) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    rows = []
    for run in unique_runs(**options):
        if run["status"] != "completed":
            rows.append(run)
            continue
        computes = [rng.uniform(0.010, 0.014) * (1 + 0.5 * (rank == 0)) for rank in range(run["ranks"])]
        for rank, compute_s in enumerate(computes):
            wait_s = max(computes) - compute_s + 0.0004
            rows.append(
                {
                    **run,
                    "rank": rank,
                    "train_nodes": 30000 + 100 * rank,
                    "compute_s_per_step": compute_s,
                    "sync_s_per_step": wait_s + 0.002,
                    "sync_wait_s_per_step": wait_s,
                    "wait_share": wait_s / (wait_s + 0.002),
                    "compute_imbalance": max(computes) / (sum(computes) / len(computes)),
                }
            )
    return pd.DataFrame(rows)


def timeline(**options: Any) -> pd.DataFrame:
    """One step per run: every rank samples, computes, waits in `sync` for the slowest rank, and updates."""
    rng = np.random.default_rng(6)
    rows = []
    for run in unique_runs(**options):
        if run["status"] != "completed":
            rows.append(run)
            continue
        about = {**run, "step": 4, "num_steps": 6, "annotated": True, "merged": False}
        arrivals = [0.01 * rng.uniform(1, 1.3) for _ in range(run["ranks"])]
        last, end = int(np.argmax(arrivals)), max(arrivals) + 0.003
        for rank, arrival in enumerate(arrivals):
            cuts = [0, 0.4 * arrival, 0.5 * arrival, arrival, end, end + 0.001, end + 0.0015]
            names = ["preparation sample", "copy other", "compute backward", "communication sync"]
            names += ["compute optimize", "idle sample"]
            rows += [{**about, "kind": "interval", "rank": rank, **part} for part in parts_of(cuts, names)]
        cuts = [0, 0.4 * max(arrivals), 0.5 * max(arrivals), max(arrivals), end, end + 0.001, end + 0.0015]
        for part in parts_of(cuts, names):
            to = (last + 1) % run["ranks"] if part["start_s"] >= max(arrivals) else last
            number = 7 if part["phase"] == "sync" else None
            margin = {"collective": number, "slack_s": part["length_s"] / 2}
            rows.append({**about, "kind": "path", "rank": to, **part, **margin})
    return pd.DataFrame(rows)


def parts_of(cuts: list[float], names: list[str]) -> Iterator[dict[str, Any]]:
    """What lies between neighbouring cuts, each a category and a phase."""
    for place, (start, end, name) in enumerate(zip(cuts[:-1], cuts[1:], names, strict=True)):
        category, phase = name.split()
        times = {"start_s": start, "end_s": end, "length_s": end - start}
        yield {"place": place, "category": category, "phase": phase, **times}


def cache(**options: Any) -> pd.DataFrame:
    rng = np.random.default_rng(4)
    rows = []
    for run in unique_runs(**{"strategies": ("minibatch",), **options}):
        if run["status"] != "completed":
            rows.append(run)
            continue
        for rank, policy, share in product(range(run["ranks"]), ("degree", "accesses"), (0.01, 0.05, 0.1, 0.2)):
            rate = share ** (0.45 if policy == "degree" else 0.35) * (0.8 if run["partitioner"] == "random" else 1)
            accesses = 40000 + 1000 * rank
            hits = int(accesses * rate * rng.uniform(0.95, 1.05))
            rows.append(
                {
                    **run,
                    "rank": rank,
                    "policy": policy,
                    "capacity_share": share,
                    "capacity_nodes": int(100000 * share),
                    "accesses": accesses,
                    "distinct": 20000,
                    "hits": hits,
                    "hit_rate": hits / accesses,
                }
            )
    return pd.DataFrame(rows)


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
            sizes = known | {"parameters": 200_000, "rest": int(rng.uniform(250e6, 260e6))}
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
    "memory": memory,
}


@pytest.fixture(scope="session")
def make_table() -> Callable[..., pd.DataFrame]:
    """make_table(name, **options): a study table with nullable columns, all of them even where no run has a number."""

    def make(name: str, **options: Any) -> pd.DataFrame:
        columns = list(MAKERS[name]())
        table = MAKERS[name](**options).reindex(columns=columns).convert_dtypes()
        maybe_empty = {"link_mbit": "Int64", "baseline_run": "string"}
        return table.astype({name: dtype for name, dtype in maybe_empty.items() if name in table})

    return make


@pytest.fixture(scope="session")
def make_recorded(make_table) -> Callable[..., pd.DataFrame]:
    """make_recorded(name, run, platform, status): the rows of a study table about traces recorded elsewhere."""

    def make(name: str, run: str, platform: str = "GPU and NCCL", status: str = "completed") -> pd.DataFrame:
        failed = None if status == "completed" else lambda run: status
        options = {"partitioners": ("metis",), "strategies": ("minibatch",), "seeds": (0,)}
        table = make_table(name, **options, **({"failed": failed} if failed else {}))
        unknown = ["graph", "partitioner", "num_parts", "strategy", "method", "model", "hosts", "link_mbit", "seed"]
        unknown += ["oversubscribed"]
        dtypes = table.dtypes.to_dict()
        return table.assign(**dict.fromkeys(unknown, pd.NA), run=run, platform=platform).astype(dtypes)

    return make

"""Study tables of runs, made up: small, with every column that a figure may read."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

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
            "condition": None,
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


def placement(**options: Any) -> pd.DataFrame:
    rng = np.random.default_rng(11)
    orders, sizes = ("0 1", "1 0"), iter((2e6, 9e6, 6e6, 12e6))
    names = {
        "minibatch": ("0 1", "0 1"),
        "placed-1": ("1 0", "0 1"),
        "placed-2": ("0 1", "1 0"),
        "placed-3": ("1 0", "1 0"),
    }
    means = dict(zip(names, sizes, strict=True))
    rows = []
    for run in unique_runs(**{**options, "strategies": tuple(names), "partitioners": ("metis",)}):
        samplers, stores = names[run["strategy"]]
        about = {"samplers": samplers, "stores": stores, "together": samplers == stores == orders[0]}
        if run["status"] != "completed":
            rows.append({**run, **about})
            continue
        for sender, receiver in ((0, 1), (1, 0)):
            size = means[run["strategy"]] / 2 * rng.uniform(0.95, 1.05)
            pair = {"sender": sender, "receiver": receiver}
            rows.append({**run, **about, **pair, "measured_bytes_per_epoch": size, "predicted_bytes_per_epoch": size})
    return pd.DataFrame(rows)


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


def preparation(**options: Any) -> pd.DataFrame:
    rng = np.random.default_rng(9)
    rows = []
    for run in unique_runs(**{"strategies": ("minibatch", "minibatch-cache", "minibatch-both")} | options):
        if run["status"] != "completed":
            rows.append(run)
            continue
        seconds = {"sample": 0.004, "fetch": 0.012, "gather": 0.001, "copy": 0.0002}
        numbers = {f"{phase}_s_per_step": value * rng.uniform(0.8, 1.2) for phase, value in seconds.items()}
        numbers |= {"hit_rate": 0.0, "saved_bytes_per_epoch": 0.0, "cache_bytes": 0}
        if run["strategy"] != "minibatch":
            numbers["fetch_s_per_step"] /= 2
            hits = rng.uniform(0.45, 0.55)
            numbers |= {"hit_rate": hits, "saved_bytes_per_epoch": 8e7 * hits, "cache_bytes": 5_120_000}
        rows.append({**run, **numbers})
    return pd.DataFrame(rows)

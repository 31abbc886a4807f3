"""The files that runs leave: `timed/` with its metrics, `profiled/` with its manifest, and those of failed runs."""

import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from anatomy.files import publish, write_json
from anatomy.program import versions
from anatomy.training.specification import RunSpecification

TIMED_MANIFEST = "metrics.json"
PROFILE_MANIFEST = "manifest.json"
MANIFESTS = {"timed": TIMED_MANIFEST, "profiled": PROFILE_MANIFEST}

EPOCH_COLUMNS = {
    "rank": "int32",
    "epoch": "int32",
    "piece": "int32",
    "warmup": "bool",
    "steps": "int32",
    "train_nodes": "int64",
    "wall_s": "float64",
    "blocked_s": "float64",
    "eval_s": "float64",
    "loss": "float64",
    "train_accuracy": "float64",
    "val_accuracy": "float64",
    "test_accuracy": "float64",
    "own_train_accuracy": "float64",
    "own_val_accuracy": "float64",
    "own_test_accuracy": "float64",
    "sent_features_bytes": "int64",
    "sent_requests_bytes": "int64",
    "sent_activations_bytes": "int64",
    "sent_gradients_bytes": "int64",
    "sent_weights_bytes": "int64",
    "between_hosts_bytes": "int64",
    "remote_nodes": "int64",
    "cache_hits": "int64",
    "cache_bytes": "int64",
    "sent_fraction": "float64",
    "batch_share": "float64",
    "peak_memory_bytes": "int64",
}
ACCESS_COLUMNS = {"rank": "int32", "epoch": "int32", "node": "int64", "count": "int32"}


def write_timed(
    strategy: Any, stage: Path, gathered: list[dict[str, Any]], checkpoints: Mapping[str, Any], seconds: float
) -> None:
    """Write a completed timed run to `stage`, its attempt's folder, and publish it.

    `gathered`: per rank the fields of its `timed.Measured`.
    Epochs of the same `piece` were trained without an interruption between them. What `checkpoints` cost, and
    `seconds`, are of the last piece.
    """
    context = strategy.context
    epochs = [row for rank in gathered for row in rank["epochs"]]
    _share_accuracies(epochs)
    last = max((row for row in epochs if row["rank"] == 0), key=lambda row: row["epoch"])
    metrics = _manifest("metrics", context.specification, "completed", None) | {
        "num_train_nodes": context.graph.manifest["split"]["train"],
        "model_parameters": context.model.num_parameters,
        "layer_dims": context.model.widths,
        "predicted": vars(strategy.predict()),
        "setup_sent_bytes": _added(rank["setup"] for rank in gathered),
        "evaluation_sent_bytes": _added(rank["evaluation"] for rank in gathered),
        "resumed_at": gathered[0]["resumed_at"],
        "checkpoints": dict(checkpoints),
        "final": {key: last[key] for key in ("loss", "train_accuracy", "val_accuracy", "test_accuracy")},
        "traffic": [
            {name: row[name] for name in ("rank", "epoch", "warmup", "steps")} | row["traffic"]
            for row in epochs
            if row["traffic"] is not None
        ],
        "weights_sha256": context.model.weights_sha256(),
        "seconds": round(seconds, 3),
        "peak_memory_bytes": max(row["peak_memory_bytes"] for row in epochs),
        "kept_bytes": [rank["kept_bytes"] for rank in gathered],
    }
    _write_table(
        stage / "epochs.parquet", EPOCH_COLUMNS, {name: [row[name] for row in epochs] for name in EPOCH_COLUMNS}
    )
    _write_table(stage / "accesses.parquet", ACCESS_COLUMNS, _access_columns(gathered))
    write_json(stage / TIMED_MANIFEST, metrics)
    publish(stage, TIMED_MANIFEST)


def write_profile_manifest(
    stage: Path, context: Any, wall_s: list[list[float]], clocks: dict[str, Any], seconds: float
) -> None:
    """Write the manifest beside the traces of a completed profiled run, in `stage`, and publish them.

    `wall_s`: per rank, of each active step; `clocks`: what `ClockExchange` recorded.
    """
    specification = context.specification
    manifest = _manifest("profile", specification, "completed", None) | {
        "steps": vars(specification.profile),
        "first_step": specification.profile.wait + specification.profile.warmup,
        "wall_s": wall_s,
        "clocks": clocks,
        "traces": [f"rank{rank}.json.gz" for rank in range(specification.ranks)],
        "seconds": round(seconds, 3),
    }
    write_json(stage / PROFILE_MANIFEST, manifest)
    publish(stage, PROFILE_MANIFEST)


def write_failed(
    specification: RunSpecification, stage: Path, mode: str, status: str, reason: str, seconds: float
) -> None:
    """Publish the result of a run that ended for a reason of its own: the status, the reason, and no measurement."""
    kind = "metrics" if mode == "timed" else "profile"
    manifest = _manifest(kind, specification, status, reason) | {"seconds": round(seconds, 3)}
    for unfinished in stage.iterdir():  # by ranks that were ended while they wrote
        unfinished.unlink()
    if mode == "timed":
        manifest |= {"predicted": {}, "setup_sent_bytes": {}, "evaluation_sent_bytes": {}, "final": {}}
        for name, columns in (("epochs", EPOCH_COLUMNS), ("accesses", ACCESS_COLUMNS)):
            _write_table(stage / f"{name}.parquet", columns, {column: [] for column in columns})
    write_json(stage / MANIFESTS[mode], manifest)
    publish(stage, MANIFESTS[mode])


def _manifest(kind: str, specification: RunSpecification, status: str, reason: str | None) -> dict[str, Any]:
    training = specification.training
    return {
        "kind": kind,
        "run": specification.run,
        "status": status,
        "reason": reason,
        "epochs": specification.strategy["epochs"],
        "ranks": specification.ranks,
        "threads_per_rank": training.threads_per_rank,
        "device": training.device,
        "communication": training.communication,
        "operators": training.operators,
        "machine": describe_machine(),
        "versions": versions(*specification.packages),
    }


def describe_machine() -> dict[str, Any]:
    """The machine that this runs on."""
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": cpu,
        "cores": len(psutil.Process().cpu_affinity()),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
    }


def _share_accuracies(epochs: list[dict[str, Any]]) -> None:
    """Give every rank's rows the accuracies over all nodes, which are known to rank 0 alone; those over a rank's own
    nodes stay."""
    known = {row["epoch"]: row for row in epochs if row["rank"] == 0}
    for row in epochs:
        row |= {name: known[row["epoch"]][name] for name in ("train_accuracy", "val_accuracy", "test_accuracy")}


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    rows = list(counts)
    return {kind: sum(row[kind] for row in rows) for kind in rows[0]}


def _access_columns(gathered: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    parts = [part for rank in gathered for part in rank["accesses"]]
    lengths = [len(part["node"]) for part in parts]
    return {
        "rank": np.repeat([part["rank"] for part in parts], lengths),
        "epoch": np.repeat([part["epoch"] for part in parts], lengths),
        "node": np.concatenate([part["node"] for part in parts]),
        "count": np.concatenate([part["count"] for part in parts]),
    }


def _write_table(path: Path, columns: Mapping[str, str], values: Mapping[str, Any]) -> None:
    """Write columns of the given types; None becomes null."""
    import pyarrow as pa  # only rank 0 writes
    from pyarrow import parquet

    from anatomy.arrow import numbers

    arrays = []
    for name, kind in columns.items():
        column = np.asarray(values[name])
        valid = np.array([value is not None for value in column]) if column.dtype == object else None
        arrays.append(numbers(column, kind, valid))
    parquet.write_table(pa.Table.from_arrays(arrays, names=list(columns)), path)

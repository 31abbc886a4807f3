"""How many bytes the ranks send, beside what the partition predicts."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import SENT_COLUMNS, Study, StudyRun

SUMMARY = (
    "bytes sent per epoch by kind: measured at the hand-over to the transport, and predicted without running anything"
)
INPUTS = ("partition", "graph")
OPTIONS = {"properties": {}, "required": []}
KEY = ("run", "kind")
BYTES_PER_NUMBER = 4
"""Features, activations, gradients and weights are float32; a request is the row's number as int32."""
BYTES_PER_COUNT = 8
"""Before a request, each rank tells each other one in int64 how many rows it will ask for."""
VALUES_BESIDE_GRADIENTS = 2
"""The loss and the number of seed nodes travel with the gradients."""
COLUMNS = RUN_COLUMNS | {
    "kind": Column(
        "string",
        "",
        "what is sent: features of remote nodes, requests (for them, or bits that say which rows of the halo follow), "
        "activations of the halo, gradients of those activations, weights (gradient synchronisation: an all-reduce, "
        "counted as a ring's, or what ranks send their neighbours)",
    ),
    "measured_bytes_per_epoch": Column(
        "Float64",
        "B",
        "sent to other ranks while training: sum over ranks, mean over epochs, warm-up and evaluation out",
    ),
    "predicted_bytes_per_epoch": Column(
        "Float64",
        "B",
        "computed here, of the methods fullgraph, minibatch and distdgl; of any other as declared; missing where there "
        "is no closed form. Full-graph activations and gradients: halo nodes of the partition x widths of the hidden "
        "layers x 4 B. Mini-batch features: remote rows that the sampler asked for x features x 4 B; requests: the "
        "same rows x 4 B, and 8 B per step and pair of ranks. Weights: 2 (ranks - 1) x (parameters + 2) x 4 B per step",
    ),
    "predicted_from": Column(
        "string",
        "",
        "what the prediction is computed from: partition, accesses (sampled nodes), model, or by the strategy itself",
    ),
    "compared_bytes_per_epoch": Column(
        "Float64",
        "B",
        "measured, over exactly the epochs that the prediction is for: mini-batch features: the recorded last "
        "ones; else as measured",
    ),
    "declared_bytes_per_epoch": Column(
        "Float64", "B", "what the training program itself predicted before its first epoch; missing where it did not"
    ),
    "edge_cut": Column("Int64", "", "of the partition: adjacent pairs of nodes in different parts"),
    "communication_volume": Column("Int64", "nodes", "of the partition: halo nodes summed over parts"),
    "replication_factor": Column("Float64", "", "of the partition: (nodes + communication volume) / nodes"),
}


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run and kind; a run that failed is one row without measured bytes."""
    return as_frame([row for run in study.runs for row in _kinds(run)], COLUMNS)


def _kinds(run: StudyRun) -> list[dict[str, Any]]:
    total = run.partition.manifest["total"]
    leading = run.columns | {name: total[name] for name in ("edge_cut", "communication_volume", "replication_factor")}
    if not run.completed:
        return [leading]
    declared = {kind: run.metrics["predicted"].get(f"{column}_per_epoch") for kind, column in SENT_COLUMNS.items()}
    predicted = _predictions(run, declared)
    rows = []
    for kind, column in SENT_COLUMNS.items():
        measured = _mean_sent(run.measured_epochs, column)
        row = {"kind": kind, "measured_bytes_per_epoch": measured, "compared_bytes_per_epoch": measured}
        row["declared_bytes_per_epoch"] = declared[kind]
        rows.append(leading | row | predicted.get(kind, {}))
    return rows


def _mean_sent(epochs: pd.DataFrame, column: str) -> float | None:
    """None without epochs, and where nobody counted what was sent."""
    sent = epochs.groupby("epoch")[column].sum(min_count=1)
    return None if sent.empty or sent.isna().any() else float(sent.mean())


def _predictions(run: StudyRun, declared: Mapping[str, int | None]) -> dict[str, dict[str, Any]]:
    """By kind. What is computed here does not look at what the strategy declared, so that each checks the other."""
    weights = {"predicted_bytes_per_epoch": _weight_bytes(run), "predicted_from": "model"}
    match run.spec["strategy"]["method"]:
        case "fullgraph":
            boundary = {"predicted_bytes_per_epoch": _boundary_bytes(run), "predicted_from": "partition"}
            return {"activations": boundary, "gradients": boundary, "weights": weights}
        case "minibatch":
            return {"weights": weights, **_fetch_bytes(run)}
        case "distdgl":
            return {"weights": weights, **{kind: row for kind, row in _fetch_bytes(run).items() if kind == "features"}}
        case _:
            return {
                kind: {"predicted_bytes_per_epoch": size, "predicted_from": "strategy"}
                for kind, size in declared.items()
                if size is not None
            }


def _boundary_bytes(run: StudyRun) -> int:
    """Bytes of one epoch's halo exchanges in one direction: of every layer but the first, whose input never changes."""
    halo = np.array(run.partition.manifest["halo_matrix"], dtype=np.int64)
    np.fill_diagonal(halo, 0)
    return int(halo.sum()) * sum(run.metrics["layer_dims"][1:-1]) * BYTES_PER_NUMBER


def _fetch_bytes(run: StudyRun) -> dict[str, dict[str, Any]]:
    """Bytes of the remote features and of the requests for them, in the epochs whose accesses were recorded."""
    accesses, ranks = run.accesses, run.spec["ranks"]
    if accesses.empty:
        return {}
    owners = run.partition.assignment[accesses["node"].to_numpy(dtype=np.int64)]
    rows = int(accesses.loc[owners != accesses["rank"].to_numpy(dtype=np.int64), "count"].sum())
    recorded = run.epochs[run.epochs["epoch"].isin(accesses["epoch"].unique())]
    steps = recorded.groupby("epoch")["steps"].max()
    announcements = int(steps.sum()) * ranks * (ranks - 1) * BYTES_PER_COUNT
    sizes = {
        "features": rows * run.graph["num_features"] * BYTES_PER_NUMBER,
        "requests": rows * BYTES_PER_NUMBER + announcements,
    }
    return {
        kind: {
            "predicted_bytes_per_epoch": size / len(steps),
            "predicted_from": "accesses",
            "compared_bytes_per_epoch": _mean_sent(recorded, SENT_COLUMNS[kind]),
        }
        for kind, size in sizes.items()
    }


def _weight_bytes(run: StudyRun) -> float | None:
    """Bytes of one ring all-reduce per step over all ranks: each rank sends 2 (P - 1) / P of the payload."""
    steps = run.measured_epochs.groupby("epoch")["steps"].max()
    if steps.empty:
        return None
    payload = (run.metrics["model_parameters"] + VALUES_BESIDE_GRADIENTS) * BYTES_PER_NUMBER
    return 2 * (run.spec["ranks"] - 1) * payload * float(steps.mean())

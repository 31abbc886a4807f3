"""What travels between every two ranks under each placement of samplers and feature stores."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import Study, StudyRun
from anatomy.training.placement import identity, traffic

SUMMARY = "bytes between every two ranks by placement: measured, and predicted from the run with all together"
INPUTS = ()
OPTIONS = {"properties": {}, "required": []}
KEY = ("run", "sender", "receiver")
COLUMNS = RUN_COLUMNS | {
    "samplers": Column("string", "", "for each rank the one that samples its batches, of strategies that say it"),
    "stores": Column("string", "", "for each part the rank that keeps its features"),
    "together": Column("boolean", "", "whether every rank samples for itself and keeps its own part's features"),
    "sender": Column("Int64", "", "the rank that sends; missing where there are no numbers"),
    "receiver": Column("Int64", "", "the rank that it sends to"),
    "measured_bytes_per_epoch": Column(
        "Float64",
        "B",
        "handed to the transport in exchanges while training: batches, requests and features, without gradients; mean "
        "over epochs, warm-up and evaluation out",
    ),
    "predicted_bytes_per_epoch": Column(
        "Float64",
        "B",
        "the same, from what the batches of the run with all together of the same seed had in nodes and bytes; missing "
        "where there is no such run",
    ),
}


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run and ordered pair of ranks; one that failed, or counts no traffic, is one row without numbers."""
    baselines = {_compared_by(run): run for run in study.runs if _counted(run) and _is_together(run)}
    return as_frame([row for run in study.runs for row in _pairs(run, baselines)], COLUMNS)


def _counted(run: StudyRun) -> bool:
    return run.completed and bool(run.metrics.get("traffic"))


def _placement(run: StudyRun) -> tuple[list[int], list[int]]:
    strategy, ranks = run.spec["strategy"], run.spec["ranks"]
    return strategy.get("samplers") or identity(ranks), strategy.get("stores") or identity(ranks)


def _is_together(run: StudyRun) -> bool:
    return _placement(run) == (identity(run.spec["ranks"]),) * 2


def _compared_by(run: StudyRun) -> tuple[Any, ...]:
    """What two runs that draw the same batches have in common."""
    strategy = run.spec["strategy"]
    return (
        *(run.columns[name] for name in ("graph", "partitioner", "num_parts", "model", "seed")),
        *(str(strategy.get(name)) for name in ("epochs", "fanouts", "batch_size")),
    )


def _pairs(run: StudyRun, baselines: Mapping[tuple[Any, ...], StudyRun]) -> list[dict[str, Any]]:
    if "samplers" not in run.spec["strategy"]:
        return [run.columns]
    samplers, stores = _placement(run)
    leading = run.columns | {
        "samplers": " ".join(map(str, samplers)),
        "stores": " ".join(map(str, stores)),
        "together": _is_together(run),
    }
    if not _counted(run) or run.spec["ranks"] == 1:
        return [leading]
    measured = np.mean([_array(rows, "sent_to_bytes") for rows in _by_epoch(run)], axis=0)
    predicted = _predicted(baselines.get(_compared_by(run)), samplers, stores)
    return [
        leading
        | {"sender": sender, "receiver": receiver, "measured_bytes_per_epoch": measured[sender, receiver]}
        | ({} if predicted is None else {"predicted_bytes_per_epoch": predicted[sender, receiver]})
        for sender, receiver in zip(*np.nonzero(~np.eye(len(stores), dtype=bool)), strict=True)
    ]


def _predicted(baseline: StudyRun | None, samplers: list[int], stores: list[int]) -> np.ndarray | None:
    if baseline is None:
        return None
    num_features = baseline.metrics["layer_dims"][0]
    epochs = [
        traffic(samplers, stores, _array(rows, "rows"), _array(rows, "batch_bytes"), rows[0]["steps"], num_features)
        for rows in _by_epoch(baseline)
    ]
    return np.mean(epochs, axis=0)


def _by_epoch(run: StudyRun) -> list[list[Mapping[str, Any]]]:
    """What the ranks counted in each epoch after the warm-up, in order of the ranks."""
    epochs = defaultdict(list)
    for row in sorted(run.metrics["traffic"], key=lambda row: row["rank"]):
        if not row["warmup"]:
            epochs[row["epoch"]].append(row)
    return list(epochs.values())


def _array(rows: list[Mapping[str, Any]], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows], dtype=np.int64)

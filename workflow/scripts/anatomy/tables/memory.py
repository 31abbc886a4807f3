"""Who owns the memory of a rank, accounted for from sizes that are known, beside what its process had at most."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from anatomy.tables.common.account import Model, account, parts_of
from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import Study, StudyRun

SUMMARY = (
    "bytes of each rank by owner, computed from partition, model and strategy, not measured, but for what the strategy "
    "keeps; `rest` is what the process had at its peak beyond them"
)
INPUTS = ("partition",)
OPTIONS = {"properties": {}, "required": []}
KEY = ("run", "rank", "owner")
KEPT = "kept"
REST = "rest"
COLUMNS = RUN_COLUMNS | {
    "rank": Column("Int64", "", "rank"),
    "owner": Column(
        "string",
        "",
        "features (rows of own and halo nodes; of bns, also those of a sample), structure (in-edges of own nodes, and "
        "the same by source for the backward pass; of bns, of the whole halo and of a sample as large as is expected), "
        "activations (rows kept for the backward pass: exact for gcn and sage without dropout, else at least so much), "
        "parameters (weights, gradients, Adam's moments), exchange (buffers of the halo exchanges of training), "
        "evaluation (what exact evaluation keeps, and its own buffers where training exchanges otherwise), kept (what "
        "the strategy holds beyond these, looked up in the process after training: histories, caches, buffers of its "
        "own), or rest: interpreter, libraries, mapped files, and whatever else is not accounted for. Strategies that "
        "do not exchange the halo before each layer have neither activations nor exchange, mini-batches have "
        "parameters and what they keep: their activations are in the rest",
    ),
    "bytes": Column(
        "Int64",
        "B",
        "memory of that owner; of the rest: peak_memory_bytes without the others. Less than 0, it would say that the "
        "account is wrong. There is no rest on GPUs, whose memory is not that of a process",
    ),
    "peak_memory_bytes": Column(
        "Int64", "B", "largest resident memory of the rank's process, evaluation in; the same for all owners"
    ),
}


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run, rank and owner; a run that failed is one row without numbers."""
    rows: list[dict[str, Any]] = []
    for run in study.runs:
        rows += _ranks(run) if run.completed else [run.columns]
    return as_frame(rows, COLUMNS)


def _ranks(run: StudyRun) -> Iterator[dict[str, Any]]:
    strategy, manifest = run.spec["strategy"], run.partition.manifest
    model = Model(run.spec["model"]["layer"], run.metrics["layer_dims"], run.metrics["model_parameters"])
    parts, samples = parts_of(manifest), parts_of(manifest, strategy.get("rate", 1.0))
    peaks = run.epochs.groupby("rank")["peak_memory_bytes"].max()
    for rank, (part, sample) in enumerate(zip(parts, samples, strict=True)):
        owners = account(part, sample, model, strategy)
        owners[KEPT] = run.metrics["kept_bytes"][rank]
        if run.spec["training"]["device"] == "cpu":
            owners[REST] = int(peaks[rank]) - sum(owners.values())
        for owner, size in owners.items():
            yield run.columns | {"rank": rank, "owner": owner, "bytes": size, "peak_memory_bytes": peaks[rank]}

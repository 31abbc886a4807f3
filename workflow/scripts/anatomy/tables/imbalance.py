"""How unequal the ranks are, and what they wait for."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from anatomy.phases import Phase
from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import NANOSECONDS_PER_S, Study, StudyRun, without_traces

SUMMARY = "each rank's share of the work, and how much of its gradient synchronisation is waiting for the slowest rank"
INPUTS = ("traces",)
OPTIONS = {"properties": {}, "required": []}
KEY = ("run", "rank")
COLUMNS = RUN_COLUMNS | {
    "rank": Column("Int64", "", "rank"),
    "train_nodes": Column(
        "Float64",
        "nodes",
        "seed nodes the rank trains on per epoch: mean over timed epochs, warm-up out; missing for traces alone",
    ),
    "compute_s_per_step": Column("Float64", "s", "time computing: mean over the profiled steps"),
    "sync_s_per_step": Column(
        "Float64",
        "s",
        "time in collectives of weight gradients, from this rank's arrival to their end, hidden or not: mean over "
        "the profiled steps; missing where there were none. Where traces annotate no phases: in all collectives",
    ),
    "sync_wait_s_per_step": Column(
        "Float64",
        "s",
        "of that, until the last rank arrived; missing where a collective could not be matched across ranks",
    ),
    "wait_share": Column("Float64", "", "sync_wait_s_per_step / sync_s_per_step"),
    "compute_imbalance": Column(
        "Float64", "", "largest compute_s_per_step of the run's ranks over their mean; same for all ranks"
    ),
}


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run and rank; a run that failed or was not profiled is one row without numbers."""
    rows: list[dict[str, Any]] = []
    for run in study.runs:
        rows += without_traces(run) or _ranks(run)
    return as_frame(rows, COLUMNS)


def _ranks(run: StudyRun) -> Iterator[dict[str, Any]]:
    steps = run.trace_table("steps", ["rank", "step", "compute_ns"]).groupby("rank")
    compute_s = steps["compute_ns"].mean() / NANOSECONDS_PER_S
    train_nodes = {} if run.recorded else run.measured_epochs.groupby("rank")["train_nodes"].mean()
    collectives = run.trace_table("collectives", ["rank", "phase", "start_ns", "end_ns", "wait_ns"])
    phases = set(run.trace_table("phases", ["phase"])["phase"])
    synchronising = collectives["phase"] == Phase.SYNC if phases - {Phase.OTHER} else collectives["phase"].notna()
    sync = collectives[synchronising].assign(lasts_ns=lambda sync: sync["end_ns"] - sync["start_ns"])
    for rank, num_steps in steps.size().items():
        row = run.columns | {
            "rank": rank,
            "train_nodes": train_nodes.get(rank),
            "compute_s_per_step": compute_s[rank],
            "compute_imbalance": compute_s.max() / compute_s.mean(),
        }
        yield row | _waiting(sync[sync["rank"] == rank], num_steps)


def _waiting(sync: pd.DataFrame, num_steps: int) -> dict[str, Any]:
    if sync.empty:
        return {}
    sync_ns = sync["lasts_ns"].sum()
    row = {"sync_s_per_step": sync_ns / num_steps / NANOSECONDS_PER_S}
    if sync["wait_ns"].isna().any() or sync_ns == 0:
        return row
    wait_ns = sync["wait_ns"].sum()
    return row | {"sync_wait_s_per_step": wait_ns / num_steps / NANOSECONDS_PER_S, "wait_share": wait_ns / sync_ns}

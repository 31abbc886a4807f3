"""What brings a run's mini-batches together, and what a cache and prefetching take away from it."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.phases import PREPARATION, Phase
from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import NANOSECONDS_PER_S, Study, StudyRun, without_traces
from anatomy.tables.common.timing import epoch_seconds

SUMMARY = (
    "every run by mini-batches: time of a step that preparing batches takes and nothing hides, what is fetched, and "
    "what a cache of remote features saves and costs; runs of other kinds have no rows"
)
INPUTS = ("traces", "graph")
OPTIONS = {"properties": {}, "required": []}
KEY = ("run",)
COLUMNS = RUN_COLUMNS | {
    "cache_policy": Column("string", "", "what the cache of remote features is filled with; missing without a cache"),
    "cache_fraction": Column("Float64", "", "its size as a share of the nodes of all other ranks; 0 without a cache"),
    "prefetch": Column("Int64", "", "batches that are prepared while another is trained on"),
    "epoch_s": Column(
        "Float64", "s", "wall time of an epoch: median over epochs, warm-up out, of the slowest rank's; evaluation out"
    ),
    "profiled_step_s": Column(
        "Float64", "s", "wall time of a profiled step: mean over ranks and steps; profiler's warm-up out"
    ),
    **{
        f"{phase}_s_per_step": Column(
            "Float64", "s", f"of it, in {phase}, exposed communication in; what is on its way meanwhile is not in"
        )
        for phase in PREPARATION
    },
    "preparation_s_per_step": Column("Float64", "s", "the sum of these"),
    "fetched_rows_per_epoch": Column(
        "Float64", "", "remote feature rows asked for and sent: sum over ranks, mean over epochs, warm-up out"
    ),
    "cache_hits_per_epoch": Column("Float64", "", "remote feature rows that were in the cache: the same"),
    "hit_rate": Column("Float64", "", "cache_hits / (cache_hits + fetched_rows); missing where both are 0"),
    "saved_bytes_per_epoch": Column("Float64", "B", "features that were not sent for that: hits x features x 4 B"),
    "cache_bytes": Column("Int64", "B", "memory of the cache: max over ranks; filled once, before the first epoch"),
}


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run with seed nodes in batches; one that failed has no numbers, one without traces no step."""
    runs = [run for run in study.runs if not run.recorded and "batch_size" in run.spec["strategy"]]
    return as_frame([_row(run) for run in runs], COLUMNS)


def _row(run: StudyRun) -> dict[str, Any]:
    strategy = run.spec["strategy"]
    cache = strategy.get("cache") or {"policy": None, "fraction": 0.0}
    row = run.columns | {
        "cache_policy": cache["policy"],
        "cache_fraction": cache["fraction"],
        "prefetch": strategy.get("prefetch", 0),
    }
    if not run.completed:
        return row
    return row | {"epoch_s": epoch_seconds(run)} | _fetched(run) | ({} if without_traces(run) else _exposed(run))


def _fetched(run: StudyRun) -> dict[str, Any]:
    epochs = run.measured_epochs.groupby("epoch")[["remote_nodes", "cache_hits"]].sum()
    if epochs.empty:
        return {}
    fetched, hits = (float(mean) for mean in epochs.mean())
    return {
        "fetched_rows_per_epoch": fetched,
        "cache_hits_per_epoch": hits,
        "hit_rate": hits / (hits + fetched) if hits + fetched else None,
        "saved_bytes_per_epoch": hits * run.graph["num_features"] * 4,
        "cache_bytes": run.epochs["cache_bytes"].max(),
    }


def _exposed(run: StudyRun) -> dict[str, float]:
    steps = run.trace_table("steps", ["wall_ns"])
    phases = run.trace_table("phases", ["phase", "preparation_ns", "comm_ns"]).groupby("phase").sum()
    spent = phases["preparation_ns"].astype("float64")
    if Phase.FETCH in spent.index:
        spent[Phase.FETCH] += float(phases.loc[Phase.FETCH, "comm_ns"])
    seconds = {
        f"{phase}_s_per_step": float(spent.get(phase, 0)) / len(steps) / NANOSECONDS_PER_S for phase in PREPARATION
    }
    total = {"preparation_s_per_step": sum(seconds.values())}
    return {"profiled_step_s": steps["wall_ns"].sum() / len(steps) / NANOSECONDS_PER_S} | seconds | total

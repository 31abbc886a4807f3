"""What slow links between the hosts cost."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import Study, StudyRun, without_traces
from anatomy.tables.common.timing import epoch_seconds
from anatomy.tables.common.traffic import exposure, sent_bytes

SUMMARY = (
    "every run: the bandwidth of its hosts' links, its epoch time, the share of communication that is not hidden by "
    "computation, the bytes that it sends, and the bandwidth that its large collectives had"
)
INPUTS = ("traces",)
OPTIONS = {"properties": {}, "required": []}
KEY = ("run",)
LARGE_BYTES = 1_000_000
"""Of smaller collectives, what a link's buffers let through at once is a share of the time that matters."""
SENT_ONCE = {"all_reduce": "bus_bandwidth", "all_to_all": "algorithm_bandwidth", "all_to_all_v": "bus_bandwidth"}
"""The bandwidth that is what crosses a rank's link each way; in an all-to-all ranks here send nothing to themselves."""
COLUMNS = RUN_COLUMNS | {
    "epoch_s": Column(
        "Float64", "s", "wall time of an epoch: median over epochs, warm-up out, of the slowest rank's; evaluation out"
    ),
    "profiled_step_s": Column(
        "Float64", "s", "wall time of a profiled step: mean over ranks and steps; profiler's warm-up out"
    ),
    "exposed_s_per_step": Column(
        "Float64",
        "s",
        "of it, communication while nothing is computed, waiting for other ranks in; missing without any communication",
    ),
    "exposed_share": Column("Float64", "", "exposed_s_per_step / profiled_step_s"),
    "wait_share": Column(
        "Float64",
        "",
        "of exposed communication, the share of it until the last rank had arrived; missing where some of it could not "
        "be matched across ranks",
    ),
    "sent_bytes_per_epoch": Column(
        "Float64",
        "B",
        "sent to other ranks while training, as far as the strategy counts it: sum over ranks and kinds, mean over "
        "epochs, warm-up and evaluation out",
    ),
    "seen_mbit": Column(
        "Float64",
        "Mbit/s",
        "bandwidth of all-reduces (bus bandwidth) and all-to-alls of 1 MB or more, from the last rank's arrival on: "
        "median over ranks and calls; missing where none was so large and matched across ranks",
    ),
}


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run; a run that was not profiled has no shares, and traces recorded elsewhere no epochs."""
    return as_frame([_row(run) for run in study.runs], COLUMNS)


def _row(run: StudyRun) -> dict[str, Any]:
    if not run.completed:
        return run.columns
    timed = {} if run.recorded else {"epoch_s": epoch_seconds(run), "sent_bytes_per_epoch": sent_bytes(run)}
    return run.columns | timed | ({} if without_traces(run) else exposure(run) | {"seen_mbit": _seen_mbit(run)})


def _seen_mbit(run: StudyRun) -> float | None:
    """Of collectives whose bandwidth is over the transfer alone, so that it is the links' and no lower bound."""
    calls = run.trace_table("collectives", ["kind", "bytes", "bandwidth_of", *set(SENT_ONCE.values())])
    large = calls[(calls["bytes"].fillna(0) >= LARGE_BYTES) & (calls["bandwidth_of"] == "transfer").fillna(False)]
    found = pd.concat([large.loc[large["kind"] == kind, column] for kind, column in SENT_ONCE.items()]).dropna()
    return None if found.empty else float(found.median()) * 8 / 1e6

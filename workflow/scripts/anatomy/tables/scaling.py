"""How epoch time changes with the number of ranks."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.errors import StudyError
from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import Study, StudyRun
from anatomy.tables.common.timing import epoch_seconds, throughput

SUMMARY = "epoch time, speedup and parallel efficiency against ranks, on one graph (strong) or growing ones (weak)"
INPUTS = ()
OPTIONS = {
    "properties": {
        "strong": {
            "type": "array",
            "items": {"type": "string"},
            "default": ["strong_scaling"],
            "description": "Experiments whose graph stays the same while ranks are added.",
        },
        "weak": {
            "type": "array",
            "items": {"type": "string"},
            "default": ["weak_scaling"],
            "description": "Experiments whose graph grows with the ranks.",
        },
    },
    "required": [],
}
KEY = ("mode", "experiment", "run")
COLUMNS = RUN_COLUMNS | {
    "mode": Column("string", "", "strong: the same graph for all ranks; weak: a graph that grows with the ranks"),
    "experiment": Column("string", "", "experiment whose series of ranks this is a point of"),
    "epoch_s": Column(
        "Float64", "s", "wall time of an epoch: median over epochs, warm-up out, of the slowest rank's; evaluation out"
    ),
    "train_nodes_per_s": Column(
        "Float64",
        "nodes/s",
        "seed nodes per second: sum over ranks over the slowest rank's time; median over epochs, warm-up out",
    ),
    "speedup": Column(
        "Float64",
        "",
        "against the 1-rank run of the same experiment, strategy, model and seed (strong: and graph): strong: its "
        "epoch_s over this epoch_s; weak: this train_nodes_per_s over its; missing where there is no such "
        "completed run",
    ),
    "efficiency": Column("Float64", "", "speedup / ranks"),
}


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per mode, experiment and run; runs named without an experiment are one strong series.

    Raises StudyError where a run's experiment is said to be neither strong nor weak.
    """
    modes = {"": "strong"} | dict.fromkeys(options["strong"], "strong") | dict.fromkeys(options["weak"], "weak")
    points = [(experiment, run) for run in study.runs for experiment in run.experiments or ("",)]
    unknown = sorted({experiment for experiment, _ in points} - modes.keys())
    if unknown:
        raise StudyError(
            f"table 'scaling': experiment {unknown[0]!r} is neither among the strong ones "
            f"({', '.join(options['strong'])}) nor the weak ones ({', '.join(options['weak'])}); name it with "
            "--strong or --weak"
        )
    rows = {(modes[experiment], experiment, run.name): _measured(run) for experiment, run in points}
    alone = {
        _series(mode, experiment, rows[mode, experiment, name]): row
        for (mode, experiment, name), row in rows.items()
        if row["ranks"] == 1
    }
    frame = [
        row
        | {"mode": mode, "experiment": experiment or None}
        | _gain(mode, row, alone.get(_series(mode, experiment, row)))
        for (mode, experiment, _), row in rows.items()
    ]
    return as_frame(frame, COLUMNS)


def _measured(run: StudyRun) -> dict[str, Any]:
    if not run.completed:
        return run.columns | {"epoch_s": None, "train_nodes_per_s": None}
    return run.columns | {"epoch_s": epoch_seconds(run), "train_nodes_per_s": throughput(run)}


def _series(mode: str, experiment: str, row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a run and the 1-rank run it is compared with have in common; not the partitioner: one part needs none."""
    graph = row["graph"] if mode == "strong" else None
    return mode, experiment, graph, row["strategy"], row["model"], row["condition"], row["seed"], row["platform"]


def _gain(mode: str, row: Mapping[str, Any], alone: Mapping[str, Any] | None) -> dict[str, float]:
    if alone is None or alone["epoch_s"] is None or row["epoch_s"] is None:
        return {}
    if mode == "strong":
        speedup = alone["epoch_s"] / row["epoch_s"]
    else:
        speedup = row["train_nodes_per_s"] / alone["train_nodes_per_s"]
    return {"speedup": speedup, "efficiency": speedup / row["ranks"]}

"""The files of the stages before: what a study table may read, found by the names of runs under one results folder."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from anatomy.errors import StudyError
from anatomy.files import open_array, read_json
from anatomy.platforms import PLATFORMS

COMPLETED = "completed"
NOT_PROFILED = "not profiled"
NANOSECONDS_PER_S = 1_000_000_000
SENT_COLUMNS = {kind: f"sent_{kind}_bytes" for kind in ("features", "requests", "activations", "gradients", "weights")}
"""Kinds of bytes that a rank hands to the transport, and their columns in `epochs.parquet`."""

_EPOCH_COLUMNS = [
    "rank",
    "epoch",
    "warmup",
    "steps",
    "train_nodes",
    "wall_s",
    "blocked_s",
    "loss",
    "val_accuracy",
    "test_accuracy",
    "own_val_accuracy",
    "own_test_accuracy",
    *SENT_COLUMNS.values(),
    "remote_nodes",
    "cache_hits",
    "cache_bytes",
    "peak_memory_bytes",
]


def read_table(path: Path, columns: Iterable[str]) -> pd.DataFrame:
    """Read the named columns of a Parquet file, with nullable dtypes.

    Raises StudyError where the file is absent, damaged or lacks a column.
    """
    try:
        return pd.read_parquet(path, columns=list(columns), dtype_backend="numpy_nullable")
    except FileNotFoundError:
        raise StudyError(f"{path}: not found; the step that writes it has not finished") from None
    except (OSError, ValueError, KeyError) as error:
        raise StudyError(
            f"{path}: cannot be read ({error}); expected Parquet with the columns {', '.join(columns)}; "
            "delete it and run the step that writes it again"
        ) from error


@dataclass(frozen=True)
class Partition:
    """The assignment and the quality measures of `results/partitions/{graph}/{partitioner}-{num_parts}/`."""

    folder: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return read_json(self.folder / "partition.json", "partition")

    @cached_property
    def assignment(self) -> np.ndarray:
        """int32 [N]: the part of each node, memory-mapped."""
        return open_array(self.folder, "assignment", self.manifest)


@dataclass(frozen=True)
class StudyRun:
    """One run under a results folder, or traces that were recorded elsewhere, of which nothing but traces is known.

    Its files are read when they are asked for, and only once.
    """

    results: Path
    name: str
    experiments: tuple[str, ...] = ()

    @cached_property
    def spec(self) -> dict[str, Any]:
        """`run.json`."""
        return read_json(self.results / "runs" / self.name / "run.json", "run")

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """`timed/metrics.json`."""
        return read_json(self.results / "runs" / self.name / "timed" / "metrics.json", "metrics")

    @cached_property
    def recorded(self) -> bool:
        """Whether these are traces recorded elsewhere: there are trace tables of the name, and no run."""
        return not (self.results / "runs" / self.name).exists() and (self.results / "traces" / self.name).exists()

    @property
    def completed(self) -> bool:
        return self.recorded or self.metrics["status"] == COMPLETED

    @cached_property
    def epochs(self) -> pd.DataFrame:
        """`timed/epochs.parquet` of a completed run: one row per rank and epoch."""
        return read_table(self.results / "runs" / self.name / "timed" / "epochs.parquet", _EPOCH_COLUMNS)

    @property
    def measured_epochs(self) -> pd.DataFrame:
        """The epochs whose bytes count: all but the warm-up."""
        return self.epochs[~self.epochs["warmup"]]

    @property
    def resumptions(self) -> int:
        """How many times the run was interrupted and went on from a checkpoint."""
        return len(self.metrics.get("resumed_at", []))

    @property
    def timed_epochs(self) -> pd.DataFrame:
        """The epochs whose times count: all but the warm-up, and none of a run that was resumed.

        An interrupted measurement is repeated, never put together from pieces.
        """
        return self.measured_epochs.iloc[:0] if self.resumptions else self.measured_epochs

    @cached_property
    def accesses(self) -> pd.DataFrame:
        """`timed/accesses.parquet`: remote feature rows asked for, by rank, epoch and node."""
        path = self.results / "runs" / self.name / "timed" / "accesses.parquet"
        return read_table(path, ["rank", "epoch", "node", "count"])

    @cached_property
    def traces(self) -> dict[str, Any] | None:
        """`traces.json`, or None where the run was not profiled."""
        path = self.results / "traces" / self.name / "traces.json"
        return read_json(path, "traces") if path.is_file() else None

    def trace_table(self, table: str, columns: Iterable[str]) -> pd.DataFrame:
        """One of the trace tables `steps`, `phases`, `collectives`, …"""
        return read_table(self.results / "traces" / self.name / f"{table}.parquet", columns)

    @cached_property
    def partition(self) -> Partition:
        folder = f"{self.spec['partitioner']}-{self.spec['num_parts']}"
        return Partition(self.results / "partitions" / self.spec["graph"] / folder)

    @cached_property
    def graph_folder(self) -> Path:
        return self.results / "graphs" / self.spec["graph"]

    @cached_property
    def graph(self) -> dict[str, Any]:
        """`graph.json`, checked to be the graph that the partition was made for."""
        manifest = read_json(self.graph_folder / "graph.json", "graph")
        made_for = self.partition.manifest["graph_identity"]
        if manifest["identity"] != made_for:
            raise StudyError(
                f"{self.partition.folder / 'partition.json'}: made for another graph (found identity {made_for[:12]}…, "
                f"{self.graph_folder} has {manifest['identity'][:12]}…); partition the graph again"
            )
        return manifest

    @property
    def columns(self) -> dict[str, Any]:
        """The values of RUN_COLUMNS; a column that traces recorded elsewhere have no value for is absent."""
        if self.recorded:
            platform = PLATFORMS.get(self.traces.get("trace_kind"))
            ranks = self.traces.get("world_size")
            return {"run": self.name, "ranks": ranks, "platform": platform, "status": self.traces["status"]}
        spec = self.spec
        return {
            "run": self.name,
            "graph": spec["graph"],
            "partitioner": spec["partitioner"],
            "num_parts": spec["num_parts"],
            "strategy": spec["strategy"]["name"],
            "method": spec["strategy"]["method"],
            "model": spec["model"]["name"],
            "ranks": spec["ranks"],
            "hosts": spec.get("hosts", 1),
            "link_mbit": spec.get("link_mbit"),
            "condition": (spec.get("condition") or {}).get("name"),
            "seed": spec["seed"],
            "oversubscribed": self._oversubscribed,
            "platform": self._platform,
            "status": self.metrics["status"],
        }

    @property
    def _oversubscribed(self) -> bool | None:
        """None where the run's machine is not known."""
        machine, training = self.metrics.get("machine") or {}, self.spec["training"]
        ranks = self.spec["ranks"] // self.spec.get("hosts", 1)
        if training["device"] == "cpu":
            workers, places = ranks * training["threads_per_rank"], machine.get("cores")
        else:
            workers, places = ranks, machine.get("gpus")
        return None if places is None else workers > places

    @property
    def _platform(self) -> str:
        training = self.spec["training"]
        device = "CPU" if training["device"] == "cpu" else "GPU"
        return f"{device} and {'Gloo' if training['communication'] == 'gloo' else 'NCCL'}"


@dataclass(frozen=True)
class Study:
    """What one table is made from: runs, each once, and partitions as `{graph}/{partitioner}-{num_parts}`.

    `left_out` are runs that cannot be measured here, by what they need; there is nothing of them but their names.
    """

    results: Path
    runs: tuple[StudyRun, ...]
    partitions: tuple[str, ...] = ()
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        results: Path,
        pairs: Iterable[tuple[str, str]],
        partitions: Iterable[str] = (),
        left_out: Mapping[str, Sequence[str]] | None = None,
    ) -> "Study":
        """From (experiment, run) pairs; an empty experiment name means that none was given."""
        experiments: dict[str, list[str]] = {}
        for experiment, run in pairs:
            experiments.setdefault(run, []).append(experiment)
        runs = tuple(
            StudyRun(results, run, tuple(dict.fromkeys(filter(None, names)))) for run, names in experiments.items()
        )
        return cls(results, runs, tuple(dict.fromkeys(partitions)), left_out or {})


def read_runs_file(path: Path) -> list[tuple[str, str]]:
    """(experiment, run) pairs from lines `experiment<TAB>run` or `run`; empty lines are skipped.

    Raises StudyError where the file is absent or a line has more than two fields.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise StudyError(f"{path}: not found; give a file with lines `experiment<TAB>run`") from None
    pairs = []
    for number, line in enumerate(lines, start=1):
        fields = line.strip().split("\t")
        if len(fields) > 2:
            raise StudyError(
                f"{path}, line {number}: found {len(fields)} fields, expected `experiment<TAB>run` or `run`"
            )
        if fields != [""]:
            pairs.append((fields[0] if len(fields) == 2 else "", fields[-1]))
    return pairs


def without_traces(run: StudyRun) -> list[dict[str, Any]]:
    """The one row, without numbers, of a run that has no profiled steps; empty for a run that has."""
    if not run.completed:
        return [run.columns]
    if run.traces is not None and run.traces["status"] != COMPLETED:
        return [run.columns | {"status": run.traces["status"]}]
    if run.traces is None or not run.traces["num_steps"]:
        return [run.columns | {"status": NOT_PROFILED}]
    return []

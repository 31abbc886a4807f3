"""From a folder of traces to the trace tables: what the rule `parse_trace` runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from anatomy.errors import StudyError
from anatomy.files import staged, write_json
from anatomy.program import measured, versions
from anatomy.traces.annotations import (
    PHASES,
    PhaseTimeline,
    find_phases,
    find_steps,
    unknown_phases,
    whole_window,
)
from anatomy.traces.collectives import match_collectives
from anatomy.traces.communication import find_collectives, is_call, is_work
from anatomy.traces.decomposition import computing_operators, decompose, find_activity
from anatomy.traces.discovery import COMPLETED, Job, read_job, read_profile_manifest
from anatomy.traces.intervals import clip, total_length
from anatomy.traces.naming import Category
from anatomy.traces.operators import operator_times
from anatomy.traces.reading import GPU_KINDS
from anatomy.traces.summaries import annotations_within, interval_table, phase_table, step_table, stream_table
from anatomy.traces.tables import write_tables

MANIFEST = "traces.json"

Steps = dict[int, tuple[int, int]]


def parse_traces(folder: Path, out: Path, run: str | None = None, expected_ranks: int | None = None) -> dict[str, Any]:
    """Read the traces of one job and write its trace tables to `out`; returns the manifest.

    Where the folder holds a profiled run of the study that did not complete, the tables are empty and the manifest says
    why. All ranks of a completed one must be there.

    Raises StudyError where the traces can't be read or don't belong together; `out` is then as it was.
    """
    if folder.resolve() == out.resolve():
        raise StudyError(f"{out}: --out must be another folder than --traces, whose JSON files are read as traces")
    profile = read_profile_manifest(folder)
    status = COMPLETED if profile is None else profile.get("status")
    manifest: dict[str, Any] = {"kind": "traces", "run": run or (profile or {}).get("run")}
    with measured(manifest):
        if status == COMPLETED:
            if expected_ranks is None and profile is not None:
                expected_ranks = profile.get("ranks")
            tables, facts = analyse(read_job(folder, expected_ranks))
        else:
            tables, facts = {}, _nothing(str(status), (profile or {}).get("reason"))
    with staged(out, MANIFEST) as stage:
        manifest |= {"status": status} | facts | {"tables": write_tables(stage, tables)}
        manifest["versions"] = versions("numpy", "pandas", "pyarrow", "orjson")
        write_json(stage / MANIFEST, manifest)
    return manifest


@dataclass(frozen=True)
class _Rank:
    """One rank's events, the steps to look at, and its phases."""

    events: pd.DataFrame
    steps: Steps
    phases: pd.DataFrame
    timeline: PhaseTimeline


def analyse(job: Job) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """The tables of a job by name, and the facts about it that the manifest states."""
    notes = list(job.notes)
    steps, annotated = _common_steps(job, notes)
    ranks: dict[int, _Rank] = {}
    for number, trace in job.traces.items():
        phases = find_phases(trace.events)
        ranks[number] = _Rank(trace.events, steps[number], phases, PhaseTimeline(phases))
    found = {number: find_collectives(rank.events, rank.steps, rank.timeline) for number, rank in ranks.items()}
    matched, more = match_collectives(found, list(range(job.world_size)))
    notes += more + _phase_notes(ranks)
    gpu = any(rank.events["kind"].isin(GPU_KINDS).any() for rank in ranks.values())
    parts: dict[str, list[pd.DataFrame]] = {"steps": [], "phases": [], "operators": [], "intervals": []}
    for number, rank in ranks.items():
        for table, frame in _rank_tables(rank, matched[matched["rank"] == number], gpu).items():
            parts[table].append(frame.assign(rank=number))
    tables = {table: pd.concat(frames, ignore_index=True) for table, frames in parts.items()}
    tables["collectives"] = _collective_table(matched, job.world_size)
    check_sums(tables["steps"], tables["phases"])
    return tables, _facts(job, tables, gpu, notes) | {"steps_annotated": annotated}


def check_sums(steps: pd.DataFrame, phases: pd.DataFrame) -> None:
    """Assert that the parts of every step add up to its wall time, to the nanosecond, by category and by phase."""
    exposed = steps["comm_exposed_ns"].fillna(0)
    parts = steps["compute_ns"] + exposed + steps["preparation_ns"] + steps["idle_ns"] + steps["other_ns"]
    assert (parts == steps["wall_ns"]).all(), "the categories of a step do not add up to its wall time"
    preparation = steps[[f"prep_{phase}_ns" for phase in ("sample", "fetch", "gather", "copy")]].sum(axis=1)
    assert (preparation == steps["preparation_ns"]).all(), "the phases of preparation do not add up to it"
    split = steps["comm_exposed_wait_ns"] + steps["comm_exposed_transfer_ns"]
    assert (split == steps["comm_exposed_ns"]).all(), "waiting and transfer do not add up to exposed communication"
    totals = phases.groupby(["rank", "step"])["total_ns"].sum()
    walls = steps.set_index(["rank", "step"])["wall_ns"]
    assert (totals.reindex(walls.index) == walls).all(), "the phases of a step do not add up to its wall time"


def _rank_tables(rank: _Rank, collectives: pd.DataFrame, gpu: bool) -> dict[str, pd.DataFrame]:
    """Tables of one rank, without the column rank; `collectives` are its rows of the matched ones."""
    events, steps = rank.events, rank.steps
    activity = find_activity(events, rank.phases, rank.timeline, gpu)
    pieces = decompose(steps, activity, rank.timeline, collectives)
    communicates = any(total_length(clip(activity.communication, *window)) > 0 for window in steps.values())
    computing = computing_operators(events, rank.phases, is_work(events) | is_call(events))
    streams = stream_table(events, steps, rank.timeline)
    return {
        "steps": step_table(pieces, communicates),
        "phases": phase_table(pieces, communicates, annotations_within(rank.phases, steps)),
        "operators": operator_times(events, steps, computing),
        "intervals": pd.concat([interval_table(pieces), streams], ignore_index=True),
    }


def _phase_notes(ranks: Mapping[int, _Rank]) -> list[str]:
    notes = []
    if not any(len(rank.phases) for rank in ranks.values()):
        notes.append("no phase annotations: all is phase other, and preparation is only what copies of the GPU show")
    for number, rank in ranks.items():
        unknown = unknown_phases(rank.events)
        if unknown:
            notes.append(f"rank {number}: phases {', '.join(unknown)} are not among the study's and count as other")
    return notes


def _common_steps(job: Job, notes: list[str]) -> tuple[dict[int, Steps], bool]:
    """The steps that every rank has, by rank, and whether they are annotated ones."""
    steps = {rank: find_steps(trace.events) for rank, trace in job.traces.items()}
    without = [rank for rank, found in steps.items() if not found]
    if len(without) == len(steps):
        notes.append("no ProfilerStep annotations: the whole window of each trace counts as one step, number 0")
        return {rank: whole_window(trace.events) for rank, trace in job.traces.items()}, False
    common = set.intersection(*(set(found) for found in steps.values()))
    if not common:
        listed = "; ".join(f"rank {rank}: {sorted(found) or 'none'}" for rank, found in steps.items())
        raise StudyError(
            f"{next(iter(job.traces.values())).path.parent}: the ranks' traces have no step in common ({listed}); "
            "expected traces of the same steps; move those of other steps out of the folder"
        )
    dropped = sorted(set().union(*steps.values()) - common)
    if dropped:
        notes.append(f"steps {', '.join(map(str, dropped))} are not in the traces of all ranks and are left out")
    kept = {rank: {step: found[step] for step in found if step in common} for rank, found in steps.items()}
    return kept, True


def _collective_table(matched: pd.DataFrame, world_size: int) -> pd.DataFrame:
    group_size = matched["group_size"].fillna(world_size)
    phase = np.array(PHASES, dtype=object)[matched["phase"].astype(int)]
    return matched.assign(group_size=group_size, phase=phase)


def _facts(job: Job, tables: dict[str, pd.DataFrame], gpu: bool, notes: list[str]) -> dict[str, Any]:
    """What the manifest says about the job; adds to `notes` what holds for its kind."""
    communicates = bool(tables["steps"]["comm_exposed_ns"].notna().any())
    nccl = any(is_work(trace.events[trace.events["kind"] == "kernel"]).any() for trace in job.traces.values())
    kind = ("cuda-nccl" if nccl else "cuda") if gpu else ("cpu-gloo" if communicates else "cpu")
    if not gpu:
        notes.append("no GPU: nothing in the trace shows that a CPU is idle, so idle is 0 and other takes what is left")
    operators = tables["operators"]
    unclassified = operators[operators["category"] == Category.UNCLASSIFIED]["self_ns"].sum()
    total = operators["self_ns"].sum()
    return {
        "trace_kind": kind,
        "ranks": list(job.traces),
        "missing_ranks": job.missing_ranks,
        "world_size": job.world_size,
        "num_steps": int(tables["steps"]["step"].nunique()),
        "unclassified_share": float(unclassified / total) if total else None,
        "unmatched_share": _share(~tables["collectives"]["matched"]),
        "files": {str(rank): trace.path.name for rank, trace in job.traces.items()},
        "notes": notes,
    }


def _share(chosen: pd.Series) -> float | None:
    return float(chosen.mean()) if len(chosen) else None


def _nothing(status: str, reason: str | None) -> dict[str, Any]:
    """What the manifest says of a profiled run that did not complete and was kept as data."""
    why = f": {reason}" if reason else ""
    return {
        "trace_kind": None,
        "ranks": [],
        "missing_ranks": [],
        "world_size": None,
        "num_steps": 0,
        "steps_annotated": False,
        "unclassified_share": None,
        "unmatched_share": None,
        "files": {},
        "notes": [f"the profiled run ended as {status!r}{why}; there are no traces to read"],
    }

"""From the records of all ranks to the tables of the job."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pandas as pd

from anatomy.errors import StudyError
from anatomy.traces.job.bandwidth import add_bandwidths
from anatomy.traces.job.clocks import applied_offsets, estimate_clocks
from anatomy.traces.job.critical_path import critical_path
from anatomy.traces.job.matching import match_collectives, unmatched_share
from anatomy.traces.job.times import time_tables
from anatomy.traces.job.waiting import impossible_notes, split, split_waiting
from anatomy.traces.naming import Category
from anatomy.traces.rank.annotations import PHASES
from anatomy.traces.rank.decomposition import CATEGORIES
from anatomy.traces.rank.queueing import UNKNOWN
from anatomy.traces.rank.record import Columns, RankRecord

Tables = dict[str, pd.DataFrame]
Facts = dict[str, Any]


def combine(
    records: Mapping[int, RankRecord], world_size: int, notes: list[str], recorded_clocks: Mapping[str, Any] | None
) -> tuple[dict[int, RankRecord], Tables, Facts, dict[int, int]]:
    """The records cut to the steps that all ranks have; the tables of the job; what the manifest states about it; and
    the offset in ns to take from each rank's times to have them on the reference rank's clock.

    `world_size` is the number of ranks of the job, those without a trace included; `notes` is what was found so far;
    `recorded_clocks` are the clocks that ranks told each other while they ran.

    Raises StudyError where the ranks have no step in common.
    """
    notes = [*notes, *(f"rank {rank}: {note}" for rank, record in records.items() for note in record.notes)]
    records = common_steps(records, notes)
    matched, match_notes = match_collectives(
        {rank: record.collectives for rank, record in records.items()}, range(world_size)
    )
    clocks, clock_notes = estimate_clocks(matched, records, recorded_clocks)
    offsets = applied_offsets(clocks)
    matched = add_bandwidths(split_waiting(matched, offsets))
    notes += match_notes + clock_notes + impossible_notes(matched)
    states = {
        rank: split(record.communicating, matched[matched["rank"] == rank], record.gpu)
        for rank, record in records.items()
    }
    tables = dict(zip(("steps", "phases"), time_tables(records, states), strict=True))
    tables |= {name: _stacked(records, name) for name in ("operators", "queueing", "idle")}
    tables["queueing"] = tables["queueing"].astype("Int64").mask(tables["queueing"] == UNKNOWN)
    tables["intervals"] = _intervals(records)
    tables["clocks"] = clocks
    tables["collectives"] = matched.assign(
        group_size=matched["group_size"].fillna(world_size), phase=_named(matched["phase"], PHASES)
    )
    stretches = pd.DataFrame(_in_words(_stacked(records, "stretches")))
    tables["critical_path"] = critical_path(stretches, tables["collectives"], offsets)
    facts = _facts(records, tables, world_size, notes)
    tables["steps"] = tables["steps"].assign(trace_kind=facts["trace_kind"], annotated=facts["steps_annotated"])
    return records, tables, facts, offsets


def common_steps(records: Mapping[int, RankRecord], notes: list[str]) -> dict[int, RankRecord]:
    """The records cut to the steps that every rank has; adds to `notes` which were left out.

    Raises StudyError where there is none.
    """
    without = [rank for rank, record in records.items() if not record.annotated]
    if len(without) == len(records):
        notes.append("no ProfilerStep annotations: the whole window of each trace counts as one step, number 0")
        return dict(records)
    numbers = {rank: set(record.steps if record.annotated else ()) for rank, record in records.items()}
    common = set.intersection(*numbers.values())
    if not common:
        listed = "; ".join(f"rank {rank}: {sorted(found) or 'none'}" for rank, found in numbers.items())
        raise StudyError(
            f"{next(iter(records.values())).path.parent}: the ranks' traces have no step in common ({listed}); "
            "expected traces of the same steps; move those of other steps out of the folder"
        )
    dropped = sorted(set().union(*numbers.values()) - common)
    if not dropped:
        return dict(records)
    notes.append(f"steps {', '.join(map(str, dropped))} are not in the traces of all ranks and are left out")
    return {rank: _cut(record, common) for rank, record in records.items()}


def nothing(status: str, reason: str | None) -> Facts:
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


def _cut(record: RankRecord, steps: set[int]) -> RankRecord:
    """A record of some of its steps: every column of a table that has steps is cut."""
    tables = {field.name: getattr(record, field.name) for field in fields(record)}
    cut = {
        name: {column: values[np.isin(table["step"], list(steps))] for column, values in table.items()}
        for name, table in tables.items()
        if isinstance(table, dict) and "step" in table
    }
    kept = {number: window for number, window in record.steps.items() if number in steps}
    return replace(record, steps=kept, **cut)


def _intervals(records: Mapping[int, RankRecord]) -> pd.DataFrame:
    streams = tuple(dict.fromkeys(name for record in records.values() for name in record.streams))
    place = {name: code for code, name in enumerate(streams)}
    codes = [np.array([place[name] for name in record.streams], dtype=np.int16) for record in records.values()]
    parts = [
        record.intervals
        | {
            "stream": code[record.intervals["stream"]],
            "rank": np.full(len(record.intervals["step"]), rank, dtype=np.int32),
        }
        for (rank, record), code in zip(records.items(), codes, strict=True)
    ]
    # The one table with millions of rows: its columns are put together once and not copied again.
    columns = (
        parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    )
    return pd.DataFrame(_in_words(columns, streams), copy=False)


def _in_words(columns: Columns, streams: tuple[str, ...] = ()) -> dict[str, Any]:
    """Columns with the names of categories, phases and streams in place of their codes."""
    names = {"category": CATEGORIES, "phase": PHASES, "stream": streams}
    return {name: _named(values, names[name]) if name in names else values for name, values in columns.items()}


def _stacked(records: Mapping[int, RankRecord], table: str) -> pd.DataFrame:
    """One table of all records, with a column rank."""
    return _concat(records, lambda _, record: getattr(record, table))


def _concat(records: Mapping[int, RankRecord], columns: Callable[[int, RankRecord], Columns]) -> pd.DataFrame:
    parts = [pd.DataFrame(columns(rank, record)).assign(rank=rank) for rank, record in records.items()]
    return pd.concat(parts, ignore_index=True)


def _named(codes: Any, names: tuple[str, ...]) -> pd.Categorical:
    """Names in place of codes, without a string per row."""
    return pd.Categorical.from_codes(np.asarray(codes), categories=list(names))


def _facts(records: Mapping[int, RankRecord], tables: Tables, world_size: int, notes: list[str]) -> Facts:
    """What the manifest says about the job; adds to `notes` what holds for its kind."""
    gpu = any(record.gpu for record in records.values())
    nccl = any(record.nccl for record in records.values())
    communicates = any(record.communicates for record in records.values())
    kind = ("cuda-nccl" if nccl else "cuda") if gpu else ("cpu-gloo" if communicates else "cpu")
    if not any(len(record.phases["phase"]) for record in records.values()):
        notes.append("no phase annotations: all is phase other, and nothing counts as preparation")
    if not gpu:
        notes.append("no GPU: nothing in the trace shows that a CPU is idle, so idle is 0 and other takes what is left")
    elif not all(record.gpu for record in records.values()):
        without = ", ".join(str(rank) for rank, record in records.items() if not record.gpu)
        notes.append(f"rank {without}: no work on a GPU, though other ranks do some; taken apart as one without a GPU")
    operators = tables["operators"]
    unclassified = operators.loc[operators["category"] == Category.UNCLASSIFIED, "self_ns"].sum()
    total = operators["self_ns"].sum()
    return {
        "trace_kind": kind,
        "ranks": list(records),
        "missing_ranks": sorted(set(range(world_size)) - set(records)),
        "world_size": world_size,
        "num_steps": int(tables["steps"]["step"].nunique()),
        "steps_annotated": all(record.annotated for record in records.values()),
        "unclassified_share": float(unclassified / total) if total else None,
        "unmatched_share": unmatched_share(tables["collectives"]),
        "files": {str(rank): record.path.name for rank, record in records.items()},
        "notes": notes,
    }

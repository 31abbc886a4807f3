"""From the records of all ranks to the tables of the job."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from anatomy.errors import StudyError
from anatomy.traces.columns import MISSING, Columns, Named, concatenated, take
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
from anatomy.traces.rank.record import RankRecord

Tables = dict[str, dict[str, np.ndarray | Named]]
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
    rows, match_notes = match_collectives(
        {rank: record.collectives for rank, record in records.items()}, range(world_size)
    )
    clocks, clock_notes = estimate_clocks(rows, records, recorded_clocks)
    offsets = applied_offsets(clocks)
    rows = add_bandwidths(split_waiting(rows, offsets))
    notes += match_notes + clock_notes + impossible_notes(rows)
    states = {
        rank: split(record.communicating, take(rows, rows["rank"] == rank), record.gpu)
        for rank, record in records.items()
    }
    steps, phases = time_tables(records, states)
    operators = _stacked(records, "operators")
    facts = _facts(records, rows, operators, world_size, notes)
    tables = {
        "steps": steps | _kind_of_steps(facts, len(steps["rank"])),
        "phases": phases,
        # A group of unstated size is taken for all of the job.
        "collectives": rows | {"group_size": np.where(rows["group_size"] == MISSING, world_size, rows["group_size"])},
        "clocks": clocks,
        "operators": operators,
        "queueing": _with_missing(_stacked(records, "queueing")),
        "idle": _stacked(records, "idle"),
        "intervals": _intervals(records),
        "critical_path": critical_path(_stacked(records, "stretches"), rows, offsets),
    }
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


def _kind_of_steps(facts: Facts, num_steps: int) -> dict[str, np.ndarray | Named]:
    """What the rows of `steps` say of the job that they are from."""
    kind = Named(np.zeros(num_steps, dtype=np.int8), (facts["trace_kind"],))
    return {"trace_kind": kind, "annotated": np.full(num_steps, facts["steps_annotated"])}


def _with_missing(columns: Columns) -> Columns:
    """Columns in which what a rank's record has as `UNKNOWN` is `MISSING`."""
    return {name: np.where(column == UNKNOWN, MISSING, column) for name, column in columns.items()}


def _intervals(records: Mapping[int, RankRecord]) -> dict[str, np.ndarray | Named]:
    streams = tuple(dict.fromkeys(name for record in records.values() for name in record.streams))
    place = {name: code for code, name in enumerate(streams)}
    parts = []
    for rank, record in records.items():
        codes = np.array([place[name] for name in record.streams], dtype=np.int16)
        own = record.intervals
        parts.append(own | {"stream": codes[own["stream"]], "rank": np.full(len(own["step"]), rank, dtype=np.int32)})
    columns = concatenated(parts)
    names = {"category": CATEGORIES, "phase": PHASES, "stream": streams}
    return columns | {name: Named(columns[name], words) for name, words in names.items()}


def _stacked(records: Mapping[int, RankRecord], table: str) -> Columns:
    """One table of all records, with a column rank."""
    parts = []
    for rank, record in records.items():
        own = getattr(record, table)
        parts.append(own | {"rank": np.full(len(own["step"]), rank)})
    return concatenated(parts)


def _facts(
    records: Mapping[int, RankRecord], rows: Columns, operators: Columns, world_size: int, notes: list[str]
) -> Facts:
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
    unclassified = operators["self_ns"][operators["category"] == Category.UNCLASSIFIED].sum()
    total = operators["self_ns"].sum()
    return {
        "trace_kind": kind,
        "ranks": list(records),
        "missing_ranks": sorted(set(range(world_size)) - set(records)),
        "world_size": world_size,
        "num_steps": len({step for record in records.values() for step in record.steps}),
        "steps_annotated": all(record.annotated for record in records.values()),
        "unclassified_share": float(unclassified / total) if total else None,
        "unmatched_share": unmatched_share(rows),
        "files": {str(rank): record.path.name for rank, record in records.items()},
        "notes": notes,
    }

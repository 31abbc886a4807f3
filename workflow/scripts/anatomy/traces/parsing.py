"""From a folder of traces to the trace tables: what the rule `parse_trace` runs."""

import os
import pickle
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from anatomy.errors import StudyError
from anatomy.files import staged, write_json
from anatomy.memory import give_back
from anatomy.program import measured, versions
from anatomy.traces.options import ParseOptions
from anatomy.traces.rank.examine import examine
from anatomy.traces.rank.record import RankRecord
from anatomy.traces.reading.discovery import COMPLETED, assign_ranks, find_trace_files, read_profile_manifest
from anatomy.traces.reading.trace import read_trace

MANIFEST = "traces.json"
TIMELINE = "timeline.json.gz"

SMALL_JOB_BYTES = 2_000_000
"""Traces that are together no larger than this are read by one process: starting others would take longer."""

AFTER_READING = (
    "anatomy.traces.job.combine",
    "anatomy.traces.job.timeline",
    "anatomy.traces.tables",
    "importlib.metadata",
)
"""What is imported only once the processes that read have been started."""


def parse_traces(
    folder: Path, out: Path, run: str | None = None, options: ParseOptions | None = None
) -> dict[str, Any]:
    """Read the traces of one job and write its trace tables and timeline to `out`; returns the manifest.

    Where the folder holds a profiled run of the study that did not complete, the tables are empty and the manifest says
    why. All ranks of a completed one must be there.

    Raises StudyError where the traces can't be read or don't belong together; `out` is then as it was.
    """
    if folder.resolve() == out.resolve():
        raise StudyError(f"{out}: --out must be another folder than --traces, whose JSON files are read as traces")
    options = options or ParseOptions()
    profile = read_profile_manifest(folder) or {}
    status = profile.get("status", COMPLETED)
    if options.expected_ranks is None:
        options = replace(options, expected_ranks=profile.get("ranks"))
    manifest: dict[str, Any] = {"kind": "traces", "run": run or profile.get("run"), "status": status}
    with measured(manifest):
        ranks, world_size, notes = _read_job(folder, options) if status == COMPLETED else ({}, None, [])
        from anatomy.traces.job.combine import combine, nothing
        from anatomy.traces.job.timeline import write_timeline
        from anatomy.traces.tables import write_tables

        if status == COMPLETED:
            ranks, tables, facts, offsets = combine(ranks, world_size, notes, profile.get("clocks"))
        else:
            tables, facts, offsets = {}, nothing(str(status), profile.get("reason")), {}
    with staged(out, MANIFEST) as stage:
        manifest |= facts | {"tables": write_tables(stage, tables)}
        if ranks:
            write_timeline(stage / TIMELINE, ranks, tables, offsets, facts)
        manifest["versions"] = versions("numpy", "pyarrow", "msgspec", "isal")
        write_json(stage / MANIFEST, manifest)
    return manifest


def _read_job(folder: Path, options: ParseOptions) -> tuple[dict[int, RankRecord], int, list[str]]:
    """What there is to know of each rank, in the order of ranks; the number of ranks of the job; and notes."""
    records = examine_files(find_trace_files(folder, options), options)
    stated = [(record.path, record.rank, record.world_size) for record in records]
    index_of, world_size, notes = assign_ranks(folder, stated, options)
    return {rank: records[index_of[rank]] for rank in sorted(index_of)}, world_size, notes


def examine_files(files: Sequence[Path], options: ParseOptions) -> list[RankRecord]:
    """The records of trace files, in their order.

    Large ones are read by as many processes as there are cores, and even a single one by a process of its own, which
    gives its memory back before the tables are made.
    """
    sizes = {path: path.stat().st_size for path in files}
    if sum(sizes.values()) <= SMALL_JOB_BYTES:
        return [_examine_file(path, options) for path in files]
    workers = min(len(files), len(os.sched_getaffinity(0)))
    # The largest first, so that no process begins a long one when the others have finished.
    order = sorted(files, key=sizes.__getitem__, reverse=True)
    try:
        with (
            TemporaryDirectory(prefix="anatomy-traces-") as spool,
            ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool,
        ):
            spooled = pool.map(partial(_spool_file, options=options, spool=Path(spool)), range(len(order)), order)
            # The processes are started from a small one; while they read, this one loads what comes after.
            for module in AFTER_READING:
                import_module(module)
            records = dict(zip(order, map(_unspooled, spooled), strict=True))
    except BrokenProcessPool as error:
        raise StudyError(
            f"{files[0].parent}: a process that read one of {len(files)} traces was killed, probably for want of "
            "memory; free some, or let fewer cores read them (taskset)"
        ) from error
    return [records[path] for path in files]


def _spool_file(number: int, path: Path, options: ParseOptions, spool: Path) -> Path:
    """Write the record of a trace to a file: a pipe would have it in memory once more on either side."""
    with open(spool / str(number), "wb") as file:
        pickle.dump(_examine_file(path, options), file, protocol=pickle.HIGHEST_PROTOCOL)
    give_back()
    return spool / str(number)


def _unspooled(spooled: Path) -> RankRecord:
    with open(spooled, "rb") as file:
        record = pickle.load(file)
    spooled.unlink()
    return record


def _examine_file(path: Path, options: ParseOptions) -> RankRecord:
    trace = read_trace(path, options)
    give_back()
    record = examine(trace, options)
    del trace
    give_back()
    return record

"""Which files of a folder are traces, and whose."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anatomy.errors import StudyError
from anatomy.files import read_json
from anatomy.traces.reading import RankTrace, read_trace

PROFILE_MANIFEST = "manifest.json"
"""Lies beside the traces of the study's own runs; says how the run ended."""

COMPLETED = "completed"

TRACE_SUFFIXES = (".json", ".json.gz")
RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Job:
    """The traces of one job: those present by rank, and how many ranks there were.

    `world_size` is what the traces or the caller say, else the highest rank plus one, and `notes` then say so.
    """

    traces: dict[int, RankTrace]
    world_size: int
    notes: list[str]

    @property
    def missing_ranks(self) -> list[int]:
        """Ranks of the job without a trace."""
        return sorted(set(range(self.world_size)) - set(self.traces))


def find_trace_files(folder: Path) -> list[Path]:
    """The trace files in a folder, sorted by name; a path to a file is that file.

    Raises StudyError where there is none.
    """
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise StudyError(f"{folder}: no such folder; --traces names a folder of Kineto traces, one file per rank")
    files = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    found = sorted(path for path in files if path.name.endswith(TRACE_SUFFIXES) and path.name != PROFILE_MANIFEST)
    if not found:
        raise StudyError(
            f"{folder}: found no {' or '.join(f'*{suffix}' for suffix in TRACE_SUFFIXES)}, expected one per rank"
        )
    return found


def read_profile_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of the study's own profiled run; None beside traces from elsewhere."""
    path = folder / PROFILE_MANIFEST
    if not folder.is_dir() or not path.is_file():
        return None
    manifest = read_json(path)
    return manifest if manifest.get("kind") == "profile" else None


def read_job(folder: Path, expected_ranks: int | None) -> Job:
    """Read all traces of a folder.

    Raises StudyError where a file can't be read, a file's rank is unknown or contradictory, two files are of one rank,
    the files disagree about the number of ranks, or fewer ranks are present than `expected_ranks`.
    """
    traces: dict[int, RankTrace] = {}
    notes: list[str] = []
    files = find_trace_files(folder)
    for path in files:
        trace = read_trace(path)
        rank = _rank_of(trace, alone=len(files) == 1)
        if rank in traces:
            raise StudyError(
                f"{folder}: {traces[rank].path.name} and {path.name} are both of rank {rank}; expected one trace per "
                "rank of one job; move the others out of the folder"
            )
        traces[rank] = trace
        notes += [f"rank {rank}: {note}" for note in trace.notes]
    world_size = _world_size(folder, traces, expected_ranks, notes)
    return Job(dict(sorted(traces.items())), world_size, notes)


def _rank_of(trace: RankTrace, alone: bool) -> int:
    """The rank that the file or its name says; 0 for the only file of a folder where neither does."""
    named = RANK_IN_NAME.search(trace.path.name)
    if trace.rank is not None:
        if named and int(named[1]) != trace.rank:
            raise StudyError(
                f"{trace.path}: distributedInfo says rank {trace.rank}, the name says {named[1]}; rename the file to "
                f"rank{trace.rank}.json or rank{trace.rank}.json.gz"
            )
        return trace.rank
    if named:
        return int(named[1])
    if alone:
        return 0
    raise StudyError(
        f"{trace.path}: neither distributedInfo nor the name says which rank this is; "
        "rename it, for example to rank0.json.gz"
    )


def _world_size(folder: Path, traces: dict[int, RankTrace], expected: int | None, notes: list[str]) -> int:
    stated = {trace.world_size for trace in traces.values() if trace.world_size is not None}
    if len(stated) > 1:
        sizes = ", ".join(f"{trace.path.name}: {trace.world_size}" for trace in traces.values())
        raise StudyError(f"{folder}: the traces are of jobs of different size ({sizes}); expected the ranks of one job")
    highest = max(traces)
    world_size = expected or (stated.pop() if stated else highest + 1)
    if not expected and all(trace.world_size is None for trace in traces.values()):
        notes.append(f"no trace says how many ranks the job had; taken to be {world_size}, the highest rank plus one")
    if highest >= world_size:
        raise StudyError(
            f"{traces[highest].path}: found rank {highest}, expected ranks below {world_size}; is this file of another "
            "job, or --expected-ranks too small?"
        )
    missing = sorted(set(range(world_size)) - set(traces))
    if expected and missing:
        raise StudyError(
            f"{folder}: no trace of rank {', '.join(map(str, missing))}; expected {expected}, found {len(traces)}; "
            "copy the missing traces, or leave --expected-ranks out to go on without them"
        )
    return world_size

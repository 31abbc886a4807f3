"""Which files of a folder are traces, and whose."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from anatomy.errors import StudyError
from anatomy.files import read_json
from anatomy.traces.options import ParseOptions

PROFILE_MANIFEST = "manifest.json"
"""Lies beside the traces of the study's own runs; says how the run ended."""

COMPLETED = "completed"

TRACE_SUFFIXES = (".json", ".json.gz")
RANK_IN_NAME = (re.compile(r"rank[-_]?(\d+)", re.IGNORECASE), re.compile(r"worker[-_]?(\d+)", re.IGNORECASE))
"""The former counts where a name has both."""

HOW_TO_IGNORE = "leave it out (`ignore` in the config, or --ignore {name})"
HOW_TO_RANK = "state its rank (`ranks` in the config, or --rank {name}=N)"

MOST_RANKS = 1_000_000
"""Nobody trains on as many; a larger number is damage, or a date in a name."""

Stated = Sequence[tuple[Path, int | None, int | None]]
"""Trace files, and the rank and the number of ranks that each states, None where it does not."""


def find_trace_files(folder: Path, options: ParseOptions) -> list[Path]:
    """The trace files in a folder, sorted by name, without the ignored ones; a path to a file is that file.

    Raises StudyError where there is none, or where `options.ranks` names a file that is not among them.
    """
    if folder.is_file():
        found = [folder]
    elif folder.is_dir():
        found = sorted(path for path in folder.iterdir() if _is_trace(path, options))
    else:
        raise StudyError(f"{folder}: no such folder; --traces names a folder of Kineto traces, one file per rank")
    if not found:
        but = f" that are not ignored ({', '.join(options.ignore)})" if options.ignore else ""
        raise StudyError(
            f"{folder}: found no {' or '.join(f'*{suffix}' for suffix in TRACE_SUFFIXES)}{but}, expected one per rank"
        )
    absent = sorted(set(options.ranks) - {path.name for path in found})
    if absent:
        raise StudyError(
            f"{folder}: a rank is stated for {', '.join(absent)}, but the traces are "
            f"{', '.join(path.name for path in found)}; correct `ranks` in the config, or --rank"
        )
    return found


def read_profile_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of the study's own profiled run; None beside traces from elsewhere."""
    path = folder / PROFILE_MANIFEST
    if not folder.is_dir() or not path.is_file():
        return None
    manifest = read_json(path)
    return manifest if manifest.get("kind") == "profile" else None


def assign_ranks(folder: Path, stated: Stated, options: ParseOptions) -> tuple[dict[int, int], int, list[str]]:
    """Whose each file is.

    Returns by rank, in ascending order, the place of its file in `stated`; the number of ranks of the job: what the
    caller expects, else what the files state, else the highest rank plus one; and notes on what was taken for granted.

    Raises StudyError where a file's rank is unknown or contradictory, two files are of one rank, the files disagree
    about the number of ranks, or not exactly the `options.expected_ranks` ranks are there.
    """
    place_of: dict[int, int] = {}
    notes: list[str] = []
    for place, (path, inside, _) in enumerate(stated):
        rank = options.ranks.get(path.name)
        if rank is None:
            rank = _rank_of(path, inside, alone=len(stated) == 1)
        elif inside not in (None, rank):
            notes.append(f"{path.name} says that it is of rank {inside}; taken to be of rank {rank}, as stated")
        if rank in place_of:
            first = stated[place_of[rank]][0].name
            raise StudyError(
                f"{folder}: {first} and {path.name} are both of rank {rank}; expected one trace per rank of one job; "
                f"{HOW_TO_IGNORE.format(name=path.name)}, or {HOW_TO_RANK.format(name=path.name)}"
            )
        place_of[rank] = place
    world_size = _world_size(folder, stated, place_of, options.expected_ranks, notes)
    return dict(sorted(place_of.items())), world_size, notes


def rank_in_name(name: str) -> int | None:
    """The rank that a file's name states."""
    found = next(filter(None, (pattern.search(name) for pattern in RANK_IN_NAME)), None)
    return int(found[1]) if found else None


def _is_trace(path: Path, options: ParseOptions) -> bool:
    name = path.name
    ignored = name == PROFILE_MANIFEST or any(fnmatchcase(name, pattern) for pattern in options.ignore)
    return name.endswith(TRACE_SUFFIXES) and not name.startswith(".") and not ignored and path.is_file()


def _rank_of(path: Path, inside: int | None, alone: bool) -> int:
    """The rank that the file or its name says; 0 for the only file of a folder where neither does."""
    named = rank_in_name(path.name)
    if inside is not None and named not in (None, inside):
        raise StudyError(
            f"{path}: distributedInfo says rank {inside}, the name says {named}; rename the file, or "
            f"{HOW_TO_RANK.format(name=path.name)}"
        )
    rank = named if inside is None else inside
    if rank is None and not alone:
        raise StudyError(
            f"{path}: neither distributedInfo nor the name says which rank this is; rename it, for example to "
            f"rank0.json.gz, or {HOW_TO_RANK.format(name=path.name)}, or {HOW_TO_IGNORE.format(name=path.name)}"
        )
    return rank or 0


def _world_size(folder: Path, stated: Stated, place_of: dict[int, int], expected: int | None, notes: list[str]) -> int:
    sizes = {size for _, _, size in stated if size is not None}
    if len(sizes) > 1:
        listed = ", ".join(f"{path.name}: {size}" for path, _, size in stated)
        raise StudyError(
            f"{folder}: the traces are of jobs of different size ({listed}); expected the ranks of one job; leave the "
            "others out (`ignore` in the config, or --ignore NAME)"
        )
    highest = max(place_of)
    if max(highest, *sizes, 0) >= MOST_RANKS:
        path, rank, size = max(stated, key=lambda one: max(one[1] or 0, one[2] or 0))
        raise StudyError(
            f"{path}: found rank {highest if rank is None else rank} of {size or 'an unknown number of'} ranks, "
            f"expected fewer than {MOST_RANKS}; {HOW_TO_RANK.format(name=path.name)}, or "
            f"{HOW_TO_IGNORE.format(name=path.name)}"
        )
    world_size = expected or (sizes.pop() if sizes else highest + 1)
    if not expected and all(size is None for _, _, size in stated):
        notes.append(f"no trace says how many ranks the job had; taken to be {world_size}, the highest rank plus one")
    if highest >= world_size:
        path = stated[place_of[highest]][0]
        name = path.name
        raise StudyError(
            f"{path}: found rank {highest}, expected ranks below {world_size}; "
            f"{HOW_TO_IGNORE.format(name=name)} if it is of another job, {HOW_TO_RANK.format(name=name)}, or correct "
            "`expected_ranks` in the config (--expected-ranks)"
        )
    missing = sorted(set(range(world_size)) - set(place_of))
    if expected and missing:
        raise StudyError(
            f"{folder}: no trace of rank {', '.join(map(str, missing))}; expected {expected}, found {len(place_of)}; "
            "copy the missing traces, or leave `expected_ranks` (--expected-ranks) out to go on without them"
        )
    return world_size

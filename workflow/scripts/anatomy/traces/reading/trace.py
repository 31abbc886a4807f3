"""One Kineto trace as a table of events."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anatomy.errors import StudyError
from anatomy.traces.options import ParseOptions
from anatomy.traces.reading.collecting import Collector
from anatomy.traces.reading.discovery import rank_in_name
from anatomy.traces.reading.document import read_document
from anatomy.traces.reading.events import Events
from anatomy.traces.reading.source import DamagedTraceError, read_text
from anatomy.traces.reading.text import Text
from anatomy.traces.reading.times import LARGEST_TIME

CHUNK_BYTES = 2**18
"""Text that is decoded at once: large enough that what is done per chunk costs little, small enough for the caches."""


@dataclass(frozen=True)
class RankTrace:
    """One file: its events, and what it says of itself, None where it does not; `notes` tell what was repaired."""

    path: Path
    rank: int | None
    world_size: int | None
    events: Events
    notes: tuple[str, ...]


def read_trace(path: Path, options: ParseOptions, chunk_bytes: int = CHUNK_BYTES) -> RankTrace:
    """Read one trace in chunks; memory is needed for what is kept, not for the file.

    Raises StudyError where the file can't be read, has no event with a duration, or too many without a usable time.
    """
    collector, facts = Collector(), {}
    try:
        _read(path, collector, facts, chunk_bytes)
    except DamagedTraceError as error:
        raise StudyError(f"{_label(path, facts, options)}: {error}") from error
    events = collector.finish(_integer(facts.get("baseTimeNanoseconds")) or 0)
    num_dropped = sum(collector.dropped.values())
    reasons = ", ".join(f"{count} with {reason}" for reason, count in sorted(collector.dropped.items()) if count)
    total = len(events) + num_dropped
    if num_dropped > options.max_dropped_share * total:
        raise StudyError(
            f"{_label(path, facts, options)}: {num_dropped} of {total} events have no usable time ({reasons}); at most "
            f"{options.max_dropped_share:.0%} are accepted (`max_dropped_share`); record the trace again"
        )
    if not len(events):
        raise StudyError(
            f"{_label(path, facts, options)}: no operator, kernel or annotation among its {collector.num_seen} events; "
            "was the profiler's schedule ever active?"
        )
    notes = [f"{count} {what}" for what, count in sorted(collector.repaired.items()) if count]
    notes += [f"dropped events: {reasons}"] if num_dropped else []
    rank, world_size = _stated(facts, "rank"), _stated(facts, "world_size")
    return RankTrace(path, rank, world_size, events, tuple(notes))


def _read(path: Path, collector: Collector, facts: dict[str, Any], chunk_bytes: int) -> None:
    blocks = read_text(path, chunk_bytes)
    try:
        read_document(Text(blocks), collector, facts, chunk_bytes)
    except DamagedTraceError:
        # A damaged gzip can unzip to something for a while: then that is what is wrong, not what came out of it.
        for _ in blocks:
            pass
        raise


def _label(path: Path, facts: dict[str, Any], options: ParseOptions) -> str:
    """The file, behind its rank where that is known."""
    known = (options.ranks.get(path.name), _stated(facts, "rank"), rank_in_name(path.name))
    rank = next((rank for rank in known if rank is not None), None)
    return str(path) if rank is None else f"rank {rank}, {path}"


def _stated(facts: dict[str, Any], key: str) -> int | None:
    """What the trace says about itself among all ranks."""
    distributed = facts.get("distributedInfo")
    return _integer(distributed.get(key)) if isinstance(distributed, dict) else None


def _integer(value: Any) -> int | None:
    """`value` where it is an integer that int64 holds."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST_TIME else None

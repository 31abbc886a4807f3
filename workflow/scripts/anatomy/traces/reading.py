"""One Kineto trace as a table of events."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from anatomy.errors import StudyError
from anatomy.phases import ANNOTATION_PREFIX
from anatomy.traces.decoding import load_json
from anatomy.traces.naming import STEP_PREFIX, is_communication

KINDS: dict[str, str] = {
    "cpu_op": "op",
    "operator": "op",
    "user_annotation": "annotation",
    "gpu_user_annotation": "gpu annotation",
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
    "runtime": "launch",
}
"""What is kept, by Kineto's category in lower case, old and new. Synchronisation rows, Python frames, overheads and the
profiler's own spans are not work of the rank and are left out."""

GPU_KINDS = ("kernel", "memcpy", "memset")

MAX_DROPPED_SHARE = 0.05
"""A trace of which more events than this have no usable time is an error: what is left would not describe the steps."""

LARGEST_TIME = 2**62
TIME_TEXT = re.compile(r"(-?)(\d+)(?:\.(\d+))?")


@dataclass(frozen=True)
class RankTrace:
    """The events of one rank.

    `events` has, sorted by start: kind (values of `KINDS`), name, thread (of the CPU: `pid/tid`), start_ns, end_ns,
    correlation (joins a launch with what ran on the GPU; -1 where there is none), stream (of the GPU, -1 on the CPU),
    args (a dict for communication, else None), launched_ns and launch_thread (of work on the GPU: when and by which
    thread it was launched where the trace says so; of all else its own start and thread). `rank` and `world_size` are
    None where the file does not say them.
    """

    path: Path
    rank: int | None
    world_size: int | None
    events: pd.DataFrame
    notes: list[str]


def read_trace(path: Path) -> RankTrace:
    """Read one trace.

    Raises StudyError where the file can't be read, has no event with a duration, or too many without a usable time.
    """
    content, notes = load_json(path)
    base_ns = _integer(content.get("baseTimeNanoseconds")) or 0
    rows, dropped = _rows(content["traceEvents"], base_ns)
    num_dropped = sum(dropped.values())
    reasons = ", ".join(f"{count} with {reason}" for reason, count in sorted(dropped.items()))
    if num_dropped > MAX_DROPPED_SHARE * (len(rows) + num_dropped):
        raise StudyError(
            f"{path}: {num_dropped} of {len(rows) + num_dropped} events have no usable time ({reasons}); at most "
            f"{MAX_DROPPED_SHARE:.0%} are accepted; record the trace again"
        )
    if not rows:
        raise StudyError(
            f"{path}: no operator, kernel or annotation among its {len(content['traceEvents'])} events; "
            "was the profiler's schedule ever active?"
        )
    if dropped:
        notes.append(f"dropped events: {reasons}")
    distributed = content.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    return RankTrace(
        path, _integer(distributed.get("rank")), _integer(distributed.get("world_size")), _event_table(rows), notes
    )


def nanoseconds(value: Any) -> int | None:
    """Microseconds, as an integer, a float or decimal text, in integer nanoseconds; None where it is no usable
    number."""
    if isinstance(value, str):
        match = TIME_TEXT.fullmatch(value.strip())
        if match is None:
            return None
        sign, whole, fraction = match.groups()
        digits = (fraction or "").ljust(4, "0")
        result = int(whole) * 1000 + int(digits[:3]) + (digits[3] >= "5")
        result = -result if sign else result
    elif isinstance(value, int) and not isinstance(value, bool):
        result = value * 1000
    elif isinstance(value, float) and abs(value) < LARGEST_TIME:
        result = round(value * 1000)
    else:
        return None
    return result if abs(result) < LARGEST_TIME else None


def by_name(events: pd.DataFrame, answer: Callable[[str], Any], dtype: type = bool) -> np.ndarray:
    """What `answer` says to the name of each event, asked once per distinct name [n]."""
    names = events["name"].cat
    return np.array([answer(name) for name in names.categories], dtype=dtype)[names.codes]


def _rows(events: list[Any], base_ns: int) -> tuple[list[tuple], Counter[str]]:
    """The rows of the event table, and how many events were dropped for which reason."""
    rows: list[tuple] = []
    dropped: Counter[str] = Counter()
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        kind = KINDS.get(str(event.get("cat", "")).lower())
        if kind is None:
            continue
        start, duration = nanoseconds(event.get("ts")), event.get("dur")
        length = None if isinstance(duration, str) else nanoseconds(duration)
        if start is None or start <= 0 or start + base_ns >= LARGEST_TIME:
            dropped["a bad time stamp"] += 1
        elif length is None or start + base_ns + length >= LARGEST_TIME:
            dropped["a missing or bad duration"] += 1
        elif length < 0:
            dropped["a negative duration"] += 1
        else:
            rows.append(_row(kind, event, start + base_ns, length))
    return rows, dropped


def _row(kind: str, event: dict[str, Any], start_ns: int, length_ns: int) -> tuple:
    name, args = str(event.get("name", "")), event.get("args")
    args = args if isinstance(args, dict) else {}
    if kind == "op" and name.startswith((STEP_PREFIX, ANNOTATION_PREFIX)):
        kind = "annotation"
    stream = -1
    if kind in GPU_KINDS:
        stream = _integer(args.get("stream", event.get("tid")))
    correlation = _integer(args.get("correlation"))
    return (
        kind,
        name,
        f"{event.get('pid')}/{event.get('tid')}",
        start_ns,
        start_ns + length_ns,
        -1 if correlation is None else correlation,
        -1 if stream is None else stream,
        args if is_communication(name) else None,
    )


def _event_table(rows: list[tuple]) -> pd.DataFrame:
    columns = ("kind", "name", "thread", "start_ns", "end_ns", "correlation", "stream", "args")
    events = pd.DataFrame.from_records(rows, columns=columns)
    numbers = dict.fromkeys(("start_ns", "end_ns", "correlation", "stream"), np.int64)
    events = events.astype(numbers | dict.fromkeys(("kind", "name", "thread"), "category"))
    # Of events that start together the longest comes first, so that what encloses comes before what is enclosed.
    order = np.lexsort([-events["end_ns"], events["start_ns"]])
    return _with_launches(events.iloc[order].reset_index(drop=True))


def _with_launches(events: pd.DataFrame) -> pd.DataFrame:
    """Add `launched_ns` and `launch_thread`."""
    launches = events[(events["kind"] == "launch") & (events["correlation"] > 0)].drop_duplicates("correlation")
    launches = launches.set_index("correlation")
    known = events["kind"].isin(GPU_KINDS) & events["correlation"].isin(launches.index)
    launched, threads = events["start_ns"].to_numpy(copy=True), events["thread"].astype(object).to_numpy(copy=True)
    causes = launches.loc[events.loc[known, "correlation"]]
    launched[known] = np.minimum(causes["start_ns"].to_numpy(), launched[known])
    threads[known] = causes["thread"].astype(object).to_numpy()
    return events.assign(launched_ns=launched, launch_thread=pd.Categorical(threads))


def _integer(value: Any) -> int | None:
    """`value` where it is an integer that int64 holds."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST_TIME else None

"""Communication that one rank did: what the trace says about each collective."""

import ast
import math
from typing import Any

import numpy as np
import pandas as pd

from anatomy.traces.annotations import PhaseTimeline
from anatomy.traces.intervals import index_at, spans_of
from anatomy.traces.naming import collective_kind, is_communication
from anatomy.traces.reading import by_name

WORK_PREFIXES = ("gloo:", "mpi:")
"""On the CPU, the annotation of what a backend's worker thread does, from its start to its end. `c10d::…` on the
training thread is only the call that hands it the work; nothing records how long the thread then waits."""

NCCL_PREFIX = "nccl:"
"""The annotation around the launch of an NCCL kernel; it names the collective as the program called it."""

DEFAULT_GROUP = "default"

POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv", "recvanysource"})

DTYPE_BYTES: dict[str, int] = {
    **dict.fromkeys(("float", "int", "unsigned int", "c10::complex<half>"), 4),
    **dict.fromkeys(("double", "long", "long int", "unsigned long", "c10::complex<float>", "complexfloat"), 8),
    **dict.fromkeys(("half", "bfloat16", "c10::half", "c10::bfloat16", "short", "short int"), 2),
    **dict.fromkeys(("bool", "byte", "char", "signed char", "unsigned char", "float8_e4m3fn", "float8_e5m2"), 1),
}
"""Bytes of an element by the names that `dtype` and `Input type` use, in lower case."""


def is_work(events: pd.DataFrame) -> np.ndarray:
    """Which events are communication itself: NCCL's kernels and Gloo's work, not their launches, bool [n]."""
    kernel = (events["kind"] == "kernel").to_numpy() & by_name(events, is_communication)
    work = (events["kind"] == "annotation") & events["name"].str.startswith(WORK_PREFIXES)
    return kernel | work.to_numpy()


def is_call(events: pd.DataFrame) -> np.ndarray:
    """Which events are operators that start communication (`c10d::allreduce_`), bool [n]."""
    return (events["kind"] == "op").to_numpy() & by_name(events, is_communication)


def find_collectives(events: pd.DataFrame, steps: dict[int, tuple[int, int]], phases: PhaseTimeline) -> pd.DataFrame:
    """One row per piece of communication that was launched within a step, in the order of launches.

    Columns: step, group, group_ranks (tuple or None), group_size and sequence (NA where unknown), kind, point_to_point,
    phase (index), bytes (NA where unknown), start_ns, end_ns.
    """
    work = events[is_work(events)].sort_values("launched_ns", kind="stable")
    windows = np.array(list(steps.values()), dtype=np.int64).reshape(-1, 2)
    index = index_at(windows, work["launched_ns"].to_numpy())
    work, numbers = work[index >= 0], np.array(list(steps), dtype=np.int64)[index[index >= 0]]
    described = [_describe(*row) for row in zip(work["name"], work["args"], _calls(events, work), strict=True)]
    columns = ("group", "group_ranks", "group_size", "sequence", "kind", "point_to_point", "bytes")
    frame = pd.DataFrame.from_records(described, columns=columns)
    integers = dict.fromkeys(("group_size", "sequence", "bytes"), "Int64")
    frame = frame.astype({**integers, "point_to_point": bool, "group": object, "kind": object})
    return frame.assign(
        step=numbers,
        phase=phases.at(work["launched_ns"].to_numpy()),
        start_ns=work["start_ns"].to_numpy(),
        end_ns=work["end_ns"].to_numpy(),
    )


def payload_bytes(args: dict[str, Any], kind: str) -> int | None:
    """Bytes of a collective as NCCL's tests count them: the larger of a rank's input and output.

    Read from the element counts that newer profilers attach, else from the shapes of the inputs, where they were
    recorded.
    """
    counts = [args.get(key) for key in ("In msg nelems", "Out msg nelems")]
    counts = [count for count in counts if isinstance(count, int)]
    if counts:
        size = DTYPE_BYTES.get(str(args.get("dtype")).lower())
        return None if size is None else max(counts) * size
    shapes, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list):
        return None
    total, found = 0, False
    for shape, name in zip(shapes, types, strict=False):
        size = DTYPE_BYTES.get(str(name).lower())
        if size is not None and isinstance(shape, list) and all(isinstance(length, int) for length in shape):
            total, found = total + math.prod(shape) * size, True
    if not found:
        return None
    size = args.get("Group size") if kind == "all_gather" else 1
    return total * size if isinstance(size, int) else None


def _describe(name: str, args: dict[str, Any] | None, call: tuple[str, dict[str, Any]] | None) -> tuple:
    """What the event's own arguments say, and where they do not, those of the call that launched it."""
    called, call_args = call if call is not None else (name.partition(":")[2] or name, {})
    args = {**call_args, **(args or {})}
    stated = str(args.get("Collective name") or called)
    kind = collective_kind(stated)
    if kind == "other":
        kind = collective_kind(name)
    group_name, size, sequence = args.get("Process Group Name"), args.get("Group size"), args.get("Seq")
    return (
        DEFAULT_GROUP if group_name in (None, "") else str(group_name),
        _ranks(args.get("Process Group Ranks"), size),
        size if isinstance(size, int) else None,
        sequence if isinstance(sequence, int) else None,
        kind,
        stated.lower().replace("_", "") in POINT_TO_POINT,
        payload_bytes(args, kind),
    )


def _ranks(text: Any, size: Any) -> tuple[int, ...] | None:
    """The ranks of a group from text such as `[0, 1]`; None where it is absent or, in large groups, abridged."""
    try:
        ranks = tuple(int(rank) for rank in ast.literal_eval(str(text)))
    except (ValueError, SyntaxError, TypeError):
        return None
    return ranks if ranks and (not isinstance(size, int) or len(ranks) == size) else None


def _calls(events: pd.DataFrame, work: pd.DataFrame) -> list[tuple[str, dict[str, Any]] | None]:
    """For each piece of communication, name and arguments of the `nccl:…` annotation within which it was launched."""
    calls = events[(events["kind"] == "annotation") & events["name"].str.startswith(NCCL_PREFIX)]
    result: list[tuple[str, dict[str, Any]] | None] = [None] * len(work)
    for thread, own in calls.groupby(calls["thread"].astype(str)):
        launched = np.flatnonzero((work["launch_thread"].astype(str) == thread).to_numpy())
        # Annotations of one thread nest, and the table is sorted: the last one to start before the launch is the
        # innermost.
        index = np.searchsorted(own["start_ns"].to_numpy(), work["launched_ns"].to_numpy()[launched], side="right") - 1
        spans = spans_of(own["start_ns"], own["end_ns"])
        for place, call in zip(launched, index, strict=True):
            if call >= 0 and work["launched_ns"].iloc[place] <= spans[call, 1]:
                row = own.iloc[call]
                result[place] = (row["name"].removeprefix(NCCL_PREFIX), row["args"] or {})
    return result

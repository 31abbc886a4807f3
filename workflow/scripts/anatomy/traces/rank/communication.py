"""Communication that one rank did: what the trace says about each piece of it.

What a kernel's own arguments leave open is taken from the calls around its launch, the innermost of each sort on the
thread that launched it:

    c10d::allreduce_          operator: names the collective, and in `…_base_` the shapes of output and input
      record_param_comms      operator: newer profilers give it the arguments of the collective
        nccl:all_reduce       annotation: names the collective as the program called it, with the shapes of its input
          cudaLaunchKernel

Messages that were posted within an annotation `collective:…` are one piece of communication of the kind that it names.
"""

import ast
import math
import re
from functools import lru_cache
from typing import Any

import numpy as np

from anatomy.phases import COLLECTIVE_PREFIX, WAIT_ANNOTATION
from anatomy.traces.columns import Columns
from anatomy.traces.intervals import index_at, innermost, spans_of
from anatomy.traces.naming import collective_kind, is_communication
from anatomy.traces.rank.annotations import PhaseTimeline
from anatomy.traces.rank.messages import UNKNOWN, unite
from anatomy.traces.rank.record import Steps
from anatomy.traces.reading.events import Events, Kind

WORK_PREFIXES = ("gloo:", "mpi:", COLLECTIVE_PREFIX)
"""On the CPU, the annotation of what a backend does, from its start to its end: for collectives that of a worker
thread, for messages from their posting until somebody has waited for them. `c10d::…` on the training thread is only the
call that hands over the work; nothing records how long the thread then waits."""

MESSAGE_PREFIXES = ("gloo:send", "gloo:recv")

CALLS: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    (Kind.OP, ("record_param_comms",)),
    (Kind.ANNOTATION, ("nccl:",)),
    (Kind.OP, ("c10d::", "_c10d_functional::", "c10d_functional::")),
)
"""The calls around a launch; of two that say the same, the earlier in this list is believed."""

DEFAULT_GROUP = "default"
LARGEST = 2**62
"""Numbers from here on are damage, and their sums would overflow."""

MOST_RANKS = 1_000_000
"""Groups that state more ranks than this are taken at no word."""

POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv", "recvanysource"})
PEERS = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")
"""How `nccl:send 0->1` and `nccl:recv 1<-0` name the rank itself and the other one, as numbers within the group."""

MESSAGE_OPERATORS, MESSAGE_PEER = ("send", "recv_"), 2
"""PyTorch's operators of one message, and the place of the other rank, as a number within the group, among their
arguments: tensors, process group, rank, tag."""

DTYPE_BYTES: dict[str, int] = {
    **dict.fromkeys(("float", "int", "unsigned int", "c10::complex<half>", "complexhalf"), 4),
    **dict.fromkeys(("double", "long", "long int", "unsigned long", "c10::complex<float>", "complexfloat"), 8),
    **dict.fromkeys(("half", "bfloat16", "c10::half", "c10::bfloat16", "short", "short int"), 2),
    **dict.fromkeys(("bool", "byte", "char", "signed char", "unsigned char"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "c10::float8_e4m3fn", "c10::float8_e5m2"), 1),
    **dict.fromkeys(("c10::complex<double>", "complexdouble"), 16),
}
"""Bytes of an element by the names that `dtype` and `Input type` use, in lower case."""

DESCRIBED: dict[str, type] = {
    **dict.fromkeys(("group", "group_ranks"), object),
    **dict.fromkeys(("group_size", "sequence"), np.int64),
    "kind": object,
    "point_to_point": bool,
    **dict.fromkeys(("source", "destination", "bytes"), np.int64),
}
"""Columns of what the trace says about a piece of communication, with their dtypes."""


def is_work(events: Events) -> np.ndarray:
    """Which events are communication itself: NCCL's kernels and Gloo's work, not their launches, bool [n]."""
    kernel = (events.kind == Kind.KERNEL) & events.by_name(is_communication)
    return kernel | ((events.kind == Kind.ANNOTATION) & events.starting_with(*WORK_PREFIXES))


def is_call(events: Events) -> np.ndarray:
    """Which events are operators that start communication (`c10d::allreduce_`), bool [n]."""
    return (events.kind == Kind.OP) & events.by_name(is_communication)


def may_block(events: Events) -> np.ndarray:
    """During which events the rank may be waiting for communication on the CPU, bool [n].

    That is all work; but in traces that say when messages are waited for, these are in flight without blocking anybody.
    """
    waits = (events.kind == Kind.ANNOTATION) & events.by_name(lambda name: name == WAIT_ANNOTATION)
    result = is_work(events)
    if waits.any():
        result &= ~events.starting_with(*MESSAGE_PREFIXES)
    return result | waits


def find_collectives(events: Events, steps: Steps, timeline: PhaseTimeline) -> Columns:
    """One row per piece of communication that was launched within a step, in the order of launches.

    Columns [n]: step int64; group object (str; with `group_ranks` it identifies the process group), group_ranks object
    (tuple of int, None where unknown), group_size and sequence int64; kind object (str); point_to_point bool; source
    and destination int64 (ranks of a message; the rank itself, whose number is not known here, is `UNKNOWN`); bytes
    int64, as `payload_bytes` counts them; phase int64 (index into `PHASES`); start_ns and end_ns int64; stream int32
    (-1 on the CPU). `UNKNOWN` is -1.
    """
    work = np.flatnonzero(is_work(events))
    launched = events.launched_at(work)
    windows = np.array(list(steps.values()), dtype=np.int64).reshape(-1, 2)
    index = index_at(windows, launched)
    order = np.argsort(launched, kind="stable")
    order = order[index[order] >= 0]
    work, launched, index = work[order], launched[order], index[order]
    names, threads = events.name[work].tolist(), events.launch_thread_of(work)
    calls = [_enclosing(events, kind, prefixes, threads, launched) for kind, prefixes in CALLS]
    described = [
        _describe(events.names[name], events.args.get(row, {}), [_call(events, place) for place in places])
        for row, name, *places in zip(work.tolist(), names, *(found.tolist() for found in calls), strict=True)
    ]
    found = {
        "step": np.array(list(steps), dtype=np.int64)[index],
        **_as_columns(described),
        "phase": timeline.at(launched),
        "start_ns": events.start_ns[work],
        "end_ns": events.end_ns[work],
        "stream": events.stream[work].astype(np.int32),
    }
    around = _enclosing(events, Kind.ANNOTATION, (COLLECTIVE_PREFIX,), threads, launched)
    return unite(found, around, lambda row: events.names[events.name[row]].removeprefix(COLLECTIVE_PREFIX))


def payload_bytes(args: dict[str, Any], kind: str) -> int | None:
    """Bytes of a collective as NCCL's tests count them: the larger of a rank's input and output, None where unknown.

    For `all_gather` and `reduce_scatter` that is what all ranks of the group hold together, for all else what one rank
    sends or receives. Read from the element counts that newer profilers attach, else from the shapes of the inputs,
    where they were recorded.
    """
    count = max(_integer(args.get(key)) for key in ("In msg nelems", "Out msg nelems"))
    if count != UNKNOWN:
        size = DTYPE_BYTES.get(str(args.get("dtype")).lower())
        return None if size is None else _possible(count * size)
    sizes = _tensor_bytes(args)
    factor = _group_size(args) if kind == "all_gather" else 1
    return _possible(sum(sizes) * factor) if sizes and factor != UNKNOWN else None


def _tensor_bytes(args: dict[str, Any]) -> list[int]:
    """Bytes of each input that is a tensor of known shape and type."""
    shapes, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list):
        return []
    return [
        math.prod(shape) * DTYPE_BYTES[str(name).lower()]
        for shape, name in zip(shapes, types, strict=False)
        if str(name).lower() in DTYPE_BYTES
        and isinstance(shape, list)
        and all(_integer(length) != UNKNOWN for length in shape)
    ]


def _enclosing(
    events: Events, kind: Kind, prefixes: tuple[str, ...], threads: np.ndarray, launched: np.ndarray
) -> np.ndarray:
    """The row of the innermost call of a sort within which each launch was made on its thread, else -1 [k]."""
    rows = np.flatnonzero((events.kind == kind) & events.starting_with(*prefixes))
    result = np.full(len(launched), -1, dtype=np.int64)
    for thread in np.intersect1d(events.thread[rows], threads):
        own, here = rows[events.thread[rows] == thread], np.flatnonzero(threads == thread)
        # Rounding can put a launch on the very end of its call, which half-open spans exclude.
        pieces, owner = innermost(spans_of(events.start_ns[own], events.end_ns[own] + 1))
        index = index_at(pieces, launched[here])
        result[here[index >= 0]] = own[owner[index[index >= 0]]]
    return result


def _call(events: Events, row: int) -> tuple[str, dict[str, Any]]:
    """Name without its prefix, and arguments, of a call; nothing for row -1."""
    return ("", {}) if row < 0 else (events.names[events.name[row]].rpartition(":")[2], events.args.get(row, {}))


def _describe(name: str, own: dict[str, Any], calls: list[tuple[str, dict[str, Any]]]) -> tuple:
    """What the event's own arguments say, and where they do not, those of the calls around its launch; `DESCRIBED`."""
    (_, recorded), (annotated, annotation), (called, operator) = calls
    # The shapes of record_param_comms are those of a list, which older profilers leave empty.
    args = {**recorded, **annotation, **own}
    stated = [str(args.get("Collective name") or ""), annotated, called, name]
    kind, chosen = _kind(tuple(stated))
    size = _group_size(args)
    ranks = _ranks(str(args.get("Process Group Ranks")), size) or _strided(args, size)
    message = chosen in POINT_TO_POINT or (kind == "send_recv" and "coalesced" in stated)
    source, destination = _peers(args, annotated, called, operator, ranks) if message else (UNKNOWN, UNKNOWN)
    payload = payload_bytes(args, kind)
    if payload is None and called.endswith("base_"):
        payload = _possible(max(_tensor_bytes(operator), default=None))
    return (
        str(args.get("Process Group Name") or DEFAULT_GROUP),
        ranks,
        size,
        _integer(args.get("Seq")),
        kind,
        message,
        source,
        destination,
        UNKNOWN if payload is None else payload,
    )


@lru_cache(maxsize=4096)
def _kind(stated: tuple[str, ...]) -> tuple[str, str]:
    """The kind of the first name that states one, and the first word of that name in lower case, bare."""
    for name in stated:
        kind = collective_kind(name)
        if kind != "other":
            return kind, name.rpartition(":")[2].lower().replace("_", "").split(" ")[0]
    return "other", ""


def _peers(
    args: dict[str, Any], annotated: str, called: str, operator: dict[str, Any], ranks: tuple[int, ...] | None
) -> tuple[int, int]:
    """Source and destination of a message, `UNKNOWN` where the trace does not say."""
    source, destination = _integer(args.get("Src Rank")), _integer(args.get("Dst Rank"))
    if called in MESSAGE_OPERATORS and source == destination == UNKNOWN:
        other = _global_rank(_stated_integer(operator, MESSAGE_PEER), ranks)
        return (UNKNOWN, other) if called == "send" else (other, UNKNOWN)
    found = PEERS.match(annotated)
    if found and source == destination == UNKNOWN:
        itself, other = (_global_rank(int(number), ranks) for number in found.groups()[1:])
        source, destination = (itself, other) if found[1] == "send" else (other, itself)
    return source, destination


def _stated_integer(operator: dict[str, Any], place: int) -> int:
    """The argument of an operator at a place, `UNKNOWN` where its value was not recorded or is no count."""
    values = operator.get("Concrete Inputs")
    text = values[place] if isinstance(values, list) and place < len(values) else None
    return _integer(int(text)) if isinstance(text, str) and text.isascii() and text.isdecimal() else UNKNOWN


def _global_rank(number: int, ranks: tuple[int, ...] | None) -> int:
    """The rank in the job of a number within a group; a group whose ranks are unknown is taken for all of the job."""
    if ranks is None or number == UNKNOWN:
        return number
    return ranks[number] if number < len(ranks) else UNKNOWN


@lru_cache(maxsize=4096)
def _ranks(text: str, size: int) -> tuple[int, ...] | None:
    """The ranks of a group from text such as `[0, 1]`; None where it is absent or, in large groups, abridged."""
    try:
        ranks = tuple(int(rank) for rank in ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError):
        return None
    return ranks if ranks and size in (UNKNOWN, len(ranks)) else None


def _strided(args: dict[str, Any], size: int) -> tuple[int, ...] | None:
    """The ranks of an evenly spaced group from its first rank, stride and size."""
    start, stride = _integer(args.get("Global rank start")), _integer(args.get("Global rank stride"))
    possible = start >= 0 and stride > 0 and 0 < size <= MOST_RANKS
    return _spaced(start, stride, size) if possible else None


@lru_cache(maxsize=4096)
def _spaced(start: int, stride: int, size: int) -> tuple[int, ...]:
    return tuple(range(start, start + size * stride, stride))


def _group_size(args: dict[str, Any]) -> int:
    """Ranks of the group, `UNKNOWN` where the trace does not say or says what can't be."""
    return _integer(args.get("Group size")) or UNKNOWN


def _integer(value: Any) -> int:
    """A count or number, `UNKNOWN` where it is none that there can be."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST else UNKNOWN


def _possible(size: int | None) -> int | None:
    """Bytes, None where no memory holds as many."""
    return size if size is not None and size < LARGEST else None


def _as_columns(described: list[tuple]) -> Columns:
    columns: Columns = {}
    parts = zip(*described, strict=True) if described else [()] * len(DESCRIBED)
    for (name, dtype), values in zip(DESCRIBED.items(), parts, strict=True):
        columns[name] = np.empty(len(values), dtype=dtype)
        columns[name][:] = values
    return columns

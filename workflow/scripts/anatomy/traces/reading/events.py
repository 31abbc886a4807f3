"""The events of one rank as columns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np


class Kind(IntEnum):
    """What an event is, whatever Kineto called its category at the time."""

    OP = 0
    ANNOTATION = 1
    GPU_ANNOTATION = 2
    KERNEL = 3
    MEMCPY = 4
    MEMSET = 5
    LAUNCH = 6
    """A call of the CUDA runtime or driver: launches, copies, synchronisation (`cudaDeviceSynchronize`), …"""


GPU_KINDS = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
"""Work that runs on a GPU."""

CLOCK_RESOLUTION_NS = 1000
"""Older profilers round to microseconds, so that what follows may seem to precede by as much."""

NUM_RUNS = 2**16
"""Groups of events that start together which are sorted at once."""

DENSE = 8
"""Correlations are looked up in a table of all from the lowest to the highest where so few of them are unused."""


@dataclass(frozen=True)
class Events:
    """Events sorted by start; of those that start together the longest first, so that what encloses comes first.

    Columns [n]: `kind` uint8 (`Kind`), `name` int32 (index into `names`), `thread` int32 (of the CPU, index into
    `threads`, which are `pid/tid`; of work on the GPU whatever the trace says), `start_ns` and `end_ns` int64 since
    1970, `stream` int32 (of the GPU, -1 on the CPU), `launch` int32 (of work on the GPU, the row of the call that
    launched it; -1 where the trace does not say, and for everything else). `args` has the arguments of communication by
    row.
    """

    kind: np.ndarray
    name: np.ndarray
    thread: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    stream: np.ndarray
    launch: np.ndarray
    names: tuple[str, ...]
    threads: tuple[str, ...]
    args: Mapping[int, dict[str, Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.kind)

    def launched_at(self, rows: np.ndarray) -> np.ndarray:
        """When the events of some rows were caused, int64 [k]: the start of their launch where it is known, else their
        own."""
        starts, launch = self.start_ns[rows], self.launch[rows]
        return np.where(launch >= 0, np.minimum(self.start_ns[launch], starts), starts)

    def launch_thread_of(self, rows: np.ndarray) -> np.ndarray:
        """The CPU thread that caused the events of some rows, index into `threads` [k]; their own where no launch is
        known."""
        launch = self.launch[rows]
        return np.where(launch >= 0, self.thread[launch], self.thread[rows])

    @cached_property
    def on_gpu(self) -> np.ndarray:
        """Which events are work on the GPU, bool [n]."""
        return np.isin(self.kind, GPU_KINDS)

    def by_name(self, answer: Callable[[str], Any], dtype: type = bool) -> np.ndarray:
        """What `answer` says to the name of each event, asked once per distinct name [n]."""
        return np.array([answer(name) for name in self.names] or [], dtype=dtype)[self.name]

    def starting_with(self, *prefixes: str) -> np.ndarray:
        """Which events have a name with one of these prefixes, bool [n]."""
        return self.by_name(lambda name: name.startswith(prefixes))


def assemble(
    columns: Mapping[str, np.ndarray],
    correlation: np.ndarray,
    names: tuple[str, ...],
    threads: tuple[str, ...],
    args: Mapping[int, dict[str, Any]],
) -> tuple[Events, int]:
    """Sort events, join work on the GPU with its launch, and drop work that starts before it was launched.

    `columns` are those of `Events` but `launch`, in any order of time; each is asked for once. `correlation` int64 [n]
    is what a launch and what it caused share (0 or less where there is none); `args` is by row of `columns`.

    Returns the events and how many were dropped.
    """
    start_ns, end_ns = columns["start_ns"], columns["end_ns"]
    # Profilers write long stretches in order of time, which a stable sort by one key makes use of.
    order = np.argsort(start_ns, kind="stable")
    start_ns = start_ns[order]
    _put_longest_first(order, start_ns, end_ns)
    end_ns, kind = end_ns[order], columns["kind"][order]
    launch = _launches(kind, correlation, order)
    del correlation
    caused = np.flatnonzero(launch >= 0)
    early = caused[start_ns[caused] < start_ns[launch[caused]] - CLOCK_RESOLUTION_NS]
    sorted_columns = {"kind": kind, "start_ns": start_ns, "end_ns": end_ns, "launch": launch}
    sorted_columns |= {name: columns[name][order] for name in ("name", "thread", "stream")}
    if len(early):
        kept = np.ones(len(order), dtype=bool)
        kept[early] = False
        sorted_columns = {name: column[kept] for name, column in sorted_columns.items()}
        place = (np.cumsum(kept) - 1).astype(np.int32)
        launch = sorted_columns["launch"]
        sorted_columns["launch"] = np.where(launch >= 0, place[launch], np.int32(-1))
        order = order[kept]
    return Events(**sorted_columns, names=names, threads=threads, args=_reorder(args, order)), len(early)


def _put_longest_first(order: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> None:
    """Reorder within `order` the rows that start together; `start_ns` is in its order, `end_ns` is by row."""
    # Whether an event starts together with the one before it, and with the one before or behind it.
    follows = np.append(False, start_ns[1:] == start_ns[:-1])[: len(order)]
    together = follows.copy()
    together[:-1] |= follows[1:]
    places = np.flatnonzero(together)
    firsts = np.flatnonzero(~follows[places])
    # A part of them at a time, since sorting by two keys takes much memory.
    for begin, end in pairwise([*firsts[::NUM_RUNS].tolist(), len(places)]):
        part = places[begin:end]
        rows = order[part]
        order[part] = rows[np.lexsort([-end_ns[rows], start_ns[part]])]


def _launches(kind: np.ndarray, correlation: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The place in `order` of the first launch with the same correlation as each piece of work on the GPU, else -1.

    int32 [n]; `kind` is in the order, `correlation` by row.
    """
    result = np.full(len(kind), -1, dtype=np.int32)
    # From the last to the first, so that of several with one correlation the first is what remains.
    launches = np.flatnonzero(kind == Kind.LAUNCH)[::-1].astype(np.int32)
    work = np.flatnonzero(np.isin(kind, GPU_KINDS)).astype(np.int32)
    keys, wanted = correlation[order[launches]], correlation[order[work]]
    launches, keys = launches[keys > 0], keys[keys > 0]
    work, wanted = work[wanted > 0], wanted[wanted > 0]
    if len(launches) == 0 or len(work) == 0:
        return result
    lowest, span = keys.min(), int(keys.max()) - int(keys.min()) + 1
    if span <= DENSE * (len(launches) + len(work)):
        row_of = np.full(span + 1, -1, dtype=np.int32)
        row_of[keys - lowest] = launches
        # What is outside of the span finds the -1 behind its end.
        wanted -= lowest
        result[work] = row_of[np.where((wanted >= 0) & (wanted < span), wanted, span)]
    else:
        keys, first = np.unique(keys[::-1], return_index=True)
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        found = keys[place] == wanted
        result[work[found]] = launches[::-1][first[place[found]]]
    return result


def _reorder(args: Mapping[int, dict[str, Any]], order: np.ndarray) -> dict[int, dict[str, Any]]:
    """`args` by the place of its rows in `order`, without those of rows that are not in it."""
    if not args:
        return {}
    rows = np.fromiter(args, dtype=np.int64, count=len(args))
    by_row = np.argsort(rows)
    place = np.flatnonzero(np.isin(order, rows))
    nth = np.searchsorted(rows[by_row], order[place])
    values = list(args.values())
    return {place: values[index] for place, index in zip(place.tolist(), by_row[nth].tolist(), strict=True)}

"""How well a rank's GPU is kept busy: its kernels, how long they wait to start, and why it computes nothing.

Short kernels are those that are over before a host thread has launched the next one, which takes it 5 to 10 us: a GPU
that runs mostly these waits for its host, however much it could compute.

A GPU that computes nothing communicates, copies over its border, or has nothing to do. Then the work that it begins
next says why (here B, after A):

    host    launch A |== synchronise ==|       other things       | launch B |
    GPU               |      A      |                                     |     B     |
                                    | synchronisation | host-bound | launched |

From the start of the launching call on, B waits for the launch itself, for events of other streams or in the queue:
*launched*. Before that the host is the cause. Had it not waited for the GPU since its last launch (of A), it would have
launched B earlier by as much as it waited: so much of the gap, from its beginning, is *synchronisation*. The rest, in
which Python, operators and launches take their time, is *host-bound*. That a wait may be needed, for a value on which
depends what comes next, does not change what it costs.

The threads that train count as one host, since one of them waits while the thread of the autograd engine launches; any
other thread is a host of its own.
"""

import numpy as np

from anatomy.traces.columns import Columns
from anatomy.traces.intervals import covered_before, index_at, spans_of, union
from anatomy.traces.naming import is_communication
from anatomy.traces.rank.activity import Activity
from anatomy.traces.rank.annotations import numbers_of, training_threads, windows_of
from anatomy.traces.rank.record import Steps
from anatomy.traces.reading.events import Events, Kind

SHORT_KERNEL_NS = 10_000

UNKNOWN = -1
"""The row of a launch, a delay, or a statistic of delays that the trace does not say."""

QUEUEING_COLUMNS = (
    "step",
    "stream",
    "kernels",
    "kernel_ns",
    "mean_kernel_ns",
    "short_kernels",
    "launched",
    "delay_mean_ns",
    "delay_median_ns",
    "delay_p95_ns",
)

CAUSES = ("communication_bound", "copy_bound", "synchronisation", "host_bound", "launched", "unknown")
"""Why a GPU computes nothing."""

IDLE_COLUMNS = ("step", "not_computing_ns", *(f"{cause}_ns" for cause in CAUSES))

BLOCKING_PREFIXES = ("cudaMemcpy", "cuMemcpy", "hipMemcpy", "cudaFree", "cuMemFree", "hipFree")
"""Calls that return only once the GPU has done what they ask for, or all before it, unless `Async` is in their name."""


def queueing(events: Events, steps: Steps) -> Columns:
    """Kernels of each stream in each step, without those that communicate, which are long since they wait for others.

    A kernel belongs to the step and stream in which it starts. Its delay is from the start of the call that launched it
    to its own start; all kernels of a CUDA graph are launched by one call. Columns, int64 [n], by step and stream:
    step, stream, kernels, kernel_ns (sum of durations), mean_kernel_ns, short_kernels (below `SHORT_KERNEL_NS`),
    launched (those whose launch is known), and of these delay_mean_ns, delay_median_ns and delay_p95_ns, -1 where there
    are none. Means are rounded, and so are quantiles, which are interpolated.
    """
    rows = np.flatnonzero((events.kind == Kind.KERNEL) & ~events.by_name(is_communication))
    step = index_at(windows_of(steps), events.start_ns[rows])
    rows, step = rows[step >= 0], step[step >= 0]
    if len(rows) == 0:
        return {name: np.empty(0, dtype=np.int64) for name in QUEUEING_COLUMNS}
    launch = events.launch[rows]
    # A start may precede the launch by what older profilers round.
    delay = np.where(launch >= 0, np.maximum(events.start_ns[rows] - events.start_ns[launch], 0), UNKNOWN)
    order = np.lexsort([delay, events.stream[rows], step])
    rows, step, delay = rows[order], step[order], delay[order]
    stream, length = events.stream[rows].astype(np.int64), events.end_ns[rows] - events.start_ns[rows]
    first = np.flatnonzero(np.append(True, (step[1:] != step[:-1]) | (stream[1:] != stream[:-1])))
    last = np.append(first[1:], len(rows))
    kernel_ns = np.add.reduceat(length, first)
    short = np.add.reduceat((length < SHORT_KERNEL_NS).astype(np.int64), first)
    columns = (
        numbers_of(steps)[step[first]],
        stream[first],
        last - first,
        kernel_ns,
        _rounded(kernel_ns / (last - first)),
    )
    return dict(zip(QUEUEING_COLUMNS, (*columns, short, *_delays(delay, first, last)), strict=True))


def idle_causes(events: Events, steps: Steps, activity: Activity) -> Columns:
    """Why the rank's GPU computes nothing, in each step; nothing for a rank that does no work on a GPU.

    Columns, int64 [number of steps]: step, not_computing_ns, and its parts, which add up to it exactly:
    communication_bound_ns (communication is in flight), copy_bound_ns (else: memory crosses the device's border),
    synchronisation_ns, host_bound_ns and launched_ns (nothing runs; see above), and unknown_ns (nothing runs, and the
    trace does not say when the next work was launched, or has none).
    """
    windows = windows_of(steps)
    work = np.flatnonzero(events.on_gpu)
    if len(work) == 0 or len(steps) == 0:
        return {name: np.empty(0, dtype=np.int64) for name in IDLE_COLUMNS}
    compute = union(activity.compute)
    moving = union(np.concatenate([compute, activity.communication]))
    busy = union(np.concatenate([moving, activity.copies]))
    start = min(int(events.start_ns[0]), int(windows[0, 0]))
    end = max(int(events.end_ns.max()), int(windows[-1, 1]))
    gaps = spans_of(np.append(start, busy[:, 1]), np.append(busy[:, 0], end))
    computing_ns, moving_ns, busy_ns = (_within(spans, windows) for spans in (compute, moving, busy))
    not_computing_ns = windows[:, 1] - windows[:, 0] - computing_ns
    idle_ns = (_within(spans, windows) for spans in _gaps_by_cause(events, work, gaps))
    columns = (numbers_of(steps), not_computing_ns, moving_ns - computing_ns, busy_ns - moving_ns, *idle_ns)
    return dict(zip(IDLE_COLUMNS, columns, strict=True))


def _gaps_by_cause(events: Events, work: np.ndarray, gaps: np.ndarray) -> tuple[np.ndarray, ...]:
    """The parts of each gap, spans [number of gaps, 2] that may be empty, in the order of the last four `CAUSES`.

    `work` are the rows of what the GPU does.
    """
    begin, end = gaps[:, 0], gaps[:, 1]
    place = np.searchsorted(events.start_ns[work], end, side="left")
    launch = np.append(events.launch[work], UNKNOWN)[place]
    known = launch >= 0
    launched = np.where(known, np.clip(events.start_ns[launch], begin, end), begin)
    free = begin + np.minimum(_waited(events, launch), launched - begin)
    explained = np.where(known, end, begin)
    return spans_of(begin, free), spans_of(free, launched), spans_of(launched, explained), spans_of(explained, end)


def _waited(events: Events, launch: np.ndarray) -> np.ndarray:
    """For how long the host waited for the GPU between a launch and the one before it, int64 [k]; 0 for row -1."""
    result = np.zeros(len(launch), dtype=np.int64)
    launches = np.unique(events.launch[events.launch >= 0])
    waits = np.flatnonzero(_waits(events))
    training = training_threads(events)
    threads = events.thread[launch]
    for thread in np.unique(threads[launch >= 0]):
        host = training if thread in training else np.array([thread])
        starts = events.start_ns[launches[np.isin(events.thread[launches], host)]]
        rows = waits[np.isin(events.thread[waits], host)]
        waiting = union(spans_of(events.start_ns[rows], events.end_ns[rows]))
        chosen = np.flatnonzero((threads == thread) & (launch >= 0))
        own = events.start_ns[launch[chosen]]
        before = np.searchsorted(starts, own, side="left") - 1
        since = np.where(before >= 0, starts[before], np.iinfo(np.int64).min // 2)
        result[chosen] = covered_before(waiting, own) - covered_before(waiting, since)
    return result


def _waits(events: Events) -> np.ndarray:
    """Which events are calls in which the host waits for the GPU, bool [n].

    These are synchronisation, blocking copies, and copies of pageable memory whose call, though named asynchronous,
    returned only after the copy had ended.
    """
    result = (events.kind == Kind.LAUNCH) & events.by_name(_blocks)
    pageable = (events.kind == Kind.MEMCPY) & (events.launch >= 0) & events.by_name(lambda name: "Pageable" in name)
    copies = np.flatnonzero(pageable)
    calls = events.launch[copies]
    result[calls[events.end_ns[copies] <= events.end_ns[calls]]] = True
    return result


def _blocks(name: str) -> bool:
    """Whether a call of the CUDA or HIP runtime or driver waits for the GPU, by its name."""
    return "Synchronize" in name or (name.startswith(BLOCKING_PREFIXES) and "Async" not in name)


def _within(spans: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """How much of each window sorted spans cover that do not overlap, int64 [number of windows]."""
    return covered_before(spans, windows[:, 1]) - covered_before(spans, windows[:, 0])


def _delays(delay: np.ndarray, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of each group of delays, from `first` up to `last` [k]: how many are known, mean, median and 95th percentile.

    Delays are sorted within a group, so that those unknown come first. All are int64 [k].
    """
    count = np.add.reduceat((delay != UNKNOWN).astype(np.int64), first)
    total = np.add.reduceat(np.where(delay == UNKNOWN, 0, delay), first)
    statistics = [total / np.maximum(count, 1)]
    for share in (0.5, 0.95):
        place = last - np.maximum(count, 1) + share * np.maximum(count - 1, 0)
        lower = np.floor(place).astype(np.int64)
        upper = np.minimum(lower + 1, last - 1)
        statistics.append(delay[lower] + (place - lower) * (delay[upper] - delay[lower]))
    return count, *(np.where(count > 0, _rounded(values), UNKNOWN) for values in statistics)


def _rounded(values: np.ndarray) -> np.ndarray:
    return np.rint(values).astype(np.int64)

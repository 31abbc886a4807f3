"""What waits for what in one step: a graph over the ranks whose longest path is the step as it was recorded.

Each rank's step is a chain of *runs* of work of its own. A run ends where the rank waits for a collective, and the next
one begins where that collective ends on it: at a *join*. A rank waits for a collective that ends within, or at the end
of, a stretch of communication that nothing hides. One that ends under a computation is no join of that rank, though the
rank's arrival counts for the others; communication without a counterpart is work of the rank itself.

Nodes are instants on the common clock, in three blocks:

    run       the start of a run
    leave     where something leaves a run: the rank arrives at a collective, begins to wait, or ends its step
    gather    one per arrival: all that the collective had by then

and edges, each with the time that it takes:

    run -> leave -> leave ...   the rank's own work: takes as long as it did
    leave (arrival) -> gather   none
    gather -> gather            none: the next arrival of the same collective
    gather -> run               the transfer: from the last arrival that the rank needs to the collective's end on it
    leave (waits) -> run        none: waiting is no work

An edge never takes longer than the time between its nodes, and into every node but the first run of each rank at least
one takes just as long; so the recorded times are the longest paths. A transfer takes at least 1 ns, all others go
forward or stand still, hence there is no cycle.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anatomy.traces.columns import Columns, take

NEVER = -(1 << 60)
"""In place of a time: there is no such path."""
NONE = -1
"""In place of a number."""


@dataclass(frozen=True)
class RankStep:
    """One rank in one step, on the common clock: pieces without gap or overlap, int64 [n] each.

    `kinds` are numbers of a category and a phase, neighbours differing; `stretches` [k, 2] are when communication was
    exposed, whatever its phase.
    """

    rank: int
    starts: np.ndarray
    ends: np.ndarray
    kinds: np.ndarray
    stretches: np.ndarray

    @property
    def start(self) -> int:
        return int(self.starts[0])

    @property
    def end(self) -> int:
        return int(self.ends[-1])


@dataclass(frozen=True)
class Graph:
    """The graph of a step. Ranks are counted in the order given; nodes are numbered block by block.

    runs, leaves: times of each rank's nodes of these blocks, ascending and each once; first_run and first_leave are the
        numbers of its first ones
    gathers: arrivals in the order of their nodes, which begin at first_gather: collective, rank (place in the order
        given), instant
    joins: the rows of the collectives that ranks wait for, with run and gather (nodes), in the order of run
    times: int64 [nodes]
    sources, targets, lasts: int64 [edges]
    """

    runs: list[np.ndarray]
    leaves: list[np.ndarray]
    first_run: np.ndarray
    first_leave: np.ndarray
    first_gather: int
    gathers: Columns
    joins: Columns
    times: np.ndarray
    sources: np.ndarray
    targets: np.ndarray
    lasts: np.ndarray

    def tails(self) -> np.ndarray:
        """How long the longest path from each node to the end of any rank is, int64 [nodes]; below 0 where none is."""
        # Numbers break ties, since blocks are in the order in which nodes of one instant depend on each other.
        order = np.lexsort([self.sources, self.times[self.sources]])[::-1]
        tails = np.full(len(self.times), NEVER, dtype=np.int64)
        tails[self.first_leave + [len(leaves) - 1 for leaves in self.leaves]] = 0
        longest = tails.tolist()
        edges = (values[order].tolist() for values in (self.sources, self.targets, self.lasts))
        for source, target, lasts in zip(*edges, strict=True):
            longest[source] = max(longest[source], longest[target] + lasts)
        return np.array(longest, dtype=np.int64)


def build(ranks: Sequence[RankStep], collectives: Columns) -> Graph:
    """The graph of one step.

    `collectives` are matched rows in the step, on the common clock: collective, rank (place in `ranks`), synchronising,
    start_ns, end_ns, and whatever else `joins` is to say.
    """
    arrivals = _arrivals(ranks, collectives)
    joins = _joins(ranks, collectives, arrivals)
    arrivals = take(arrivals, np.isin(arrivals["collective"], joins["collective"]))
    joins["gather"] = _last_arrivals(arrivals, joins)
    runs, leaves, waits = [], [], []
    for place, rank in enumerate(ranks):
        begins = np.append(rank.start, np.unique(joins["end_ns"][joins["rank"] == place]))
        stretch = np.searchsorted(rank.stretches[:, 0], begins[1:]) - 1
        waiting = np.maximum(rank.stretches[stretch, 0], begins[:-1])
        arrived = arrivals["instant"][arrivals["rank"] == place]
        runs.append(begins)
        waits.append(waiting)
        leaves.append(np.unique(np.concatenate([arrived, waiting, [rank.end]])))
    return _connect(runs, leaves, waits, arrivals, joins)


def _arrivals(ranks: Sequence[RankStep], collectives: Columns) -> Columns:
    """When each rank arrived at each collective: collective, rank, instant, in that order, of late ones the last.

    Where no rank can finish before all have arrived, an arrival after another rank's end is an error of the clocks and
    is moved before it. Arrivals outside of the rank's step are left out.
    """
    instant, rank = collectives["start_ns"], collectives["rank"]
    _, number = np.unique(collectives["collective"], return_inverse=True)
    first_end = np.full(number.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first_end, number, collectives["end_ns"])
    late = collectives["synchronising"] & (instant >= first_end[number])
    instant = np.where(late, first_end[number] - 1, instant)
    starts, ends = (np.array([getattr(rank, name) for rank in ranks]) for name in ("start", "end"))
    within = (instant >= starts[rank]) & (instant < ends[rank])
    result = take({"collective": collectives["collective"], "rank": rank, "instant": instant}, within)
    return take(result, np.lexsort([-result["rank"], result["instant"], result["collective"]]))


def _joins(ranks: Sequence[RankStep], collectives: Columns, arrivals: Columns) -> Columns:
    """The rows of `collectives` for which their rank waited: those that end in a stretch of exposed communication."""
    end, place = collectives["end_ns"], collectives["rank"]
    waited = np.zeros(len(end), dtype=bool)
    for number, rank in enumerate(ranks):
        own = np.flatnonzero(place == number)
        stretch = np.searchsorted(rank.stretches[:, 0], end[own]) - 1
        until = np.append(rank.stretches[:, 1], NEVER)[stretch]
        waited[own] = end[own] <= until
    chosen = take(collectives, waited)
    chosen = take(chosen, _last_arrivals(arrivals, chosen) >= 0)
    return take(chosen, np.lexsort([chosen["collective"], chosen["end_ns"], chosen["rank"]]))


def _last_arrivals(arrivals: Columns, joins: Columns) -> np.ndarray:
    """The row of `arrivals` that is the last of its collective before each join's end; -1 where none is [joins]."""
    count = len(arrivals["instant"])
    row = np.append(np.arange(count), np.full(len(joins["end_ns"]), -1))
    collective = np.append(arrivals["collective"], joins["collective"])
    instant = np.append(arrivals["instant"], joins["end_ns"])
    # At one instant a join comes before an arrival, which is then too late for it.
    order = np.lexsort([row, instant, collective])
    last = np.empty(len(row), dtype=np.int64)
    last[order] = np.maximum.accumulate(row[order])
    return np.where((last >= 0) & (collective[last] == collective), last, -1)[count:]


def _connect(
    runs: list[np.ndarray], leaves: list[np.ndarray], waits: list[np.ndarray], arrivals: Columns, joins: Columns
) -> Graph:
    """Number the nodes and draw the edges; `waits` are when each rank begins to wait for each of its joins."""
    first_run = np.cumsum([0, *map(len, runs)])
    first_leave = first_run[-1] + np.cumsum([0, *map(len, leaves)])
    first_gather = int(first_leave[-1])
    times = np.concatenate([*runs, *leaves, arrivals["instant"]]).astype(np.int64)
    # Joins are in the order of ranks and ends, and so in that of their runs.
    joins |= {"gather": first_gather + joins["gather"], "run": _find(runs, first_run, joins["rank"], joins["end_ns"])}
    work, pauses = [], []
    for place, (begins, left, waiting) in enumerate(zip(runs, leaves, waits, strict=True)):
        node = first_leave[place] + np.arange(len(left))
        run = np.searchsorted(begins, left, side="right") - 1
        goes_on = np.append(False, run[1:] == run[:-1])
        work.append((np.where(goes_on, node - 1, first_run[place] + run), node))
        pauses.append((node[np.searchsorted(left, waiting)], first_run[place] + np.arange(1, len(begins))))
    gather, collective = first_gather + np.arange(len(arrivals["instant"])), arrivals["collective"]
    following = gather[1:][collective[1:] == collective[:-1]]
    arrive = (_find(leaves, first_leave, arrivals["rank"], arrivals["instant"]), gather)
    kinds = [*work, (joins["gather"], joins["run"]), *pauses, arrive, (following - 1, following)]
    sources, targets = (np.concatenate([kind[side] for kind in kinds]).astype(np.int64) for side in (0, 1))
    # Work and transfers take time; the other edges only say what comes after what.
    timed = sum(len(target) for _, target in work) + len(joins["run"])
    lasts = np.where(np.arange(len(targets)) < timed, times[targets] - times[sources], 0)
    return Graph(
        runs, leaves, first_run[:-1], first_leave[:-1], first_gather, arrivals, joins, times, sources, targets, lasts
    )


def _find(nodes: list[np.ndarray], first: np.ndarray, ranks: np.ndarray, instants: np.ndarray) -> np.ndarray:
    """The numbers of the nodes of given ranks at given instants, among blocks of ascending times, int64 [k]."""
    result = np.empty(len(ranks), dtype=np.int64)
    for place, times in enumerate(nodes):
        own = ranks == place
        result[own] = first[place] + np.searchsorted(times, instants[own])
    return result

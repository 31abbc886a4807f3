"""By how much each element of a step's critical path would have to shrink before another path takes over."""

import numpy as np

from anatomy.traces.columns import Columns
from anatomy.traces.job.dependencies import NEVER, NONE, Graph

Run = tuple[int, int, int]
"""Rank (place in the graph), start and end of work on the path."""


def slack_of(graph: Graph, path: Columns, runs: list[Run]) -> np.ndarray:
    """By how much each element of the path would have to shrink before another path takes over, ns [elements].

    `path` has start, end and gather (the node where a transfer begins, `NONE` for work) of elements that follow one
    another; `runs` is where it is work.

    Just after an element has begun, every path is on exactly one edge or before the start or past the end of its rank.
    So the longest path without the element is the longest one over the edges that are under way then, other than the
    element's own. Those on it leave the element early, and lose what of it they had, or go on with the path.
    """
    start, end = path["start"], path["end"]
    tails, last = graph.tails(), int(end[-1])
    on_path = _leaves_on(graph, runs)
    best = np.maximum(_others(graph, path, tails, on_path), start + last - end)
    leave = on_path[graph.sources] & (graph.targets >= graph.first_gather)
    instant = graph.times[graph.sources[leave]]
    element = np.searchsorted(start, instant) - 1
    inside = (element >= 0) & (instant < end[element])
    np.maximum.at(best, element[inside], start[element[inside]] + tails[graph.targets[leave]][inside])
    transfer = np.full(len(graph.times), NONE)
    transfer[path["gather"][path["gather"] != NONE]] = np.flatnonzero(path["gather"] != NONE)
    element = transfer[graph.joins["gather"]]
    own = element != NONE
    np.maximum.at(best, element[own], start[element[own]] + tails[graph.joins["run"]][own])
    return last - best


def _leaves_on(graph: Graph, runs: list[Run]) -> np.ndarray:
    """Which nodes are leaves on the path's runs, bool [nodes]."""
    found = np.zeros(len(graph.times), dtype=bool)
    for rank, start, end in runs:
        within = np.searchsorted(graph.leaves[rank], [start, end + 1])
        found[slice(*(graph.first_leave[rank] + within))] = True
    return found


def _others(graph: Graph, path: Columns, tails: np.ndarray, on_path: np.ndarray) -> np.ndarray:
    """The end of the longest path without each element, int64 [elements]; `NEVER` where all paths have it."""
    moments = path["start"]
    begins, ends = graph.times[graph.sources], graph.times[graph.targets]
    # All transfers of an element begin with it; only elements after it can do without them.
    transfer = np.isin(graph.sources, path["gather"]) & (graph.targets < graph.first_leave[0])
    other = ~on_path[graph.targets]
    starts, stops = (np.array([nodes[end] for nodes in of]) for of, end in ((graph.runs, 0), (graph.leaves, -1)))
    first = [
        np.searchsorted(moments, begins[other]) + transfer[other],
        np.zeros(len(starts), dtype=np.int64),
        np.searchsorted(moments, stops),
    ]
    last = [
        np.searchsorted(moments, ends[other]),
        np.searchsorted(moments, starts),
        np.full(len(stops), len(moments)),
    ]
    reaches = begins + graph.lasts + tails[graph.targets]
    values = [reaches[other], starts + tails[graph.first_run], stops]
    return _maxima(*map(np.concatenate, (first, last, values)), len(moments))


def _maxima(first: np.ndarray, last: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """The largest of `values` [n] at each of `count` places, each value lying at places first to last - 1.

    A range is the union of two whose length is a power of two; from the largest power down, each passes its values on
    to its halves. Takes n + count log(count) steps.
    """
    some = last > first
    first, last, values = first[some], last[some], values[some]
    power = np.frexp(last - first)[1] - 1
    table = np.full((count.bit_length(), count), NEVER, dtype=np.int64)
    np.maximum.at(table, (power, first), values)
    np.maximum.at(table, (power, last - (1 << power)), values)
    for level in range(len(table) - 1, 0, -1):
        half = 1 << (level - 1)
        np.maximum(table[level - 1], table[level], out=table[level - 1])
        np.maximum(table[level - 1][half:], table[level][:-half], out=table[level - 1][half:])
    return table[0]

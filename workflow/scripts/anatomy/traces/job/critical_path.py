"""The chain of work and collectives that determined how long each step took, across ranks.

The longest path through a graph of what the program did, edges taking as long as they did, is what the execution took
(Yang and Miller, "Critical path analysis for the execution of parallel and distributed programs", ICDCS 1988,
doi:10.1109/DCS.1988.12538). The graph here is that of `dependencies.py`.

Ranks begin a step at different times, since the step before it coupled them. Those times are taken as given: the path
ends with the rank that ends last and begins where some rank began, so its elements add up to the time between the two.
Where no rank waited for another in a step, their clocks mean nothing for it: they are then taken to begin together, and
the path is all of the rank that took longest.

By how much an element would have to shrink before another path takes over is what a path without it falls short: the
step's length less that of the longest path when the element takes no time. Project management calls it the drag of an
activity (Devaux), and Hollingsworth, "Critical path profiling of message passing and shared-memory programs", IEEE TPDS
9 (1998), doi:10.1109/71.730530, measures it by setting a procedure's time to zero. Two conventions make it one number:

- a transfer shrinks on all ranks at once that wait for the same last arrival;
- work shrinks at its beginning, so that all that leaves it later is earlier by as much.

Then a step gets shorter by exactly what an element on its path loses, up to this number, and by nothing beyond it.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from anatomy.traces.job.dependencies import NONE, Graph, RankStep, build, take
from anatomy.traces.job.matching import SYNCHRONISING
from anatomy.traces.job.slack import Run, slack_of
from anatomy.traces.rank.record import Columns

COMMUNICATION = "communication"
COLUMNS = {
    "step": "int64",
    "place": "int64",
    "rank": "int64",
    "element": "object",
    "phase": "object",
    "category": "object",
    "collective": "Int64",
    "start_ns": "int64",
    "end_ns": "int64",
    "length_ns": "int64",
    "slack_to_next_ns": "int64",
}


def critical_path(intervals: pd.DataFrame, collectives: pd.DataFrame, offsets: Mapping[int, int]) -> pd.DataFrame:
    """The critical path of every step, element by element in order of time.

    `intervals` are those of whole ranks: rank, step, start_ns, end_ns, category, phase, without gap or overlap in a
    step. `collectives` are rows of `match_collectives`: collective, rank, step, kind, phase, start_ns, end_ns, matched.
    Times are by each rank's own clock, from which `offsets` [rank, ns] are taken; a rank without one keeps its clock.

    Columns of the result: step, place (0.. in the step), rank, element (`phase`: work of one rank in one phase;
    `transfer`: a collective from its last arrival to its end on the rank that goes on from there), phase, category (the
    one that fills most of the element), collective (Int64, of a transfer), start_ns, end_ns (common clock), length_ns,
    slack_to_next_ns.

        element   rank  phase     start_ns  end_ns  slack_to_next_ns
        phase     1     backward         0     700               200
        transfer  0     sync           700     800               100
        phase     0     optimize       800     850                50
    """
    pieces, names = _pieces(intervals, offsets)
    rows = _matched(collectives, offsets)
    phase_of, _ = pd.factorize(names["phase"])
    paths = []
    for step in np.unique(pieces["step"]).tolist():
        ranks = list(_ranks(_of_step(pieces, step), names))
        place = {rank.rank: number for number, rank in enumerate(ranks)}
        own = _of_step(rows, step)
        own["rank"] = np.array([place.get(rank, NONE) for rank in own["rank"].tolist()], dtype=np.int64)
        path = _path_of_step(ranks, take(own, own["rank"] != NONE), phase_of)
        path["rank"] = np.array([rank.rank for rank in ranks])[path["rank"]]
        count = len(path["rank"])
        paths.append(path | {"step": np.full(count, step), "place": np.arange(count)})
    return _described(paths, names, collectives)


def _of_step(rows: Columns, step: int) -> Columns:
    """The rows of one step of a table that is sorted by it."""
    return take(rows, slice(*np.searchsorted(rows["step"], [step, step + 1])))


def _pieces(intervals: pd.DataFrame, offsets: Mapping[int, int]) -> tuple[Columns, pd.DataFrame]:
    """Intervals on the common clock, by step, rank and time, and the category and phase that each `kind` stands for.

    Neighbours of one category and phase are merged. Columns: step, rank, start, end, kind.
    """
    rank, step = intervals["rank"].to_numpy(dtype=np.int64), intervals["step"].to_numpy(dtype=np.int64)
    shift = _shift(rank, offsets)
    start, end = (intervals[name].to_numpy(dtype=np.int64) - shift for name in ("start_ns", "end_ns"))
    category, categories = pd.factorize(intervals["category"])
    phase, phases = pd.factorize(intervals["phase"])
    kind = category * len(phases) + phase
    order = np.lexsort([start, rank, step])
    order = order[(end > start)[order]]
    columns = take({"step": step, "rank": rank, "start": start, "end": end, "kind": kind}, order)
    differs = [columns[name][1:] != columns[name][:-1] for name in ("rank", "step", "kind")]
    first = np.append(True, np.any([*differs, columns["start"][1:] != columns["end"][:-1]], axis=0))
    first = np.flatnonzero(first[: len(order)])
    last = np.append(first[1:], len(order))[: len(first)] - 1
    names = pd.DataFrame([(one, other) for one in categories for other in phases], columns=["category", "phase"])
    return take(columns, first) | {"end": columns["end"][last]}, names.astype(object)


def _shift(ranks: np.ndarray, offsets: Mapping[int, int]) -> np.ndarray:
    """What to take from the times of each row of a rank, 0 where its clock is not known to differ, int64 [n]."""
    every, place = np.unique(ranks, return_inverse=True)
    known = [offsets.get(rank, 0) for rank in every.tolist()]
    return np.array([0 if pd.isna(offset) else offset for offset in known], dtype=np.int64)[place]


def _matched(collectives: pd.DataFrame, offsets: Mapping[int, int]) -> Columns:
    """The matched ones of `collectives` on the common clock, by step, with the place of each in it as `row`."""
    chosen = np.flatnonzero(collectives["matched"].to_numpy(dtype=bool))
    rows = collectives.iloc[chosen]
    names = ("collective", "rank", "step", "start_ns", "end_ns")
    result = {name: rows[name].to_numpy(dtype=np.int64) for name in names}
    shift = _shift(result["rank"], offsets)
    result |= {name: result[name] - shift for name in ("start_ns", "end_ns")}
    result |= {"synchronising": rows["kind"].isin(SYNCHRONISING).to_numpy(), "row": chosen}
    return take(result, np.argsort(result["step"], kind="stable"))


def _ranks(pieces: Columns, names: pd.DataFrame) -> Iterator[RankStep]:
    """The ranks of one step, ascending."""
    communicates = (names["category"] == COMMUNICATION).to_numpy()
    ranks, first = np.unique(pieces["rank"], return_index=True)
    for rank, begin, end in zip(ranks.tolist(), first, [*first[1:], len(pieces["rank"])], strict=True):
        starts, ends, kinds = (pieces[name][begin:end] for name in ("start", "end", "kind"))
        edges = np.diff(np.concatenate([[False], communicates[kinds], [False]]).astype(np.int8))
        stretches = np.column_stack([starts[np.flatnonzero(edges == 1)], ends[np.flatnonzero(edges == -1) - 1]])
        yield RankStep(rank, starts, ends, kinds, stretches)


def _path_of_step(ranks: list[RankStep], collectives: Columns, phase_of: np.ndarray) -> Columns:
    """The path of one step; `phase_of` is the phase of each kind, as a number.

    Columns: rank (place in `ranks`), start, end, kind (`NONE` for a transfer); gather (node), row (of the collectives)
    and collective (`NONE` for work); slack.
    """
    graph = build(ranks, collectives)
    shift = np.zeros(len(ranks), dtype=np.int64)
    if len(graph.joins["run"]) == 0:
        shift = np.array([rank.start for rank in ranks]) - min(rank.start for rank in ranks)
        ranks = [_earlier(rank, by) for rank, by in zip(ranks, shift, strict=True)]
        graph = build(ranks, take(collectives, slice(0)))
    runs, transfers = _walk(graph)
    work = _work(ranks, runs)
    path = {name: np.concatenate([work[name], transfers[name]]) for name in work}
    path = take(path, np.argsort(path["start"]))
    assert (path["start"][1:] == path["end"][:-1]).all(), "the critical path has a gap"
    path = _elements(path, phase_of)
    path["slack"] = slack_of(graph, path, runs)
    by = shift[path["rank"]]
    return path | {"start": path["start"] + by, "end": path["end"] + by}


def _elements(path: Columns, phase_of: np.ndarray) -> Columns:
    """The pieces of a path, those of one rank's work in one phase that follow each other as one of the kind that fills
    most of it."""
    transfer, phase = path["kind"] == NONE, phase_of[path["kind"]]
    goes_on = ~transfer[1:] & ~transfer[:-1] & (phase[1:] == phase[:-1])
    begins = np.append(True, ~goes_on)
    first, element = np.flatnonzero(begins), np.cumsum(begins) - 1
    spent = np.zeros((len(first), len(phase_of) + 1), dtype=np.int64)
    np.add.at(spent, (element, path["kind"]), path["end"] - path["start"])
    # The last column is that of NONE.
    kind = np.where(transfer[first], NONE, np.argmax(spent[:, :-1], axis=1))
    end = path["end"][np.append(first[1:], len(element)) - 1]
    return take(path, first) | {"kind": kind, "end": end}


def _earlier(rank: RankStep, by: int) -> RankStep:
    return RankStep(rank.rank, rank.starts - by, rank.ends - by, rank.kinds, rank.stretches - by)


def _walk(graph: Graph) -> tuple[list[Run], Columns]:
    """Back from the end of the rank that ends last, always to what held up a node, to the start of a rank.

    Returns the runs of work (rank, start, end) and the transfers on the way, latest first.
    """
    ends = [leaves[-1] for leaves in graph.leaves]
    rank, instant = int(np.argmax(ends)), int(max(ends))
    begins = [runs.tolist() for runs in graph.runs]
    arrivals = list(zip(graph.gathers["rank"].tolist(), graph.gathers["instant"].tolist(), strict=True))
    # Of collectives that end on a rank at once, the first is taken.
    nodes, first = np.unique(graph.joins["run"], return_index=True)
    join_of = dict(zip(nodes.tolist(), first.tolist(), strict=True))
    runs, transfers = [], []
    while True:
        place = bisect_right(begins[rank], instant) - 1
        begin = begins[rank][place]
        runs.append((rank, begin, instant))
        if place == 0:
            break
        join = join_of[graph.first_run[rank] + place]
        arrival = arrivals[graph.joins["gather"][join] - graph.first_gather]
        transfers.append((rank, arrival[1], begin, join))
        rank, instant = arrival
    found = np.array(transfers, dtype=np.int64).reshape(-1, 4).T
    of_join = {name: graph.joins[name][found[3]] for name in ("gather", "row", "collective")}
    names = ("rank", "start", "end")
    return runs, dict(zip(names, found[:3], strict=True)) | {"kind": np.full(len(transfers), NONE)} | of_join


def _work(ranks: list[RankStep], runs: list[Run]) -> Columns:
    """The pieces of each rank within its runs, with the columns of transfers."""
    names = ("rank", "start", "end", "kind")
    parts = []
    for place, start, end in runs:
        rank = ranks[place]
        within = slice(np.searchsorted(rank.ends, start, side="right"), np.searchsorted(rank.starts, end))
        starts, ends = np.maximum(rank.starts[within], start), np.minimum(rank.ends[within], end)
        parts.append((np.full(len(starts), place), starts, ends, rank.kinds[within]))
    pieces = {name: np.concatenate([part[number] for part in parts]) for number, name in enumerate(names)}
    pieces = take(pieces, pieces["end"] > pieces["start"])
    return pieces | dict.fromkeys(("gather", "row", "collective"), np.full(len(pieces["rank"]), NONE))


def _described(paths: list[Columns], names: pd.DataFrame, collectives: pd.DataFrame) -> pd.DataFrame:
    """The paths of all steps in words."""
    path = {name: np.concatenate([path[name] for path in paths]) for name in (paths[0] if paths else ())}
    if not paths:
        return pd.DataFrame(columns=list(COLUMNS)).astype(COLUMNS)
    transfer = path["kind"] == NONE
    phase, category = (names[name].to_numpy()[path["kind"]] for name in ("phase", "category"))
    phase[transfer] = collectives["phase"].to_numpy()[path["row"][transfer]]
    category[transfer] = COMMUNICATION
    described = {
        "element": np.where(transfer, "transfer", "phase"),
        "phase": phase,
        "category": category,
        "collective": pd.array(path["collective"], dtype="Int64"),
        "start_ns": path["start"],
        "end_ns": path["end"],
        "length_ns": path["end"] - path["start"],
        "slack_to_next_ns": path["slack"],
    }
    table = pd.DataFrame({"step": path["step"], "place": path["place"], "rank": path["rank"]} | described)
    table["collective"] = table["collective"].mask(~transfer)
    return table[list(COLUMNS)].astype(COLUMNS)

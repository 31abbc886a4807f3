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

from anatomy.traces.columns import MISSING, Columns, concatenated, take
from anatomy.traces.job.dependencies import NONE, Graph, RankStep, build
from anatomy.traces.job.matching import is_synchronising
from anatomy.traces.job.slack import Run, slack_of
from anatomy.traces.rank.annotations import PHASES
from anatomy.traces.rank.decomposition import CATEGORIES, COMMUNICATION

COLUMNS = {
    "step": np.int64,
    "place": np.int64,
    "rank": np.int64,
    "element": object,
    "phase": np.int64,
    "category": np.int64,
    "collective": np.int64,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "length_ns": np.int64,
    "slack_to_next_ns": np.int64,
}

KINDS = len(CATEGORIES) * len(PHASES)
"""A category and a phase as one number: the category times the number of phases, and the phase."""


def critical_path(stretches: Columns, collectives: Columns, offsets: Mapping[int, int]) -> Columns:
    """The critical path of every step, element by element in order of time.

    `stretches` are of whole ranks: rank, step, start_ns, end_ns, category, phase, without gap or overlap in a step.
    `collectives` are rows of `match_collectives`: collective, rank, step, kind, phase, start_ns, end_ns, matched. Times
    are by each rank's own clock, from which `offsets` [rank, ns] are taken; a rank without one keeps its clock. Phases
    and categories are indices into `PHASES` and `CATEGORIES`, here and in the result.

    Columns of the result, int64 but for element: step, place (0.. in the step), rank, element (object; `phase`: work of
    one rank in one phase; `transfer`: a collective from its last arrival to its end on the rank that goes on from
    there), phase, category (the one that fills most of the element, of equal ones the first), collective (of a
    transfer, else `MISSING`), start_ns, end_ns (common clock), length_ns, slack_to_next_ns.

        element   rank  phase     start_ns  end_ns  slack_to_next_ns
        phase     1     backward         0     700               200
        transfer  0     sync           700     800               100
        phase     0     optimize       800     850                50
    """
    pieces = _pieces(stretches, offsets)
    rows = _matched(collectives, offsets)
    paths = []
    for step in np.unique(pieces["step"]).tolist():
        ranks = list(_ranks(_of_step(pieces, step)))
        place = {rank.rank: number for number, rank in enumerate(ranks)}
        own = _of_step(rows, step)
        own["rank"] = np.array([place.get(rank, NONE) for rank in own["rank"].tolist()], dtype=np.int64)
        path = _path_of_step(ranks, take(own, own["rank"] != NONE))
        path["rank"] = np.array([rank.rank for rank in ranks])[path["rank"]]
        count = len(path["rank"])
        paths.append(path | {"step": np.full(count, step), "place": np.arange(count)})
    return _described(paths, collectives)


def on_common_clock(rows: Columns, offsets: Mapping[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """start_ns and end_ns of rows [n] less the offset of their rank; where a rank has none, as they are."""
    starts, ends = rows["start_ns"], rows["end_ns"]
    if not any(offsets.values()):
        return starts, ends
    ranks, place = np.unique(rows["rank"], return_inverse=True)
    shift = np.array([offsets.get(rank, 0) for rank in ranks.tolist()], dtype=np.int64)[place]
    return starts - shift, ends - shift


def _of_step(rows: Columns, step: int) -> Columns:
    """The rows of one step of a table that is sorted by it."""
    return take(rows, slice(*np.searchsorted(rows["step"], [step, step + 1])))


def _pieces(stretches: Columns, offsets: Mapping[int, int]) -> Columns:
    """Stretches on the common clock, by step, rank and time; neighbours of one category and phase are merged.

    Columns, int64: step, rank, start, end, kind (category and phase as one number, see `KINDS`).
    """
    start, end = on_common_clock(stretches, offsets)
    kind = stretches["category"].astype(np.int64) * len(PHASES) + stretches["phase"]
    columns = {"step": stretches["step"], "rank": stretches["rank"], "start": start, "end": end, "kind": kind}
    order = np.lexsort([start, stretches["rank"], stretches["step"]])
    columns = take(columns, order[(end > start)[order]])
    differs = columns["start"][1:] != columns["end"][:-1]
    for name in ("rank", "step", "kind"):
        differs |= columns[name][1:] != columns[name][:-1]
    count = len(columns["start"])
    first = np.flatnonzero(np.append(True, differs)[:count])
    return take(columns, first) | {"end": columns["end"][np.append(first[1:], count)[: len(first)] - 1]}


def _matched(collectives: Columns, offsets: Mapping[int, int]) -> Columns:
    """The matched ones of `collectives` on the common clock, by step, with the place of each in it as `row`."""
    chosen = np.flatnonzero(collectives["matched"])
    rows = take(
        {name: collectives[name] for name in ("collective", "rank", "step", "start_ns", "end_ns", "kind")}, chosen
    )
    starts, ends = on_common_clock(rows, offsets)
    rows |= {"start_ns": starts, "end_ns": ends, "synchronising": is_synchronising(rows.pop("kind")), "row": chosen}
    return take(rows, np.argsort(rows["step"], kind="stable"))


def _ranks(pieces: Columns) -> Iterator[RankStep]:
    """The ranks of one step, ascending."""
    communicates = pieces["kind"] // len(PHASES) == COMMUNICATION
    ranks, first = np.unique(pieces["rank"], return_index=True)
    for rank, begin, end in zip(ranks.tolist(), first, [*first[1:], len(pieces["rank"])], strict=True):
        starts, ends, kinds = (pieces[name][begin:end] for name in ("start", "end", "kind"))
        edges = np.diff(np.concatenate([[False], communicates[begin:end], [False]]).astype(np.int8))
        stretches = np.column_stack([starts[np.flatnonzero(edges == 1)], ends[np.flatnonzero(edges == -1) - 1]])
        yield RankStep(rank, starts, ends, kinds, stretches)


def _path_of_step(ranks: list[RankStep], collectives: Columns) -> Columns:
    """The path of one step.

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
    path = _elements(path)
    path["slack"] = slack_of(graph, path, runs)
    by = shift[path["rank"]]
    return path | {"start": path["start"] + by, "end": path["end"] + by}


def _elements(path: Columns) -> Columns:
    """The pieces of a path, those of one rank's work in one phase that follow each other as one of the kind that fills
    most of it."""
    transfer, phase = path["kind"] == NONE, path["kind"] % len(PHASES)
    goes_on = ~transfer[1:] & ~transfer[:-1] & (phase[1:] == phase[:-1])
    begins = np.append(True, ~goes_on)
    first, element = np.flatnonzero(begins), np.cumsum(begins) - 1
    spent = np.zeros((len(first), KINDS + 1), dtype=np.int64)
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


def _described(paths: list[Columns], collectives: Columns) -> Columns:
    """The paths of all steps as the columns of the result."""
    if not paths:
        return {name: np.empty(0, dtype=dtype) for name, dtype in COLUMNS.items()}
    path = concatenated(paths)
    transfer = path["kind"] == NONE
    category, phase = np.divmod(path["kind"], len(PHASES))
    phase[transfer] = collectives["phase"][path["row"][transfer]]
    category[transfer] = COMMUNICATION
    described = {
        "element": np.where(transfer, "transfer", "phase"),
        "phase": phase,
        "category": category,
        "collective": np.where(transfer, path["collective"], MISSING),
        "start_ns": path["start"],
        "end_ns": path["end"],
        "length_ns": path["end"] - path["start"],
        "slack_to_next_ns": path["slack"],
    }
    columns = {"step": path["step"], "place": path["place"], "rank": path["rank"]} | described
    return {name: columns[name].astype(dtype, copy=False) for name, dtype in COLUMNS.items()}

"""Jobs made up for the critical path: tables by hand, at random, and of a simulator that can run a job again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from anatomy.traces.columns import MISSING, Columns
from anatomy.traces.rank.annotations import PHASES
from anatomy.traces.rank.decomposition import CATEGORIES

STRETCHES = ["rank", "step", "start_ns", "end_ns", "category", "phase"]
COLLECTIVES = ["collective", "rank", "step", "start_ns", "end_ns", "kind", "phase", "matched"]
TYPES = {"kind": object, "matched": bool}


def stretches(by_rank: Mapping[int, Sequence[tuple[int, int, str]]], step: int = 1) -> Columns:
    """Rows from (start, end, phase) per rank; phase `sync` communicates, `launch backward` idles, others compute."""
    category = {"sync": "communication", "launch backward": "idle"}
    rows = [
        (rank, step, start, end, CATEGORIES.index(category.get(phase, "compute")), _code(phase.removeprefix("launch ")))
        for rank, spans in by_rank.items()
        for start, end, phase in spans
    ]
    return _columns(STRETCHES, rows)


def collectives(*rows: tuple, kind: str = "all_reduce", step: int = 1, matched: bool = True) -> Columns:
    """Rows from (collective, {rank: (start, end)})."""
    cells = [
        (number, rank, step, start, end, kind, _code("sync"), matched)
        for number, spans in rows
        for rank, (start, end) in spans.items()
    ]
    return _columns(COLLECTIVES, cells)


def in_words(path: Columns) -> pd.DataFrame:
    """A critical path with names in place of numbers, and nothing where a collective is missing."""
    names = {"phase": np.array(PHASES)[path["phase"]], "category": np.array(CATEGORIES)[path["category"]]}
    collective = pd.array(path["collective"], dtype="Int64")
    collective[path["collective"] == MISSING] = pd.NA
    return pd.DataFrame({**path, **names, "collective": collective})


def _columns(names: Sequence[str], rows: Sequence[tuple]) -> Columns:
    cells = zip(*rows, strict=True) if rows else [()] * len(names)
    return {name: np.array(column, TYPES.get(name, np.int64)) for name, column in zip(names, cells, strict=True)}


def _code(phase: str) -> int:
    return PHASES.index(phase)


@dataclass(frozen=True)
class Work:
    phase: str
    lasts: int


@dataclass(frozen=True)
class Start:
    """The rank arrives at a collective, and goes on."""

    collective: int


@dataclass(frozen=True)
class Wait:
    """The rank waits for a collective that it has started, if it is not over."""

    collective: int


@dataclass(frozen=True)
class Program:
    """What each rank does, when it begins, and how long each collective's transfer takes to each rank."""

    ranks: tuple[tuple[Work | Start | Wait, ...], ...]
    begins: tuple[int, ...]
    transfers: tuple[tuple[int, ...], ...]


@dataclass
class Played:
    """A program's course: pieces (start, end, phase, place in the program), arrivals, ends of collectives."""

    pieces: list[list[tuple[int, int, str, int]]]
    arrivals: list[dict[int, int]]
    ends: list[dict[int, int]]

    @property
    def end(self) -> int:
        return max(pieces[-1][1] for pieces in self.pieces)


def play(program: Program) -> Played:
    """Run it; every rank goes as far as it can until all are through."""
    count = len(program.ranks)
    now, place = list(program.begins), [0] * count
    arrivals = [{} for _ in program.transfers]
    played = Played([[] for _ in range(count)], arrivals, [{} for _ in program.transfers])
    while any(place[rank] < len(program.ranks[rank]) for rank in range(count)):
        before = list(place)
        for rank, actions in enumerate(program.ranks):
            while place[rank] < len(actions) and _act(program, played, rank, place[rank], now):
                place[rank] += 1
        assert place != before, "the program is stuck"
    for number, arrived in enumerate(arrivals):
        for rank in range(count):
            played.ends[number][rank] = max(arrived.values()) + program.transfers[number][rank]
    return played


def _act(program: Program, played: Played, rank: int, place: int, now: list[int]) -> bool:
    """One action of a rank; False where it has to wait for what another rank has not done yet."""
    match program.ranks[rank][place]:
        case Work(phase, lasts):
            played.pieces[rank].append((now[rank], now[rank] + lasts, phase, place))
            now[rank] += lasts
        case Start(collective):
            played.arrivals[collective][rank] = now[rank]
        case Wait(collective):
            arrived = played.arrivals[collective]
            if len(arrived) < len(program.ranks):
                return False
            end = max(arrived.values()) + program.transfers[collective][rank]
            if end > now[rank]:
                played.pieces[rank].append((now[rank], end, "sync", place))
                now[rank] = end
    return True


def as_a_trace_shows(program: Program) -> Program:
    """The program with the waits that a trace shows: those that held a rank up, for all that ended meanwhile."""
    played = play(program)
    ranks = []
    for rank, actions in enumerate(program.ranks):
        held_up = {place: (start, end) for start, end, phase, place in played.pieces[rank] if phase == "sync"}
        shown: list[Work | Start | Wait] = []
        for place, action in enumerate(actions):
            if not isinstance(action, Wait):
                shown.append(action)
            elif place in held_up:
                start, end = held_up[place]
                ended = sorted((ends[rank], number) for number, ends in enumerate(played.ends))
                shown += [Wait(number) for instant, number in ended if start < instant <= end]
        ranks.append(tuple(shown))
    return replace(program, ranks=tuple(ranks))


def tables_of(played: Played) -> tuple[Columns, Columns]:
    spans = {rank: [piece[:3] for piece in pieces] for rank, pieces in enumerate(played.pieces)}
    rows = [
        (number, {rank: (start, played.ends[number][rank]) for rank, start in arrived.items()})
        for number, arrived in enumerate(played.arrivals)
    ]
    return stretches(spans), collectives(*rows)


WORK = ["aggregate", "backward", "launch backward"]


@st.composite
def programs(draw) -> Program:
    """Ranks that start all collectives in one order and wait for each at once, later, or never."""
    count, number = draw(st.integers(1, 4)), draw(st.integers(0, 4))
    lasts = st.integers(1, 40)
    ranks = []
    for _ in range(count):
        actions: list[Work | Start | Wait] = [Work("sample", draw(lasts))]
        pending = []
        for collective in range(number):
            if draw(st.booleans()):
                actions.append(Work(draw(st.sampled_from(WORK)), draw(lasts)))
            actions.append(Start(collective))
            pending.append(collective)
            if draw(st.booleans()):
                actions += [Work(draw(st.sampled_from(WORK)), draw(lasts)) for _ in range(draw(st.integers(1, 3)))]
            while pending and draw(st.booleans()):
                actions.append(Wait(pending.pop(0)))
        actions += [Wait(collective) for collective in pending if draw(st.booleans())]
        actions.append(Work("optimize", draw(lasts)))
        ranks.append(tuple(actions))
    begins = tuple(draw(st.integers(0, 20)) for _ in range(count))
    transfers = tuple(tuple(draw(lasts) for _ in range(count)) for _ in range(number))
    program = as_a_trace_shows(Program(tuple(ranks), begins, transfers))
    if not any(isinstance(action, Wait) for actions in program.ranks for action in actions):
        program = replace(program, begins=(0,) * count)
    return program


def shrunk(program: Program, played: Played, element: pd.Series, by: int) -> Program:
    """The program with one element of its path shorter: a collective's transfers, or work from its beginning."""
    if element["element"] == "transfer":
        transfers = list(program.transfers)
        transfers[element["collective"]] = tuple(max(time - by, 0) for time in transfers[element["collective"]])
        return replace(program, transfers=tuple(transfers))
    actions = list(program.ranks[element["rank"]])
    for start, end, _, place in played.pieces[element["rank"]]:
        cut = min(by, min(end, element["end_ns"]) - max(start, element["start_ns"]))
        if cut > 0:
            actions[place] = replace(actions[place], lasts=actions[place].lasts - cut)
            by -= cut
    ranks = list(program.ranks)
    ranks[element["rank"]] = tuple(actions)
    return replace(program, ranks=tuple(ranks))


@st.composite
def tables(draw) -> tuple[Columns, Columns, dict[int, int]]:
    """Stretches and collectives that no program need have produced, clocks that err included."""
    count = draw(st.integers(1, 3))
    phases = st.sampled_from(["sample", "backward", "sync"])
    spans = {}
    for rank in range(count):
        cuts = sorted(draw(st.sets(st.integers(0, 50), min_size=2, max_size=9)))
        spans[rank] = [(start, end, draw(phases)) for start, end in pairwise(cuts)]
    rows = []
    for number in range(draw(st.integers(0, 5))):
        times = {rank: sorted(draw(st.tuples(st.integers(0, 50), st.integers(0, 50)))) for rank in range(count)}
        rows.append((number, {rank: tuple(pair) for rank, pair in times.items()}))
    kind = draw(st.sampled_from(["all_reduce", "broadcast"]))
    offsets = {rank: draw(st.integers(-5, 5)) for rank in range(count)}
    return stretches(spans), collectives(*rows, kind=kind), offsets

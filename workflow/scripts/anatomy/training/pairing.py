"""How two ranks agree to meet, or that one goes on alone: a protocol on counters and keys that all ranks share.

The protocol is a state machine without a transport. `action` says what a rank does next in its state, `advance` what
its state is after that. Real ranks drive it through a store (`gossip.Meetings`), tests through a model of one, in which
they explore every interleaving.

Two ranks at most come to a meeting. Whom a rank can meet is decided before it starts, by the name of the meeting:

- by appointment: the name is the round's and the pair's (`appointment`). A seeded matching of the round says who the
  pair is, so both know the name.
- whoever comes next: the name is given out with a ticket. Tickets are counted, and those 2 i + 1 and 2 i + 2 are for
  meeting i. The waiting list is no longer than one rank: who comes to it finds nobody, and waits, or finds one who
  waits, and meets that one. Who is met is left to timing.

At a meeting there is a first and a second: by the ticket, or by a counter of arrivals. Each writes its name there. The
first waits for the second, but no longer than its patience. The second when it comes, and the first when its patience
is at an end, count `decided`. Who counts it to 1 decides: the first, that it has gone, or the second, that they meet.
So they never disagree, since one of them counted first.

No deadlock. A rank waits in three places. (1) The first, for the second: this ends with its patience. (2) The second,
for the first's name: the first came before, and writes its name next, with no waiting between. (3) The first, which
wanted to go and finds that the second has decided to meet, for the second's name: the second writes it next, after (2).
Then both know of each other and exchange, before either does anything else, and wait for no third. So no chain of waits
is longer than these, and none is a circle. No livelock: a rank that finds its partner gone takes another ticket, and
each time another rank has ended a search. A rank leaves between two searches, when nobody is promised to it. Who has an
appointment with it goes on alone: at once if it sees that the other has left, else when its patience is at an end.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class Count:
    """Add 1 to a counter that begins at 0; the answer is its new value, a number that no other rank gets."""

    counter: str


@dataclass(frozen=True)
class Write:
    """Set a key that nobody has set; no answer."""

    key: str
    value: int


@dataclass(frozen=True)
class Await:
    """Wait until one of some keys is set; the answer is its value, of the first that is.

    Unless `sure`, the answer is None when the rank's patience is at an end before.
    """

    keys: tuple[str, ...]
    sure: bool


Action = Count | Write | Await
Answer = int | None
Stage = Literal["ticket", "arrive", "name", "wait", "go", "late", "claim", "read", "reply", "end"]
GONE = -1
"""What a rank that has left writes where others look for it: never the number of a rank."""


@dataclass(frozen=True)
class Search:
    """One rank's search for a partner, from its start to its end.

    `meeting`: its name, None before a ticket gives one. `expected`: with whom the appointment is, None for whoever
    comes next. At the end, `partner` is the rank to meet, None where this one goes on alone.
    """

    rank: int
    place: str
    meeting: str | None = None
    expected: int | None = None
    stage: Stage = "ticket"
    partner: int | None = None

    @property
    def ended(self) -> bool:
        return self.stage == "end"


def search_next(rank: int, place: str) -> Search:
    """A search for whoever comes next; `place` is the same for all who can meet, and for nobody else."""
    return Search(rank, place)


def search_appointed(rank: int, place: str, round_number: int, expected: int | None) -> Search:
    """A search for the rank with which there is an appointment in a round; it ends at once where there is none."""
    if expected is None:
        return Search(rank, place, stage="end")
    low, high = sorted((rank, expected))
    return Search(rank, place, f"{place}/{round_number}/{low}-{high}", expected, "arrive")


def left(place: str, rank: int) -> str:
    """The key that a rank sets, to `GONE`, when it leaves a place for good."""
    return f"{place}/left/{rank}"


def action(search: Search) -> Action:
    """What a rank does next; it must not have ended."""
    meeting = search.meeting
    match search.stage:
        case "ticket":
            return Count(f"{search.place}/tickets")
        case "arrive":
            return Count(f"{meeting}/arrivals")
        case "name":
            return Write(f"{meeting}/first", search.rank)
        case "wait":
            gone = () if search.expected is None else (left(search.place, search.expected),)
            return Await((f"{meeting}/second", *gone), sure=False)
        case "go" | "claim":
            return Count(f"{meeting}/decided")
        case "late":
            return Await((f"{meeting}/second",), sure=True)
        case "read":
            return Await((f"{meeting}/first",), sure=True)
        case "reply":
            return Write(f"{meeting}/second", search.rank)
        case stage:
            raise AssertionError(f"a search in stage {stage!r} does nothing")


def advance(search: Search, answer: Answer) -> Search:
    """The state after the `action`, given its answer."""
    match search.stage:
        case "ticket":
            assert answer is not None
            number, place = divmod(answer - 1, 2)
            return replace(search, meeting=f"{search.place}/{number}", stage="claim" if place else "name")
        case "arrive":
            return replace(search, stage="name" if answer == 1 else "claim")
        case "name":
            return replace(search, stage="wait")
        case "wait" if answer is None or answer == GONE:
            return replace(search, stage="go")
        case "wait" | "late":
            return replace(search, stage="end", partner=answer)
        case "go":
            return replace(search, stage="end" if answer == 1 else "late")
        case "claim" if answer == 1:
            return replace(search, stage="read")
        case "claim":  # The first has gone.
            gone = {"stage": "ticket", "meeting": None} if search.expected is None else {"stage": "end"}
            return replace(search, **gone)
        case "read":
            return replace(search, stage="reply", partner=answer)
        case "reply":
            return replace(search, stage="end")
        case stage:
            raise AssertionError(f"a search in stage {stage!r} does not go on")


def matching(size: int, *keys: int) -> list[int | None]:
    """A uniformly random matching of ranks in pairs, from the keys (seed, epoch, round) alone.

    With whom each rank is matched; None for the one that is left where `size` is odd.
    """
    order = np.random.default_rng(list(keys)).permutation(size).tolist()
    partners: list[int | None] = [None] * size
    for one, other in zip(order[::2], order[1::2], strict=False):
        partners[one], partners[other] = other, one
    return partners

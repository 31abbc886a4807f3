"""Every interleaving of ranks that look for partners: they always agree, always end, and nobody waits for ever."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from anatomy.training import pairing
from anatomy.training.pairing import Await, Count, Search, Write, left, matching

Memory = frozenset[tuple[str, int]]
PLACE = "place"


@dataclass(frozen=True)
class Rank:
    """Where a rank is in its program: how many searches it has begun, and the one it is in.

    Without a search it has made all of its own, and is to leave or has left.
    """

    begun: int = 0
    search: Search | None = None
    left: bool = False

    @property
    def exchanging(self) -> bool:
        return self.search is not None and self.search.ended


@dataclass(frozen=True)
class Protocol:
    """How many searches each rank makes, how it begins one, whether it tells when it leaves, and the machine."""

    rounds: tuple[int, ...]
    begin: Callable[[int, int], Search]
    tells: bool
    action: Callable[[Search], Any] = pairing.action
    advance: Callable[[Search, Any], Search] = pairing.advance

    def start(self) -> tuple[Rank, ...]:
        return tuple(self._next(number, Rank()) for number in range(len(self.rounds)))

    def steps(self, ranks: tuple[Rank, ...], memory: Memory) -> Iterator[tuple[tuple[Rank, ...], Memory]]:
        """All that can happen next, each as ranks and memory after it."""
        for number, rank in enumerate(ranks):
            if rank.exchanging:
                yield from self._exchange(number, ranks, memory)
            elif rank.search is not None:
                for answer, written in self._answers(rank.search, memory):
                    after = self._next(number, replace(rank, search=self.advance(rank.search, answer)))
                    yield _with(ranks, {number: after}), written
            elif self.tells and not rank.left:
                written = memory | {(left(PLACE, number), pairing.GONE)}
                yield _with(ranks, {number: replace(rank, left=True)}), written

    def has_ended(self, rank: Rank) -> bool:
        return rank.search is None and (rank.left or not self.tells)

    def _next(self, number: int, rank: Rank) -> Rank:
        """The rank with another search, where it is in none that goes on or ended with a partner."""
        while rank.search is None or (rank.search.ended and rank.search.partner is None):
            if rank.begun == self.rounds[number]:
                return replace(rank, search=None)
            rank = Rank(rank.begun + 1, self.begin(number, rank.begun))
        return rank

    def _exchange(
        self, number: int, ranks: tuple[Rank, ...], memory: Memory
    ) -> Iterator[tuple[tuple[Rank, ...], Memory]]:
        """Of two that each have the other as partner, in the step of the lower one. Nobody comes there again."""
        search = ranks[number].search
        other = ranks[search.partner].search
        if number < search.partner and other is not None and other.partner == number:
            assert other.meeting == search.meeting, "they meet in different places"
            both = (number, search.partner)
            after = {one: self._next(one, replace(ranks[one], search=None)) for one in both}
            forgotten = frozenset(item for item in memory if item[0].startswith(f"{search.meeting}/"))
            yield _with(ranks, after), memory - forgotten

    def _answers(self, search: Search, memory: Memory) -> list[tuple[int | None, Memory]]:
        held = dict(memory)
        match self.action(search):
            case Count(counter):
                value = held.get(counter, 0) + 1
                return [(value, frozenset((held | {counter: value}).items()))]
            case Write(key, value):
                assert key not in held, "a key is set twice"
                return [(None, memory | {(key, value)})]
            case Await(keys, sure):
                answers = [(held[key], memory) for key in keys if key in held][:1]
                return answers + ([] if sure else [(None, memory)])


def _with(ranks: tuple[Rank, ...], changed: dict[int, Rank]) -> tuple[Rank, ...]:
    return tuple(changed.get(number, rank) for number, rank in enumerate(ranks))


@dataclass
class Explored:
    """`stuck`: states in which nothing can happen although a rank has not left; `circular`: some path never ends."""

    states: int
    stuck: list[tuple[Rank, ...]]
    circular: bool
    exchanges: int


def explore(protocol: Protocol) -> Explored:
    """Every state that can be reached, breadth first, and whether all paths through them end."""
    start = (protocol.start(), frozenset())
    entered, queue = {start: 0}, deque([start])
    following, stuck, exchanges = {}, [], 0
    while queue:
        state = queue.popleft()
        following[state] = list(protocol.steps(*state))
        if not following[state] and not all(protocol.has_ended(rank) for rank in state[0]):
            stuck.append(state[0])
        for after in following[state]:
            exchanges += sum(rank.exchanging for rank in state[0]) > sum(rank.exchanging for rank in after[0])
            if after not in entered:
                entered[after] = 0
                queue.append(after)
            entered[after] += 1
    return Explored(len(entered), stuck, _is_circular(start, entered, following), exchanges)


def _is_circular(start: Any, entered: dict, following: dict) -> bool:
    """Whether states remain when those that nothing leads to are taken away, one after the other."""
    ready, taken = [start], 0
    entered = dict(entered)
    while ready:
        taken += 1
        for after in following[ready.pop()]:
            entered[after] -= 1
            if entered[after] == 0:
                ready.append(after)
    return taken < len(entered)


def whoever_comes(*rounds: int, **machine: Any) -> Protocol:
    return Protocol(rounds, lambda rank, _: pairing.search_next(rank, PLACE), tells=False, **machine)


def by_appointment(*rounds: int, seed: int = 0, **machine: Any) -> Protocol:
    def begin(rank: int, number: int) -> Search:
        return pairing.search_appointed(rank, PLACE, number, matching(len(rounds), seed, number)[rank])

    return Protocol(rounds, begin, tells=True, **machine)


CASES = {
    "next": (whoever_comes, [(3, 3), (1, 5), (2, 2, 1), (0, 3, 2), (1, 1, 1, 1), (1, 0, 1, 1, 1)]),
    "appointment": (
        by_appointment,
        [(4, 4), (1, 4), (3, 3, 3), (1, 2, 4), (2, 2, 1, 2), (1, 3, 2, 0), (1, 1, 2, 1, 2)],
    ),
}


@pytest.mark.parametrize(
    ("kind", "rounds"), [(kind, rounds) for kind, (_, several) in CASES.items() for rounds in several], ids=str
)
def test_no_interleaving_is_stuck_or_goes_on_for_ever(kind, rounds):
    explored = explore(CASES[kind][0](*rounds))
    assert not explored.stuck
    assert not explored.circular
    assert explored.exchanges


def goes_without_a_word(search: Search, answer: Any) -> Search:
    """A first that loses its patience and goes on without counting `decided`."""
    if search.stage == "wait" and answer is None:
        return replace(search, stage="end")
    return pairing.advance(search, answer)


def waits_for_ever(search: Search) -> Any:
    action = pairing.action(search)
    return replace(action, sure=True) if isinstance(action, Await) else action


def never_looks_who_left(search: Search) -> Any:
    """By appointment, with no end to patience, and without a look at who has left."""
    action = waits_for_ever(search)
    return replace(action, keys=action.keys[:1]) if isinstance(action, Await) else action


@pytest.mark.parametrize(
    "planted",
    [
        whoever_comes(1, 1, advance=goes_without_a_word),
        by_appointment(1, 1, advance=goes_without_a_word),
        whoever_comes(1, 1, 1, action=waits_for_ever),
        by_appointment(1, 2, action=never_looks_who_left),
    ],
    ids=["next-goes-silently", "appointment-goes-silently", "next-waits", "appointment-waits"],
)
def test_planted_deadlocks_are_found(planted):
    assert explore(planted).stuck


def test_a_look_at_who_has_left_does_for_appointments_without_an_end_to_patience():
    assert not explore(by_appointment(1, 2, 3, action=waits_for_ever)).stuck


def test_a_planted_livelock_is_found():
    def begins_again(search: Search, answer: Any) -> Search:
        after = pairing.advance(search, answer)
        return replace(search, stage="wait") if search.stage == "wait" and answer is None else after

    assert explore(whoever_comes(1, 1, advance=begins_again)).circular


@given(some.integers(1, 12), some.lists(some.integers(0, 2**32 - 1), min_size=1, max_size=3))
def test_matchings_pair_all_ranks_but_one(size, keys):
    partners = matching(size, *keys)
    assert partners == matching(size, *keys)
    assert sum(partner is None for partner in partners) == size % 2
    assert all(partners[partner] == rank != partner for rank, partner in enumerate(partners) if partner is not None)


def test_matchings_are_uniform():
    """Of four ranks, each of the others is partner in a third of the rounds: chi-squared, 2 degrees, p > 0.001."""
    counts = np.bincount([matching(4, 5, number)[0] for number in range(3000)], minlength=4)[1:]
    assert ((counts - 1000) ** 2 / 1000).sum() < 13.8

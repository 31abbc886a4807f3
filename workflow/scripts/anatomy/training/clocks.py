"""How far the clocks of the ranks are apart, measured by messages, for whoever compares their traces.

Rank 0 sends a message to another rank, which answers with its time. On rank 0's clock the answer was given between the
sending and the return, most likely in the middle; it can't be further from that than half of the round trip. Of many
rounds the shortest says most. The network time protocol (RFC 5905) compares clocks in this way.
"""

import time
from dataclasses import dataclass
from typing import Any, Literal

from anatomy.training.communication import Communicator

REFERENCE = 0
"""The rank by whose clock the others are measured."""

ROUNDS = 20


@dataclass(frozen=True)
class Comparison:
    """One rank's clock at one time: `offset_ns` is how far it is ahead of the reference's, give or take
    `uncertainty_ns`; `local_ns` is when that was by its own clock, in ns since 1970, as in its trace."""

    rank: int
    at: Literal["start", "end"]
    local_ns: int
    offset_ns: int
    uncertainty_ns: int


class ClockExchange:
    """Compares the clocks of all ranks; every rank has to take part in all of its calls.

    The clock is the system's (CLOCK_REALTIME), by which PyTorch's profiler stamps its events.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._comparisons: list[Comparison] = []
        communicator.join_hosts()

    def compare(self, at: Literal["start", "end"]) -> None:
        """Compare every rank's clock with the reference's, one rank after the other."""
        own = self._communicator.rank
        if own != REFERENCE:
            self._answer()
            return
        for rank in range(self._communicator.size):
            if rank != REFERENCE:
                self._comparisons.append(self._ask(rank, at))

    def recorded(self) -> dict[str, Any]:
        """What the profile's manifest says of clocks; complete on the reference rank only."""
        return {"reference": REFERENCE, "exchanges": [vars(comparison) for comparison in self._comparisons]}

    def _ask(self, rank: int, at: Literal["start", "end"]) -> Comparison:
        rounds = []
        for number in range(ROUNDS):
            sent_ns = time.time_ns()
            self._communicator.send_number(number, rank)
            local_ns = self._communicator.receive_number(rank)
            rounds.append((time.time_ns() - sent_ns, sent_ns, local_ns))
        trip_ns, sent_ns, local_ns = min(rounds)
        return Comparison(rank, at, local_ns, local_ns - (sent_ns + trip_ns // 2), trip_ns - trip_ns // 2)

    def _answer(self) -> None:
        for _ in range(ROUNDS):
            self._communicator.receive_number(REFERENCE)
            self._communicator.send_number(time.time_ns(), REFERENCE)

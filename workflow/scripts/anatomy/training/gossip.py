"""Asynchronous averaging: ranks take batches from a pool that they share, and average with one partner now and then.

Pool and meetings are counters and keys in the store through which the process group met, under a name that no other
run has. The store's counters are atomic, and each rank asks it alone: nobody answers for another rank.
"""

import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from anatomy.phases import Phase
from anatomy.training import pairing
from anatomy.training.annotations import phase
from anatomy.training.communication import Communicator, Kind
from anatomy.training.gradients._own_models import Averaged
from anatomy.training.optimizer import FlatParameters

_LOOK_EVERY_S = 0.001
_NO_NUMBER = "?"


def from_pool(store: dist.Store, name: str, size: int) -> Iterator[int]:
    """The numbers below `size` that this rank takes: whichever is next when it is free. Each goes to one rank."""
    while (number := store.add(name, 1) - 1) < size:
        yield number


def peek(store: dist.Store, key: str) -> int | None:
    """The number that a key was set to; None where nobody has set it. Does not wait, as a store's `get` does.

    A store compares what a key is set to with what was expected, changes nothing where they differ, and returns what it
    is set to; of a key that nobody has set it returns what was expected.
    """
    value = store.compare_set(key, _NO_NUMBER, _NO_NUMBER)
    return None if value.decode() == _NO_NUMBER else int(value)


class Meetings:
    """Drives `pairing` through a store. `peer_timeout_s`: how long to wait for what must come."""

    def __init__(self, store: dist.Store, patience_s: float, peer_timeout_s: float) -> None:
        self._store = store
        self._patience_s = patience_s
        self._peer_timeout_s = peer_timeout_s

    def find(self, search: pairing.Search) -> int | None:
        """The rank to exchange with, which knows it too; None to go on alone.

        Raises TimeoutError where another rank does not do what it is bound to: it is dead, or stopped.
        """
        while not search.ended:
            search = pairing.advance(search, self._do(pairing.action(search)))
        return search.partner

    def leave(self, place: str, rank: int) -> None:
        """Say that a rank makes no more searches in a place."""
        self._store.set(pairing.left(place, rank), str(pairing.GONE))

    def _do(self, action: pairing.Action) -> pairing.Answer:
        match action:
            case pairing.Count(counter):
                return self._store.add(counter, 1)
            case pairing.Write(key, value):
                self._store.set(key, str(value))
                return None
            case pairing.Await(keys, sure):
                return self._wait(keys, sure)

    def _wait(self, keys: tuple[str, ...], sure: bool) -> int | None:
        end = time.monotonic() + (self._peer_timeout_s if sure else self._patience_s)
        while True:
            for key in keys:
                value = peek(self._store, key)
                if value is not None:
                    return value
            if time.monotonic() >= end:
                break
            time.sleep(_LOOK_EVERY_S)
        if sure:
            raise TimeoutError(
                f"waited {self._peer_timeout_s:g} s for {keys[0]!r}, which another rank was about to set"
            )
        return None


class GossipSynchroniser(Averaged):
    """Every `every` steps of its own a rank averages with a partner, or with all; else it goes by its own gradients.

    Averaged gradients are those of the mean loss over the seed nodes of all that take part. With `with_weights`, their
    weights become the mean of theirs too. `partners`: `all`, in one all-reduce, which needs all ranks to make as many
    steps; `matching`, with whom a seeded matching of the round says; `waiting`, with whoever comes next.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        communicator: Communicator,
        meetings: Meetings,
        partners: str,
        every: int,
        with_weights: bool,
    ) -> None:
        super().__init__(parameters, communicator)
        self._meetings = meetings
        self._partners = partners
        self._every = every
        self._averaged = [self._bucket, *([parameters.values] if with_weights else [])]
        self._place, self._keys, self._steps = "", (0,), 0

    def enter(self, place: str, *keys: int) -> None:
        """Begin an epoch: its place in the store, and the keys that its matchings are drawn from."""
        self._place, self._keys, self._steps = place, keys, 0

    def leave(self) -> None:
        """End an epoch: this rank looks for no more partners in it."""
        if self._partners == "matching":
            self._meetings.leave(self._place, self.communicator.rank)

    def synchronise(self) -> tuple[float, int]:
        """Average, if this step is one for it; returns the summed loss and number of seed nodes of this rank alone."""
        own = self.loss_and_count()
        self._steps += 1
        with phase(Phase.SYNC):
            if self._steps % self._every == 0 and self.communicator.size > 1:
                self._average()
            self._divided()
        return own

    def bytes_per_epoch(self, steps: int) -> int | None:
        if self._partners != "all" and self.communicator.size > 1:
            return None
        return steps // self._every * self._ring_bytes(sum(tensor.numel() for tensor in self._averaged))

    def _average(self) -> None:
        communicator = self.communicator
        own = torch.cat(self._averaged).to(communicator.device)
        if self._partners == "all":
            communicator.sum(own, Kind.WEIGHTS)
            self._take(own, communicator.size)
            return
        with communicator.blocked():
            partner = self._meetings.find(self._search())
        if partner is not None:
            self._take(own + communicator.swap(own, partner, Kind.WEIGHTS), 2)

    def _search(self) -> pairing.Search:
        rank, number = self.communicator.rank, self._steps // self._every
        if self._partners == "waiting":
            return pairing.search_next(rank, self._place)
        expected = pairing.matching(self.communicator.size, *self._keys, number)[rank]
        return pairing.search_appointed(rank, self._place, number, expected)

    def _take(self, total: torch.Tensor, num_ranks: int) -> None:
        """Gradients, loss and seed nodes are sums, of which a mean is made later; weights are a mean at once."""
        length = self._bucket.numel()
        self._bucket.copy_(total[:length])
        if len(self._averaged) > 1:
            self.parameters.values.copy_(total[length:] / num_ranks)


def store_of(communicator: Communicator) -> dist.Store:
    """The store through which the ranks of the process group met; of a rank alone, its own."""
    # torch has no public name for it.
    return dist.distributed_c10d._get_default_store() if communicator.size > 1 else dist.HashStore()

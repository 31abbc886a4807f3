"""Exchanges of rows between ranks, and how what is on its way is waited for."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum

import torch
import torch.distributed as dist

from anatomy.training.annotations import collective, waiting

ALL_TO_ALL_V = "all_to_all_v"
"""What a trace calls an exchange of messages of any size between all ranks."""


class Kind(StrEnum):
    """What is sent; each has its column `sent_{kind}_bytes` in `epochs.parquet`."""

    FEATURES = "features"
    REQUESTS = "requests"
    ACTIVATIONS = "activations"
    GRADIENTS = "gradients"
    WEIGHTS = "weights"


class Exchange:
    """Messages, an all-to-all, a broadcast or a sum on their way. `blocked` is around waiting for them."""

    def __init__(
        self,
        works: Sequence[dist.Work] = (),
        tensors: Sequence[torch.Tensor] = (),
        blocked: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._works = works
        self._blocked = blocked
        self._tensors = tensors  # Gloo knows their memory only

    @property
    def ended(self) -> bool:
        """Whether its end has been waited for."""
        return not self._works

    def wait(self) -> None:
        """Return when everything has come and what was sent may be changed; a second call returns at once."""
        works, self._works = self._works, ()
        if works:
            with self._blocked(), waiting():
                for work in works:
                    work.wait()
        self._tensors = ()


class Exchanges(ABC):
    """All-to-alls of rows between some ranks, which are numbered from 0; with one rank they are local.

    `device` is where tensors must lie that are handed over: the CPU for Gloo, the rank's GPU for NCCL. `ranks` are the
    numbers in the job of those that take part, None for all, of which `ranks_per_host` that follow each other are on a
    host, None where all are on one; `group` is their process group for NCCL. `before` is what a thread calls before
    it begins to communicate and before it waits: emulated slowness hangs on it.
    """

    before: Callable[[], None]

    def __init__(
        self,
        rank: int,
        size: int,
        device: torch.device | str,
        ranks_per_host: int | None = None,
        ranks: Sequence[int] | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.device = torch.device(device)
        self._ranks, self._group = ranks, group
        numbers = range(size) if ranks is None else ranks
        self.ranks_per_host = ranks_per_host or size
        self._elsewhere = [number // self.ranks_per_host != numbers[rank] // self.ranks_per_host for number in numbers]
        self._started: list[Exchange] = []

    @abstractmethod
    def blocked(self) -> AbstractContextManager[None]:
        """Within this the rank waits for others and does nothing else; what it owes for slowness it pays before."""

    @abstractmethod
    def count(self, kind: Kind, sent_bytes: int, between_hosts_bytes: int = 0) -> None:
        """Add to the bytes that this rank handed over for other ranks, and to those of them for other hosts."""

    def exchange(
        self,
        send: torch.Tensor,
        send_counts: Sequence[int],
        receive: torch.Tensor,
        receive_counts: Sequence[int],
        kind: Kind,
    ) -> None:
        """All-to-all of rows: rank q gets the next `send_counts[q]` rows of `send`, `receive` fills in rank order."""
        self.start_exchange(send, send_counts, receive, receive_counts, kind).wait()

    def start_exchange(
        self,
        send: torch.Tensor,
        send_counts: Sequence[int],
        receive: torch.Tensor,
        receive_counts: Sequence[int],
        kind: Kind,
    ) -> Exchange:
        """Begin an `exchange`; neither tensor may be touched before its end has been waited for.

        All ranks have to begin their exchanges in the same order. A rank that neither sends to nor receives from
        another does not wait for it.
        """
        if self.size == 1:
            receive.copy_(send)
            return Exchange()
        self.before()
        self._count_rows(kind, send, send_counts)
        if self.device.type == "cuda":
            counts = list(receive_counts), list(send_counts)
            work = dist.all_to_all_single(receive, send, *counts, group=self._group, async_op=True)
            exchange = Exchange([work], (send, receive), self.blocked)
        else:
            with collective(ALL_TO_ALL_V, self._ranks):
                exchange = self._post_messages(send.split(list(send_counts)), receive.split(list(receive_counts)))
        return self._begun(exchange)

    def settle(self) -> None:
        """Wait for the end of every exchange and sum that this rank began."""
        for exchange in self._started:
            exchange.wait()
        self._started = []

    def _begun(self, exchange: Exchange) -> Exchange:
        """What `settle` has to wait for, itself."""
        self._started = [started for started in self._started if not started.ended] + [exchange]
        return exchange

    def _count_rows(self, kind: Kind, send: torch.Tensor, send_counts: Sequence[int]) -> None:
        row_bytes = send.element_size() * (send[0].numel() if send.shape[0] else 0)
        between_hosts = sum(count for count, elsewhere in zip(send_counts, self._elsewhere, strict=True) if elsewhere)
        self.count(kind, row_bytes * (sum(send_counts) - send_counts[self.rank]), row_bytes * between_hosts)

    def _post_messages(self, send: Sequence[torch.Tensor], receive: Sequence[torch.Tensor]) -> Exchange:
        """Gloo's own all-to-all sends before it says that it can receive. A pair of ranks has one connection, so a rank
        that comes late puts all of its data before that word, and the two directions take turns: twice the time.
        """
        receive[self.rank].copy_(send[self.rank])
        others = [(self.rank + distance) % self.size for distance in range(1, self.size)]
        # The first rank that this one sends to is the first to receive from it.
        number = range(self.size) if self._ranks is None else self._ranks
        receives = [dist.irecv(receive[rank], number[rank]) for rank in reversed(others) if receive[rank].shape[0]]
        sends = [dist.isend(send[rank], number[rank]) for rank in others if send[rank].shape[0]]
        return Exchange([*receives, *sends], (*send, *receive), self.blocked)

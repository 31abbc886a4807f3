"""The transport between the ranks, which counts every byte it hands over, by kind."""

from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

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


def _nothing() -> None:
    pass


class Exchanges:
    """All-to-alls of rows between some ranks, which are numbered from 0; with one rank they are local.

    `device` is where tensors must lie that are handed over: the CPU for Gloo, the rank's GPU for NCCL. `ranks` are the
    numbers in the job of those that take part, None for all, and `group` is their process group for NCCL. `before` is
    what a thread calls before it begins to communicate and before it waits: emulated slowness hangs on it.
    """

    before: Callable[[], None]

    def __init__(
        self,
        rank: int,
        size: int,
        device: torch.device | str,
        ranks: Sequence[int] | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.device = torch.device(device)
        self._ranks, self._group = ranks, group
        self._started: list[Exchange] = []

    def count(self, kind: Kind, sent_bytes: int) -> None:
        """Add to the bytes that this rank handed over for other ranks."""
        raise NotImplementedError

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
    ) -> "Exchange":
        """Begin an `exchange`; neither tensor may be touched before its end has been waited for.

        All ranks have to begin their exchanges in the same order. A rank that neither sends to nor receives from
        another does not wait for it.
        """
        if self.size == 1:
            receive.copy_(send)
            return Exchange()
        self.before()
        row_bytes = send.element_size() * (send[0].numel() if send.shape[0] else 0)
        self.count(kind, row_bytes * (sum(send_counts) - send_counts[self.rank]))
        if self.device.type == "cuda":
            counts = list(receive_counts), list(send_counts)
            work = dist.all_to_all_single(receive, send, *counts, group=self._group, async_op=True)
            exchange = Exchange([work], (send, receive), self.before)
        else:
            with collective(ALL_TO_ALL_V, self._ranks):
                exchange = self._post_messages(send.split(list(send_counts)), receive.split(list(receive_counts)))
        self._started = [started for started in self._started if not started.ended] + [exchange]
        return exchange

    def settle(self) -> None:
        """Wait for the end of every exchange that this rank began."""
        for exchange in self._started:
            exchange.wait()
        self._started = []

    def _post_messages(self, send: Sequence[torch.Tensor], receive: Sequence[torch.Tensor]) -> "Exchange":
        """Gloo's own all-to-all sends before it says that it can receive. A pair of ranks has one connection, so a rank
        that comes late puts all of its data before that word, and the two directions take turns: twice the time.
        """
        receive[self.rank].copy_(send[self.rank])
        others = [(self.rank + distance) % self.size for distance in range(1, self.size)]
        # The first rank that this one sends to is the first to receive from it.
        number = range(self.size) if self._ranks is None else self._ranks
        receives = [dist.irecv(receive[rank], number[rank]) for rank in reversed(others) if receive[rank].shape[0]]
        sends = [dist.isend(send[rank], number[rank]) for rank in others if send[rank].shape[0]]
        return Exchange([*receives, *sends], (*send, *receive), self.before)


class Communicator(Exchanges):
    """Collectives of all ranks over `torch.distributed`; with one rank every call is local and sends nothing."""

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | str = "cpu") -> None:
        super().__init__(rank, size, device)
        self.before = _nothing
        self._sent_bytes: Counter[Kind] = Counter()
        self._hosts: dist.ProcessGroup | None = None

    def take_sent_bytes(self) -> dict[str, int]:
        """Bytes by kind that this rank handed over for other ranks since the last call."""
        taken = {str(kind): self._sent_bytes[kind] for kind in Kind}
        self._sent_bytes.clear()
        return taken

    def count(self, kind: Kind, sent_bytes: int) -> None:
        """Add to the bytes that this rank handed over; also for what something else than this transport carried."""
        self._sent_bytes[kind] += sent_bytes

    def start_broadcast(self, rows: torch.Tensor, root: int, kind: Kind) -> "Exchange":
        """Begin to give every rank the `root`'s rows, in place; they may not be touched before its end was waited for.

        All ranks have to begin their broadcasts in the same order, with as many rows. Counted as `tree_bytes`.
        """
        if self.size == 1 or not rows.numel():
            return Exchange()
        self.before()
        self.count(kind, tree_bytes(rows.numel() * rows.element_size(), self.rank, root, self.size))
        return Exchange([dist.broadcast(rows, root, async_op=True)], (rows,), self.before)

    def start_send(self, rows: torch.Tensor, to: int, kind: Kind) -> "Exchange":
        """Begin to send rows to one other rank; they may not be changed before the end has been waited for.

        Messages from one rank to another arrive in the order in which they were sent.
        """
        self.before()
        self.count(kind, rows.numel() * rows.element_size())
        return Exchange([dist.isend(rows, to)], [rows], self.before)

    def start_receive(self, rows: torch.Tensor, sender: int) -> "Exchange":
        """Begin to receive into `rows` what `sender` sends next; it is there when the end has been waited for."""
        return Exchange([dist.irecv(rows, sender)], [rows], self.before)

    def exchange_counts(self, send_counts: torch.Tensor) -> torch.Tensor:
        """How many rows every rank will send to this one, int64 [ranks]; sent as part of the requests."""
        counts = send_counts.to(self.device)
        received = torch.empty_like(counts)
        self.exchange(counts, [1] * self.size, received, [1] * self.size, Kind.REQUESTS)
        return received

    def sum(self, values: torch.Tensor, kind: Kind | None = None) -> None:
        """Add `values` up over all ranks, in place. Counted as a ring's traffic if a kind is given."""
        if self.size == 1:
            return
        self.before()
        if kind is not None:
            self.count(kind, ring_bytes(values.numel() * values.element_size(), self.rank, self.size))
        dist.all_reduce(values)

    def gather(self, value: Any) -> list[Any] | None:
        """Every rank's picklable value in rank order, on rank 0; None elsewhere."""
        if self.size == 1:
            return [value]
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, values)
        return values

    def broadcast(self, value: Any) -> Any:
        """Rank 0's picklable value, on every rank."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]

    def join_hosts(self) -> None:
        """Connect the ranks' CPUs for `send_number` and `receive_number`; every rank has to call this, once, before."""
        if self.size > 1 and self.device.type == "cuda":
            self._hosts = dist.new_group(backend="gloo")

    def send_number(self, number: int, to: int) -> None:
        """Hand an int64 to another rank, from CPU to CPU; not counted, since it is no traffic of the training."""
        dist.send(torch.tensor([number]), to, group=self._hosts)

    def receive_number(self, sender: int) -> int:
        """The int64 that another rank sends to this one."""
        number = torch.empty(1, dtype=torch.int64)
        dist.recv(number, sender, group=self._hosts)
        return int(number)

    def wait_for_all(self) -> None:
        """Return when every rank has called this."""
        if self.size > 1:
            dist.barrier()


class Group(Exchanges):
    """The transport between this rank and those beside it, where each `size` ranks that follow each other are a group.

    All ranks of the job have to make theirs together. Bytes are counted by the job's communicator. On Gloo, messages
    of a group go between its ranks alone, so that nobody else has to take part.
    """

    def __init__(self, everyone: Communicator, size: int) -> None:
        first = everyone.rank - everyone.rank % size
        groups = [range(start, start + size) for start in range(0, everyone.size, size)]
        made = [
            dist.new_group(list(ranks)) if everyone.device.type == "cuda" and size > 1 else None for ranks in groups
        ]
        super().__init__(everyone.rank - first, size, everyone.device, range(first, first + size), made[first // size])
        self._everyone = everyone

    @property
    def before(self) -> Callable[[], None]:
        return self._everyone.before

    def count(self, kind: Kind, sent_bytes: int) -> None:
        self._everyone.count(kind, sent_bytes)

    def sum(self, values: torch.Tensor, kind: Kind) -> None:
        """Add `values` [numbers] up over the group, in place, to the same bits on each of its ranks.

        Every rank adds up its share of the numbers, in the order of the ranks, and gives the others the sums: together
        they send as much as in a ring.
        """
        if self.size == 1:
            return
        shares = [int(share.numel()) for share in values.tensor_split(self.size)]
        own = [shares[self.rank]] * self.size
        parts = torch.empty(sum(own), device=values.device, dtype=values.dtype)
        self.exchange(values, shares, parts, own, kind)
        total = parts.view(self.size, -1).sum(0)
        self.exchange(total.repeat(self.size), own, values, shares, kind)


class Exchange:
    """Messages, an all-to-all or a broadcast on their way. `before` is called before they are waited for."""

    def __init__(
        self,
        works: Sequence[dist.Work] = (),
        tensors: Sequence[torch.Tensor] = (),
        before: Callable[[], None] = _nothing,
    ) -> None:
        self._works = works
        self._before = before
        self._tensors = tensors  # Gloo knows their memory only

    @property
    def ended(self) -> bool:
        """Whether its end has been waited for."""
        return not self._works

    def wait(self) -> None:
        """Return when everything has come and what was sent may be changed; a second call returns at once."""
        works, self._works = self._works, ()
        if works:
            self._before()
            with waiting():
                for work in works:
                    work.wait()
        self._tensors = ()


def ring_bytes(payload_bytes: int, rank: int, size: int) -> int:
    """Bytes that one rank sends in a ring all-reduce: its share of 2 (size - 1) payloads; the shares add up exactly."""
    whole, rest = divmod(2 * (size - 1) * payload_bytes, size)
    return whole + (1 if rank < rest else 0)


def tree_bytes(payload_bytes: int, rank: int, root: int, size: int) -> int:
    """Bytes that one rank sends in a broadcast along a binomial tree, which is Gloo's; size - 1 payloads in total.

    Ranks are numbered from the root. In round i those below 2^i have the payload and send it on, each to the one that
    is 2^i further, if there is such a rank. Whatever the algorithm, every rank but the root is handed the payload once.
    """
    number = (rank - root) % size
    return payload_bytes * sum(number < 1 << i and number + (1 << i) < size for i in range(size.bit_length()))

"""The transport between the ranks, which counts every byte it hands over, by kind."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from anatomy.training.exchanges import Exchange, Exchanges, Kind


def _nothing() -> None:
    pass


class Communicator(Exchanges):
    """Collectives of all ranks over `torch.distributed`; with one rank every call is local and sends nothing.

    Rank r is on host r // `ranks_per_host`; without it, all are on one.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        device: torch.device | str = "cpu",
        ranks_per_host: int | None = None,
    ) -> None:
        super().__init__(rank, size, device, ranks_per_host)
        self.before = _nothing
        self._sent_bytes: Counter[Kind] = Counter()
        self._sent_to: Counter[int] = Counter()
        self._between_hosts_bytes = 0
        self.blocked_s = 0.0
        """Wall time for which this rank has been blocked since `take_blocked_s`."""
        self._hosts: dist.ProcessGroup | None = None

    def take_sent_bytes(self) -> dict[str, int]:
        """Bytes by kind that this rank handed over for other ranks since the last call."""
        taken = {str(kind): self._sent_bytes[kind] for kind in Kind}
        self._sent_bytes.clear()
        return taken

    def take_bytes_between_hosts(self) -> int:
        """Those of the bytes in exchanges of rows since the last call that went to ranks of other hosts.

        Sums over all ranks and broadcasts are not among them: which links they take is the transport's affair.
        """
        taken, self._between_hosts_bytes = self._between_hosts_bytes, 0
        return taken

    def take_sent_to(self) -> list[int]:
        """Bytes of exchanges of rows since the last call, by the rank that they were for."""
        taken = [self._sent_to[rank] for rank in range(self.size)]
        self._sent_to.clear()
        return taken

    def take_blocked_s(self) -> float | None:
        """Seconds that this rank was blocked since the last call; None where calls return before their work is done."""
        taken, self.blocked_s = self.blocked_s, 0.0
        return taken if self.device.type == "cpu" else None

    @contextmanager
    def blocked(self) -> Iterator[None]:
        self.before()
        start = time.perf_counter()
        try:
            yield
        finally:
            self.blocked_s += time.perf_counter() - start

    def count(self, kind: Kind, sent_bytes: int, between_hosts_bytes: int = 0) -> None:
        """Add to the bytes that this rank handed over; also for what something else than this transport carried."""
        self._sent_bytes[kind] += sent_bytes
        self._between_hosts_bytes += between_hosts_bytes

    def _count_rows(self, kind: Kind, send: torch.Tensor, send_counts: Sequence[int]) -> None:
        super()._count_rows(kind, send, send_counts)
        row_bytes = send.element_size() * (send[0].numel() if send.shape[0] else 0)
        self._sent_to.update({rank: row_bytes * count for rank, count in enumerate(send_counts) if rank != self.rank})

    def start_broadcast(self, rows: torch.Tensor, root: int, kind: Kind) -> Exchange:
        """Begin to give every rank the `root`'s rows, in place; they may not be touched before its end was waited for.

        All ranks have to begin their broadcasts in the same order, with as many rows. Counted as `tree_bytes`.
        """
        if self.size == 1 or not rows.numel():
            return Exchange()
        self.before()
        self.count(kind, tree_bytes(rows.numel() * rows.element_size(), self.rank, root, self.size))
        return Exchange([dist.broadcast(rows, root, async_op=True)], (rows,), self.blocked)

    def start_send(self, rows: torch.Tensor, to: int, kind: Kind) -> Exchange:
        """Begin to send rows to one other rank; they may not be changed before the end has been waited for.

        Messages from one rank to another arrive in the order in which they were sent.
        """
        self.before()
        self.count(kind, rows.numel() * rows.element_size())
        return Exchange([dist.isend(rows, to)], [rows], self.blocked)

    def start_receive(self, rows: torch.Tensor, sender: int) -> Exchange:
        """Begin to receive into `rows` what `sender` sends next; it is there when the end has been waited for."""
        return Exchange([dist.irecv(rows, sender)], [rows], self.blocked)

    def swap(self, values: torch.Tensor, partner: int, kind: Kind) -> torch.Tensor:
        """Give one other rank these values, and get as many from it, which has to call this for this rank too."""
        self.before()
        received = torch.empty_like(values)
        self.count(kind, values.numel() * values.element_size())
        ways = [dist.P2POp(dist.isend, values, partner), dist.P2POp(dist.irecv, received, partner)]
        Exchange(dist.batch_isend_irecv(ways), (values, received), self.blocked).wait()
        return received

    def start_counts(self, send_counts: torch.Tensor) -> tuple[torch.Tensor, Exchange]:
        """Begin to tell every rank how many rows this one will ask it for, int64 [ranks]; sent as part of the requests.

        Returns how many each rank will ask this one for, int64 [ranks], which is there at the end.
        """
        counts = send_counts.to(self.device)
        received = torch.empty_like(counts)
        return received, self.start_exchange(counts, [1] * self.size, received, [1] * self.size, Kind.REQUESTS)

    def sum(self, values: torch.Tensor, kind: Kind | None = None) -> None:
        """Add `values` up over all ranks, in place. Counted as a ring's traffic if a kind is given."""
        if self.size == 1:
            return
        if kind is not None:
            self.count(kind, ring_bytes(values.numel() * values.element_size(), self.rank, self.size))
        with self.blocked():
            dist.all_reduce(values)

    def start_sum(self, values: torch.Tensor, kind: Kind) -> Exchange:
        """Begin to add `values` up over all ranks; they may not be touched before the end has been waited for.

        All ranks have to begin their sums in the same order. Counted as a ring's traffic.
        """
        if self.size == 1:
            return Exchange()
        self.before()
        self.count(kind, ring_bytes(values.numel() * values.element_size(), self.rank, self.size))
        return self._begun(Exchange([dist.all_reduce(values, async_op=True)], (values,), self.blocked))

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
        super().__init__(
            everyone.rank - first,
            size,
            everyone.device,
            everyone.ranks_per_host,
            range(first, first + size),
            made[first // size],
        )
        self._everyone = everyone

    @property
    def before(self) -> Callable[[], None]:
        return self._everyone.before

    def blocked(self) -> AbstractContextManager[None]:
        return self._everyone.blocked()

    def count(self, kind: Kind, sent_bytes: int, between_hosts_bytes: int = 0) -> None:
        self._everyone.count(kind, sent_bytes, between_hosts_bytes)

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

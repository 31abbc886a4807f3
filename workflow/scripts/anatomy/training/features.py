"""The feature store: every rank keeps the features of its part's nodes and asks the others for theirs."""

from collections.abc import Generator

import numpy as np
import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.communication import Communicator, Kind
from anatomy.training.machine_code import compiled
from anatomy.training.prefetching import Staged

Stages = Generator[None, None, torch.Tensor]
"""Work that begins messages and yields while they are on their way; what it returns are rows of the table."""

OWNER_SHIFT = 32
"""Bits of a row in a node's place, above which its owner stands."""


class FeatureStore:
    """Features of all nodes, partitioned over the ranks by the partition's assignment.

    One table holds the own rows, then copies of other ranks' rows that never change (`keep`), then the remote rows of
    the latest `slots` fetches, so that a batch is read from one place. `capacity` is the largest number of remote rows
    that a fetch may bring, `num_kept` how many copies there can be.
    """

    def __init__(
        self,
        features: np.ndarray,
        assignment: np.ndarray,
        own_nodes: torch.Tensor,
        communicator: Communicator,
        capacity: int,
        num_kept: int = 0,
        slots: int = 1,
    ) -> None:
        self._communicator = communicator
        self._places = (np.asarray(assignment, np.int64) << OWNER_SHIFT) | rows_within_parts(assignment).numpy()
        self.num_own = own_nodes.shape[0]
        rows = self.num_own + num_kept + slots * capacity
        # NumPy asks the system for huge pages, torch does not; rows are read in any order.
        self.table = torch.from_numpy(np.empty((rows, features.shape[1]), np.float32)).to(communicator.device)
        self.table[: self.num_own] = torch.from_numpy(features[own_nodes.numpy()])
        self._slots = [self.num_own + num_kept + slot * capacity for slot in range(slots)]
        self._batch = torch.empty(0, features.shape[1], device=communicator.device)
        self._accesses: list[torch.Tensor] | None = None
        self.kept_bytes = 0
        self.remote_nodes = 0
        self.hits = 0

    @property
    def own_rows(self) -> torch.Tensor:
        """Features of the own nodes, in order of their ids."""
        return self.table[: self.num_own]

    def keep(self, nodes: torch.Tensor) -> None:
        """Fetch the features of distinct remote nodes, int64 [at most `num_kept`], for good; all ranks call this."""
        rows = Staged(self._fetch(nodes, self.num_own)).finish()
        self._places[nodes] = (self._communicator.rank << OWNER_SHIFT) | rows.numpy()
        self.kept_bytes = nodes.shape[0] * self.table[0].nbytes
        self.remote_nodes = 0

    def fetch(self, nodes: torch.Tensor) -> Stages:
        """Bring the features of distinct nodes, int64 [nodes], into the table; returns their rows, int64 [nodes].

        The rows stay until `slots` more fetches have begun. All ranks have to begin, go on with and end their fetches
        in the same order, with no nodes where they need none.
        """
        first = self._slots.pop(0)
        self._slots.append(first)
        return self._fetch(nodes, first)

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Features of fetched rows, float32 [rows, width]; valid until the next call."""
        with phase(Phase.GATHER):
            if self._batch.shape[0] < rows.shape[0]:
                self._batch = torch.empty(rows.shape[0] * 5 // 4, self.table.shape[1], device=self.table.device)
            return torch.index_select(self.table, 0, rows.to(self.table.device), out=self._batch[: rows.shape[0]])

    def record_accesses(self, record: bool) -> None:
        """Start a new record of the remote nodes fetched, or stop recording."""
        self._accesses = [] if record else None

    def accesses(self) -> tuple[np.ndarray, np.ndarray]:
        """Remote nodes fetched since the record began, int64 ids in order, and how many times, int32."""
        nodes = torch.cat(self._accesses).numpy() if self._accesses else np.empty(0, np.int64)
        nodes, counts = np.unique(nodes, return_counts=True)
        return nodes, counts.astype(np.int32)

    def _fetch(self, nodes: torch.Tensor, first_row: int) -> Stages:
        """`fetch`, with the remote rows behind one another from a row of the table on."""
        communicator = self._communicator
        with phase(Phase.FETCH):
            rows, wanted, counts, hits = compiled(find_rows)(
                nodes.numpy(), self._places, communicator.rank, communicator.size, self.num_own, first_row
            )
            rows = torch.from_numpy(rows)
            if communicator.size == 1:
                return rows
            self._count(nodes, rows, first_row, wanted.shape[0], hits)
            request = torch.from_numpy(wanted).to(communicator.device)
            asked, begun = communicator.start_counts(torch.from_numpy(counts))
        yield
        with phase(Phase.FETCH):
            begun.wait()
            counts, asked = counts.tolist(), asked.tolist()
            asked_rows = torch.empty(sum(asked), dtype=torch.int32, device=communicator.device)
            begun = communicator.start_exchange(request, counts, asked_rows, asked, Kind.REQUESTS)
        yield
        with phase(Phase.FETCH):
            begun.wait()
            answer = torch.index_select(self.table, 0, asked_rows)
            received = self.table[first_row : first_row + sum(counts)]
            begun = communicator.start_exchange(answer, asked, received, counts, Kind.FEATURES)
        yield
        with phase(Phase.FETCH):
            begun.wait()
        return rows

    def _count(self, nodes: torch.Tensor, rows: torch.Tensor, first_row: int, num_remote: int, hits: int) -> None:
        self.remote_nodes += num_remote
        self.hits += hits
        if self._accesses is not None:
            self._accesses.append(nodes[rows >= first_row])


def find_rows(
    nodes: np.ndarray, places: np.ndarray, rank: int, size: int, num_own: int, first_row: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Each node's row of the table, int64 [nodes], remote ones' from `first_row` on, one owner after the other; these
    ones' rows at their owners, int32 [remote]; how many each owner has, int64 [size]; how many rows are kept copies.

    `places` int64 [all nodes]: the node's owner, shifted by OWNER_SHIFT, and its row there.
    """
    rows = np.empty(len(nodes), np.int64)
    counts = np.zeros(size, np.int64)
    for index, node in enumerate(nodes):
        rows[index] = places[node]
        counts[rows[index] >> OWNER_SHIFT] += 1
    counts[rank] = 0
    position = np.cumsum(counts) - counts
    wanted = np.empty(counts.sum(), np.int32)
    hits = 0
    for index, place in enumerate(rows):
        owner, row = place >> OWNER_SHIFT, place & ((1 << OWNER_SHIFT) - 1)
        if owner == rank:
            hits += row >= num_own
            rows[index] = row
        else:
            wanted[position[owner]] = row
            rows[index] = first_row + position[owner]
            position[owner] += 1
    return rows, wanted, counts, hits


def rows_within_parts(assignment: np.ndarray) -> torch.Tensor:
    """For each node its place among its part's nodes in order of their ids, int32 [nodes]."""
    order = np.argsort(assignment, kind="stable")
    sizes = np.bincount(assignment)
    rows = np.empty(len(assignment), np.int32)
    rows[order] = np.arange(len(assignment)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return torch.from_numpy(rows)

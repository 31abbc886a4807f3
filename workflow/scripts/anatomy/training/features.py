"""The feature store: every rank keeps the features of its part's nodes and asks the others for theirs."""

import numpy as np
import torch

from anatomy.phases import Phase
from anatomy.training.annotations import phase
from anatomy.training.communication import Communicator, Kind
from anatomy.training.parts import mapped_tensor


class FeatureStore:
    """Features of all nodes, partitioned over the ranks by the partition's assignment.

    One table holds the own rows and, behind them, the remote rows of the latest fetch, so that a batch is gathered from
    one place. `capacity` is the largest number of remote rows that a fetch may bring.
    """

    def __init__(
        self,
        features: np.ndarray,
        assignment: np.ndarray,
        own_nodes: torch.Tensor,
        communicator: Communicator,
        capacity: int,
    ) -> None:
        self._communicator = communicator
        self._owner_of = mapped_tensor(assignment)
        self._row_of = rows_within_parts(assignment)
        self.num_own = own_nodes.shape[0]
        self._table = torch.empty(self.num_own + capacity, features.shape[1], device=communicator.device)
        self._table[: self.num_own] = torch.from_numpy(features[own_nodes.numpy()])
        self._batch = torch.empty(0, features.shape[1], device=communicator.device)
        self._accesses: list[torch.Tensor] | None = None
        self.remote_nodes = 0

    @property
    def own_rows(self) -> torch.Tensor:
        """Features of the own nodes, in order of their ids."""
        return self._table[: self.num_own]

    def fetch(self, nodes: torch.Tensor) -> torch.Tensor:
        """Bring the features of distinct nodes, int64 [nodes], into the table; returns their rows, int64 [nodes].

        Every rank must call this the same number of times, with no nodes where it needs none.
        """
        with phase(Phase.FETCH):
            rows = self._row_of[nodes].to(torch.int64)
            if self._communicator.size == 1:
                return rows
            owners = self._owner_of[nodes]
            remote = torch.nonzero(owners != self._communicator.rank).squeeze(1)
            remote = remote[torch.argsort(owners[remote], stable=True)]
            counts = torch.bincount(owners[remote], minlength=self._communicator.size)
            self._receive(rows[remote], counts)
            rows[remote] = self.num_own + torch.arange(remote.shape[0])
            self.remote_nodes += remote.shape[0]
            if self._accesses is not None:
                self._accesses.append(nodes[remote])
            return rows

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Features of fetched rows, float32 [rows, width]; valid until the next call."""
        with phase(Phase.GATHER):
            if self._batch.shape[0] < rows.shape[0]:
                self._batch = torch.empty(rows.shape[0] * 5 // 4, self._table.shape[1], device=self._table.device)
            return torch.index_select(self._table, 0, rows.to(self._table.device), out=self._batch[: rows.shape[0]])

    def record_accesses(self, record: bool) -> None:
        """Start a new record of the remote nodes fetched, or stop recording."""
        self._accesses = [] if record else None

    def accesses(self) -> tuple[np.ndarray, np.ndarray]:
        """Remote nodes fetched since the record began, int64 ids in order, and how many times, int32."""
        nodes = torch.cat(self._accesses).numpy() if self._accesses else np.empty(0, np.int64)
        nodes, counts = np.unique(nodes, return_counts=True)
        return nodes, counts.astype(np.int32)

    def _receive(self, owner_rows: torch.Tensor, counts: torch.Tensor) -> None:
        """Fetch rows, given as rows of their owners in the owners' order, behind the table's own rows."""
        communicator = self._communicator
        asked = communicator.exchange_counts(counts)
        wanted_counts, asked_counts = counts.tolist(), asked.tolist()
        request = owner_rows.to(torch.int32).to(communicator.device)
        asked_rows = torch.empty(sum(asked_counts), dtype=torch.int32, device=communicator.device)
        communicator.exchange(request, wanted_counts, asked_rows, asked_counts, Kind.REQUESTS)
        answer = torch.index_select(self._table, 0, asked_rows)
        received = self._table[self.num_own : self.num_own + request.shape[0]]
        communicator.exchange(answer, asked_counts, received, wanted_counts, Kind.FEATURES)


def rows_within_parts(assignment: np.ndarray) -> torch.Tensor:
    """For each node its place among its part's nodes in order of their ids, int32 [nodes]."""
    order = np.argsort(assignment, kind="stable")
    sizes = np.bincount(assignment)
    rows = np.empty(len(assignment), np.int32)
    rows[order] = np.arange(len(assignment)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return torch.from_numpy(rows)

"""A block: whom each destination aggregates, as rows of a table of sources."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch


@dataclass
class Block:
    """A bipartite graph in compressed rows. Destination i is also source i, so destinations are the first sources.

    `indptr` int64 [destinations + 1]; `indices` int64 [edges], the source row of each edge, grouped by destination;
    `degrees` float32 [sources], in-neighbours of each source in the whole graph (not in the block).
    `scale` float32 [sources]: where sources were drawn at random and the others left out, how many each stands for; its
    row is multiplied by that in sums and means. None: sums are of the rows as they are.
    `destination_rows` int64 [destinations]: the destinations' own rows, where the sources are a table of more rows than
    the block's nodes, in any order; then `num_sources` counts the table's rows. None: they are the first ones.
    `structures` is where a backend keeps what it builds from the block.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    num_sources: int
    degrees: torch.Tensor
    scale: torch.Tensor | None = None
    destination_rows: torch.Tensor | None = None
    structures: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def num_destinations(self) -> int:
        return self.indptr.shape[0] - 1

    @property
    def num_edges(self) -> int:
        return self.indices.shape[0]

    @cached_property
    def counts(self) -> torch.Tensor:
        """Edges of each destination in the block, int64 [destinations]."""
        return self.indptr[1:] - self.indptr[:-1]

    def of_destinations(self, rows: torch.Tensor) -> torch.Tensor:
        """The destinations' rows of those of the sources."""
        if self.destination_rows is None:
            return rows[: self.num_destinations]
        return rows.index_select(0, self.destination_rows)

    def within(self, table: torch.Tensor, rows: torch.Tensor) -> "Block":
        """The same block with a table's rows as its sources, each node's being one of `rows`, int64 [sources]."""
        return replace(
            self,
            indices=rows[self.indices],
            num_sources=table.shape[0],
            destination_rows=rows[: self.num_destinations],
            structures={},
        )

    @property
    def represented(self) -> torch.Tensor:
        """How many in-neighbours a destination's sum stands for: all that it has where sources are scaled, else those
        of its edges in the block. [destinations]."""
        return self.counts if self.scale is None else self.degrees[: self.num_destinations]

    @cached_property
    def edge_destinations(self) -> torch.Tensor:
        """The destination of each edge, int64 [edges]."""
        return torch.repeat_interleave(torch.arange(self.num_destinations, device=self.indptr.device), self.counts)

    @cached_property
    def with_self_edges(self) -> "Block":
        """The same block in which every destination aggregates itself too, as its first edge.

        Without a scale: who wants these edges weighs them, with weights that sum to 1 over those that are there.
        """
        own = torch.arange(self.num_destinations, device=self.indptr.device)
        indptr = self.indptr + torch.arange(self.num_destinations + 1, device=self.indptr.device)
        indices = torch.empty(self.num_edges + self.num_destinations, dtype=torch.int64, device=self.indptr.device)
        indices[indptr[:-1]] = own
        indices[torch.arange(self.num_edges, device=self.indptr.device) + self.edge_destinations + 1] = self.indices
        return Block(indptr, indices, self.num_sources, self.degrees)

    @cached_property
    def transposed(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The edges grouped by source: indptr [sources + 1], their destinations [edges], their numbers [edges]."""
        edges = torch.argsort(self.indices, stable=True)
        indptr = torch.zeros(self.num_sources + 1, dtype=torch.int64, device=self.indptr.device)
        torch.cumsum(torch.bincount(self.indices, minlength=self.num_sources), 0, out=indptr[1:])
        return indptr, self.edge_destinations[edges], edges

    def to(self, device: torch.device) -> "Block":
        """The block on another device; itself where it lies there already."""
        if self.indptr.device == device:
            return self
        names = ("indptr", "indices", "degrees", "scale", "destination_rows")
        tensors = {name: getattr(self, name) for name in names}
        moved = {name: None if one is None else one.to(device, non_blocking=True) for name, one in tensors.items()}
        return replace(self, **moved, structures={})

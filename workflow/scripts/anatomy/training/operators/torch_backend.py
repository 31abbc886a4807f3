"""Graph operators in plain PyTorch, on any device that PyTorch knows."""

import torch
from torch.nn import functional

from anatomy.training.operators.base import Operators
from anatomy.training.operators.block import Block


def load() -> Operators:
    """The backend; nothing to load beyond torch."""
    return TorchOperators()


class TorchOperators(Operators):
    """Sums as `embedding_bag`, which reads the rows where they lie; backward is the same on the transposed block."""

    def weighted_sum(self, block: Block, features: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        return _WeightedSum.apply(features, weights, block)

    def edge_softmax(self, block: Block, scores: torch.Tensor) -> torch.Tensor:
        destinations = block.edge_destinations.unsqueeze(1).expand_as(scores)
        lowest = scores.new_full((block.num_destinations, scores.shape[1]), -torch.inf)
        highest = lowest.scatter_reduce(0, destinations, scores.detach(), "amax")
        exponents = torch.exp(scores - highest.gather(0, destinations))
        total = torch.zeros_like(highest).scatter_add(0, destinations, exponents)
        return exponents / total.gather(0, destinations)


class _WeightedSum(torch.autograd.Function):
    """Row sums over compressed edges, for one head ([sources, width]) or several ([sources, heads, width])."""

    @staticmethod
    def forward(ctx, features: torch.Tensor, weights: torch.Tensor | None, block: Block) -> torch.Tensor:
        ctx.block = block
        ctx.save_for_backward(features if weights is not None and weights.requires_grad else None, weights)
        return bags(block.indptr, block.indices, features, weights)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        features, weights = ctx.saved_tensors
        block: Block = ctx.block
        to_features = to_weights = None
        if ctx.needs_input_grad[0]:
            indptr, destinations, edges = block.transposed
            to_features = bags(indptr, destinations, gradient, None if weights is None else weights[edges])
        if ctx.needs_input_grad[1]:
            to_weights = (features[block.indices] * gradient[block.edge_destinations]).sum(-1)
        return to_features, to_weights, None


def bags(
    indptr: torch.Tensor, indices: torch.Tensor, table: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Sums of table rows; `weights` [edges, heads] where the table is [rows, heads, width]."""
    if weights is None:
        flat = table.reshape(table.shape[0], -1)
        return _bag(indptr, indices, flat, None).view(-1, *table.shape[1:])
    heads = [
        _bag(indptr, indices, table[:, head].contiguous(), weights[:, head].contiguous())
        for head in range(table.shape[1])
    ]
    return torch.stack(heads, 1)


def _bag(
    indptr: torch.Tensor, indices: torch.Tensor, table: torch.Tensor, weights: torch.Tensor | None
) -> torch.Tensor:
    if indices.shape[0] == 0:
        return table.new_zeros(indptr.shape[0] - 1, table.shape[1])
    return functional.embedding_bag(
        indices, table, indptr, mode="sum", per_sample_weights=weights, include_last_offset=True
    )

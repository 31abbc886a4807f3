"""Aggregation by the symmetrically normalised adjacency matrix with self-loops (Kipf and Welling, 2017)."""

import torch

from anatomy.training.operators.base import Operators
from anatomy.training.operators.block import Block


def propagate(operators: Operators, block: Block, rows: torch.Tensor) -> torch.Tensor:
    """x_v / (d_v + 1) + sum over in-neighbours u of x_u / sqrt((d_u + 1) (d_v + 1)), [destinations, width].

    d counts the in-neighbours that the graph stores, so the self term is added to a graph without self-loops. Where
    neighbours are sampled, the sum is scaled by d_v over the number that it stands for, which keeps it unbiased.
    """
    scale = (block.degrees + 1).rsqrt().unsqueeze(1)
    scaled = rows * scale
    neighbours = operators.aggregate(block, scaled, "sum")
    degrees = block.degrees[: block.num_destinations]
    unbiased = torch.where(block.represented > 0, degrees / block.represented, 1.0).unsqueeze(1)
    return (neighbours * unbiased + scaled[: block.num_destinations]) * scale[: block.num_destinations]

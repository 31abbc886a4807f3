"""A mini-batch on its way from the rank that sampled it to the rank that trains on it."""

import torch

from anatomy.training.communication import Communicator, Kind
from anatomy.training.operators.block import Block
from anatomy.training.sampling import MiniBatch

Message = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Sizes int64 [1 + 2 layers], structure int64 and degrees float32, which together are a batch."""


def as_message(batch: MiniBatch | None, num_layers: int) -> Message:
    """What says all of a batch; zeros where there is none.

    Sizes: input nodes, then destinations and edges of each block. Structure: ids of the input nodes, then `indptr` and
    `indices` of each block. Degrees are of the input nodes, the first of which are every block's sources.
    """
    if batch is None:
        return torch.zeros(1 + 2 * num_layers, dtype=torch.int64), torch.empty(0, dtype=torch.int64), torch.empty(0)
    blocks = batch.blocks
    sizes = [
        batch.input_nodes.shape[0],
        *(size for block in blocks for size in (block.num_destinations, block.num_edges)),
    ]
    parts = [batch.input_nodes, *(part for block in blocks for part in (block.indptr, block.indices))]
    return torch.tensor(sizes), torch.cat([part.to(torch.int64) for part in parts]), blocks[0].degrees


def num_bytes(message: Message) -> int:
    """What a message takes between two ranks."""
    return sum(part.numel() * part.element_size() for part in message)


def from_message(message: Message) -> MiniBatch | None:
    """The batch of a message, or None."""
    sizes, structure, degrees = message
    num_sources, *shapes = sizes.tolist()
    if num_sources == 0:
        return None
    destinations, edges = shapes[::2], shapes[1::2]
    lengths = [num_sources, *(length for d, e in zip(destinations, edges, strict=True) for length in (d + 1, e))]
    input_nodes, *parts = structure.split(lengths)
    blocks = [
        Block(indptr, indices, sources, degrees[:sources])
        for indptr, indices, sources in zip(parts[::2], parts[1::2], [num_sources, *destinations], strict=False)
    ]
    return MiniBatch(input_nodes[: destinations[-1]], input_nodes, blocks)


def structure_length(sizes: torch.Tensor) -> int:
    """The length of the structure that sizes announce."""
    num_sources, *shapes = sizes.tolist()
    return num_sources + sum(shapes) + len(shapes) // 2 if num_sources else 0


def deliver(message: Message, to: int, sender: int, communicator: Communicator) -> Message:
    """Send a message to one rank and return the one that comes from `sender`; every rank has to call this.

    Two rounds: sizes, then the rest. A rank that samples for itself sends nothing. Counted as requests, as are all ids
    that say what is wanted.
    """
    if sender == communicator.rank:
        return message
    send_counts, receive_counts = ([int(rank == peer) for rank in range(communicator.size)] for peer in (to, sender))

    def swap(part: torch.Tensor, length: int) -> torch.Tensor:
        received = torch.empty(length, dtype=part.dtype, device=communicator.device)
        sent = [part.shape[0] * count for count in send_counts]
        communicator.exchange(
            part.to(communicator.device), sent, received, [length * count for count in receive_counts], Kind.REQUESTS
        )
        return received.cpu()

    sizes, structure, degrees = message
    theirs = swap(sizes, sizes.shape[0])
    return theirs, swap(structure, structure_length(theirs)), swap(degrees, int(theirs[0]))

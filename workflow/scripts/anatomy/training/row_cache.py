"""Exchanges in which a row is sent again only when it has moved, and receivers keep what they have of the others.

First goes a bit for each row that says whether the row follows (Kind.REQUESTS), then the rows that do.
"""

from collections.abc import Sequence

import torch

from anatomy.training.communication import Communicator, Kind
from anatomy.training.quantisation import decode_int8, encode_int8


class RowCache:
    """Both of a rank's sides of one such exchange, with the same rows, in the same order, each time.

    `sent` float32 [sum(send_counts), width] is what the receivers have of this rank's rows, `held` float32
    [sum(receive_counts), width] what this rank has of the others'; both NaN until a row has been sent.
    """

    def __init__(
        self,
        held: torch.Tensor,
        send_counts: Sequence[int],
        receive_counts: Sequence[int],
        communicator: Communicator,
        kind: Kind,
        quantised: bool = False,
    ) -> None:
        self.held = held.fill_(torch.nan)
        self.sent = torch.full((sum(send_counts), held.shape[1]), torch.nan, device=held.device)
        self._communicator = communicator
        self._kind = kind
        self._quantised = quantised
        self._send_bits = RowBits(send_counts, communicator.device)
        self._receive_bits = RowBits(receive_counts, communicator.device)
        wire = encode_int8(held[:0]) if quantised else held[:0]
        self._received = torch.empty(len(held), wire.shape[1], dtype=wire.dtype, device=communicator.device)

    def exchange(self, rows: torch.Tensor, epsilon: float) -> int:
        """Bring `held` up to date on all ranks; returns how many of `rows`, like `sent`, this rank sent.

        A row x is sent if what the receivers have of it, c, is off by more than its share: ||x - c|| > epsilon ||x||.
        With an epsilon of 0 every row is sent.
        """
        moved = self._moved(rows, epsilon)
        chosen = torch.nonzero(moved).squeeze(1)
        message = encode_int8(rows[chosen]) if self._quantised else rows[chosen]
        self.sent[chosen] = self._decode(message)
        counts, received_counts, arrived = self._announce(moved.to(self._communicator.device))
        received = self._received[: arrived.shape[0]]
        message = message.to(self._communicator.device)
        self._communicator.exchange(message, counts, received, received_counts, self._kind)
        self.held[arrived.to(self.held.device)] = self._decode(received).to(self.held.device)
        return chosen.shape[0]

    def _moved(self, rows: torch.Tensor, epsilon: float) -> torch.Tensor:
        if epsilon == 0:
            return torch.ones(rows.shape[0], dtype=torch.bool, device=rows.device)
        # A row that was never sent is NaN away, which is not within any distance.
        return ~((rows - self.sent).norm(dim=1) <= epsilon * rows.norm(dim=1))

    def _announce(self, moved: torch.Tensor) -> tuple[list[int], list[int], torch.Tensor]:
        """Tell every receiver which rows follow; how many for each, how many from each, and which rows arrive."""
        sending, receiving = self._send_bits, self._receive_bits
        told = torch.empty(sum(receiving.num_bytes), dtype=torch.uint8, device=moved.device)
        self._communicator.exchange(sending.pack(moved), sending.num_bytes, told, receiving.num_bytes, Kind.REQUESTS)
        arriving = receiving.unpack(told)
        return sending.count(moved), receiving.count(arriving), torch.nonzero(arriving).squeeze(1)

    def _decode(self, message: torch.Tensor) -> torch.Tensor:
        return decode_int8(message) if self._quantised else message


class RowBits:
    """One bit per row in messages of whole bytes, one message after the other with `counts` rows each."""

    def __init__(self, counts: Sequence[int], device: torch.device) -> None:
        self.num_bytes = [bytes_of_bits(count) for count in counts]
        self._counts = list(counts)
        places = torch.arange(8 * sum(self.num_bytes)).split([8 * size for size in self.num_bytes])
        self._places = torch.cat([own[:count] for own, count in zip(places, counts, strict=True)]).to(device)
        self._shifts = torch.arange(8, dtype=torch.uint8, device=device)

    def pack(self, chosen: torch.Tensor) -> torch.Tensor:
        """Bool [sum(counts)] to uint8 [sum(num_bytes)]."""
        bits = torch.zeros(8 * sum(self.num_bytes), dtype=torch.uint8, device=chosen.device)
        bits[self._places] = chosen.to(torch.uint8)
        return (bits.view(-1, 8) << self._shifts).sum(1, dtype=torch.uint8)

    def unpack(self, message: torch.Tensor) -> torch.Tensor:
        """Uint8 [sum(num_bytes)] to bool [sum(counts)]."""
        return ((message[:, None] >> self._shifts) & 1).reshape(-1)[self._places].bool()

    def count(self, chosen: torch.Tensor) -> list[int]:
        """How many rows of each message are chosen."""
        return torch.stack([own.sum() for own in chosen.split(self._counts)]).tolist()


def bytes_of_bits(count: int) -> int:
    """Bytes of a message of one bit per row."""
    return -(-count // 8)

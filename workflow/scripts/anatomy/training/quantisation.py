"""Rows of float32 as 8-bit codes within each row's own range, for messages."""

import torch

HEADER_BYTES = 8
"""A quantised row begins with its lowest value and its step, float32 each."""
LEVELS = 256


def encode_int8(rows: torch.Tensor) -> torch.Tensor:
    """Rows, float32 [rows, width], as uint8 [rows, 8 + width]: the nearest of 256 values spread over a row's range."""
    low, high = rows.aminmax(dim=1, keepdim=True)
    step = (high - low) / (LEVELS - 1)
    codes = ((rows - low) / torch.where(step > 0, step, 1)).round_().to(torch.uint8)
    return torch.cat([torch.cat([low, step], 1).view(torch.uint8), codes], 1)


def decode_int8(encoded: torch.Tensor) -> torch.Tensor:
    """The rows, float32 [rows, width], that `encode_int8` made a message of, each value within half a step."""
    low, step = encoded[:, :HEADER_BYTES].clone(memory_format=torch.contiguous_format).view(torch.float32).split(1, 1)
    return torch.addcmul(low, encoded[:, HEADER_BYTES:].float(), step)

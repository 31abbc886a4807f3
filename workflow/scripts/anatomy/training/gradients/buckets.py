"""Buckets of one size, each all-reduced during the backward pass as soon as its gradients are there.

What GradientFlow calls lazy all-reduce (Sun, Feng, Han, Yan and Wen, "Optimizing Network Performance for Distributed
DNN Training on GPU Clusters: ImageNet/AlexNet Training in 1.5 Minutes", 2019, arXiv 1902.06855): gradients are put
together until they reach a threshold, then sent. Here they lie side by side from the start, so nothing is copied. A
bucket holds whole gradients and is closed by the first with which it reaches the size, so the last may be smaller.
"""

from collections.abc import Sequence
from typing import Any

from anatomy.training.gradients._bucketed import BucketedSynchroniser

OPTIONS: dict[str, Any] = {
    "properties": {
        "bucket_mb": {
            "type": "number",
            "exclusiveMinimum": 0,
            "default": 1,
            "description": "Size in MB (10^6 bytes) at which a bucket is sent.",
        },
    },
    "required": [],
}
EXACT = ({"bucket_mb": 1000}, {"bucket_mb": 0.0003})


class Policy(BucketedSynchroniser):
    """See the module."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        sizes_bytes = [4 * (stop - start) for _, start, stop in self.parameters.spans]
        self.set_buckets(buckets_of(sizes_bytes, self.options["bucket_mb"] * 1e6))


def buckets_of(sizes_bytes: Sequence[int], bucket_bytes: float) -> list[int]:
    """How many gradients each bucket takes, from the last one on."""
    buckets, gathered, filled = [], 0, 0
    for size in reversed(sizes_bytes):
        gathered, filled = gathered + 1, filled + size
        if filled >= bucket_bytes:
            buckets.append(gathered)
            gathered, filled = 0, 0
    return [*buckets, gathered] if gathered else buckets

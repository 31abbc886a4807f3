"""What a job ran on and communicated with, as its traces show it."""

PLATFORMS = {"cuda-nccl": "GPU and NCCL", "cuda": "GPU", "cpu-gloo": "CPU and Gloo", "cpu": "CPU"}
"""Kinds of traces, and how figures, tables and timelines name them."""

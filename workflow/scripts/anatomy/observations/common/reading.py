"""Verdicts as they are read back: the four words, and all files of a results folder; loads neither pandas nor scipy."""

from pathlib import Path
from typing import Any

from anatomy.files import read_json

SUPPORTED = "supported"
NOT_SUPPORTED = "not supported"
INCONCLUSIVE = "inconclusive"
NOT_MEASURABLE = "not measurable here"


def load_observations(results: Path) -> list[dict[str, Any]]:
    """All verdicts under `{results}/observations`, by name; an empty list where there are none yet."""
    return [read_json(path, "observation") for path in sorted((results / "observations").glob("*.json"))]

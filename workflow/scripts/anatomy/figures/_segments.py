"""How what a rank does is filled and named wherever it is drawn: by group, and by phase within it."""

from collections.abc import Iterable
from typing import Any

from anatomy.figures import _style
from anatomy.phases import PREPARATION, Phase

Segment = tuple[str, str]
"""Group and phase."""

COMPUTATION = (
    Phase.AGGREGATE,
    Phase.COMBINE,
    Phase.LOSS,
    Phase.BACKWARD,
    Phase.OPTIMIZE,
    Phase.DISTURB,
    Phase.EVALUATE,
)
"""Phases that compute and do little else; computing in other ones is named as such."""
UNDIVIDED = {"copy": "other copies", "idle": "idle", "other": "other"}
"""Groups that are one segment whatever the phase, and its name."""
EDGE = {"edgecolor": _style.INK, "linewidth": 0.4}


def order(group: str, phase: str) -> tuple[int, int, str]:
    """Where a segment stands among others; names that the study does not know come last."""
    groups, phases = tuple(_style.GROUP_COLOURS), tuple(Phase)
    return (
        groups.index(group) if group in groups else len(groups),
        phases.index(phase) if phase in phases else len(phases),
        phase,
    )


def name(group: str, phase: str) -> str:
    """What a legend calls a segment."""
    if group in UNDIVIDED:
        return UNDIVIDED[group]
    usual = phase in PREPARATION if group == "preparation" else group == "compute" and phase in COMPUTATION
    return phase if usual else f"{phase} ({group})"


def looks(segments: Iterable[Segment]) -> dict[Segment, dict[str, Any]]:
    """The fill of every segment, in their order."""
    pairs = sorted(set(segments), key=lambda pair: order(*pair))
    found = {}
    for group in dict.fromkeys(group for group, _ in pairs):
        members = [pair for pair in pairs if pair[0] == group]
        found |= dict(zip(members, _style.shades(group, len(members)), strict=True))
    return found

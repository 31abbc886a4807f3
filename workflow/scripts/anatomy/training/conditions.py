"""What a run's condition can say, without torch: JSON-schema fragments (draft 2020-12), and what contradicts them.

A condition is an emulated disturbance of the machine. It changes how fast ranks are, never what they compute.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from anatomy.options import Fragment, closed

Options = Mapping[str, Any]

_RANK: Fragment = {"type": "integer", "minimum": 0, "description": "The rank that is disturbed."}
_FACTOR: Fragment = {"type": "number", "minimum": 1, "description": "How many times slower it computes; 1: as it is."}

CONDITION_OPTIONS: Fragment = {
    "minProperties": 1,
    "maxProperties": 1,
    "properties": {
        "slow": {
            "description": "One rank computes slower by a factor.",
            **closed(
                {
                    "properties": {
                        "rank": _RANK,
                        "factor": _FACTOR,
                        "from_step": {
                            "type": "integer",
                            "minimum": 0,
                            "default": 0,
                            "description": "The first slow step of the run, counted from 0 over all epochs.",
                        },
                    },
                    "required": ["rank", "factor"],
                }
            ),
        },
        "slow_at_random": {
            "description": "In each step each rank, by itself, computes slower by a factor with a probability.",
            **closed(
                {
                    "properties": {
                        "factor": _FACTOR,
                        "probability": {
                            "type": "number",
                            "minimum": 0,
                            "maximum": 1,
                            "description": "How likely a rank is slow in a step; drawn from seed, rank and step.",
                        },
                    },
                    "required": ["factor", "probability"],
                }
            ),
        },
        "cpu_share": {
            "description": "The kernel gives one rank's process a share of its processors' time, by a control group.",
            **closed(
                {
                    "properties": {
                        "rank": _RANK,
                        "share": {
                            "type": "number",
                            "minimum": 0.01,
                            "maximum": 1,
                            "description": "Of the time of as many processors as the rank has threads.",
                        },
                    },
                    "required": ["rank", "share"],
                }
            ),
        },
    },
    "required": [],
}


def limits_cpu(condition: Options | None) -> bool:
    """Whether a condition needs a machine on which a process can be given a share of a processor."""
    return bool(condition) and "cpu_share" in condition


def condition_contradictions(
    condition: Options, ranks: int, device: str, profile: Mapping[str, int] | None = None
) -> Iterator[str]:
    """What a complete condition says against runs of at least so many ranks: what was found, and what to do.

    `profile` is given where the runs are profiled: its steps.
    """
    rank = next((options["rank"] for options in condition.values() if "rank" in options), 0)
    if rank >= ranks:
        yield f"found rank {rank} disturbed in a run of {ranks} rank(s), which are counted from 0; name another rank"
    if device != "cpu" and not limits_cpu(condition):
        yield (
            f"found a slow rank with device {device!r}; what a rank has computed is known by its processor time: use "
            "device 'cpu', or run without a condition"
        )
    first, steps = condition.get("slow", {}).get("from_step", 0), sum(profile.values()) if profile else None
    if steps is not None and first >= steps:
        yield (
            f"found a rank slow from step {first} on, but a profile ends after {steps} steps; lower `from_step`, raise "
            "`profile.wait`, or do not profile"
        )

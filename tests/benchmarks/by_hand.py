"""What a trace says about work on the GPU, counted the plain way: all of it in memory, the standard library alone.

This decides who is right where two programs differ, so it shares no code with either, and does nothing clever: times
are read as decimals and kept as whole nanoseconds, and every sum is over the instants at which anything starts or ends.
"""

import gzip
import json
from collections import Counter
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
"""What is known of one rank's GPU; times in ns, but for the shares:

names: time per name of a kernel, memory copy or memset, summed over its calls (dict)
window: from the first start to the last end
idle: nothing runs within the window
communication: a kernel of NCCL runs
kernels: another kernel runs;  kernels_else: something runs, but no such kernel
kernels_overlap: share of `communication` in which such a kernel runs too
device, device_else, device_overlap: the same, with memsets and copies within the device among the kernels
types: exactly these types run, such as COMPUTATION+MEMORY, memory being copies and memsets (dict)
"""


def count(path: Path) -> tuple[Facts, Facts]:
    """The facts of one trace, and those without the last step where there are several.

    Without the last step is without what was launched after it had begun.
    """
    with gzip.open(path) if path.suffix == ".gz" else path.open() as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    work = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    steps = {event["ts"] for event in events if str(event.get("name")).startswith("ProfilerStep#")}
    calls = [event for event in events if event.get("cat") == "cuda_runtime" and event["ts"] < max(steps)]
    before = {event["args"]["correlation"] for event in calls}
    kept = [event for event in work if event["args"]["correlation"] in before] if len(steps) > 1 else work
    return _facts(work), _facts(kept)


def _facts(work: list[dict[str, Any]]) -> Facts:
    spans = [(int(event["ts"] * 1000), int((event["ts"] + event["dur"]) * 1000), _type(event)) for event in work]
    names = Counter()
    for event in work:
        names[event["name"]] += int(event["dur"] * 1000)
    return {"names": dict(names), **_covered(spans)}


def _type(event: dict[str, Any]) -> str:
    """The kind of work: NCCL's kernels, other kernels, copies over the device's border, and what memory does within."""
    if event["cat"] == "kernel":
        return "COMMUNICATION" if event["name"].startswith("nccl") else "COMPUTATION"
    return "WITHIN" if event["cat"] == "gpu_memset" or "DtoD" in event["name"] else "BORDER"


def _covered(spans: list[tuple[int, int, str]]) -> dict[str, Any]:
    """Time by what runs, from a sweep over all starts and ends."""
    changes = sorted([(start, 1, kind) for start, _, kind in spans] + [(end, -1, kind) for _, end, kind in spans])
    running, time = Counter(), Counter()
    for (at, change, kind), (following, _, _) in pairwise(changes):
        running[kind] += change
        time[frozenset(kind for kind, number in running.items() if number)] += following - at
    window, idle = changes[-1][0] - changes[0][0], time.pop(frozenset(), 0)
    communication = sum(length for state, length in time.items() if "COMMUNICATION" in state)
    result = {"window": window, "idle": idle, "communication": communication, "types": Counter()}
    for name, computing in (("kernels", {"COMPUTATION"}), ("device", {"COMPUTATION", "WITHIN"})):
        result[name] = sum(length for state, length in time.items() if state & computing)
        result[f"{name}_else"] = window - idle - result[name]
        both = sum(length for state, length in time.items() if state & computing and "COMMUNICATION" in state)
        result[f"{name}_overlap"] = both / communication if communication else None
    for state, length in time.items():
        types = {"MEMORY" if kind in ("WITHIN", "BORDER") else kind for kind in state}
        result["types"]["+".join(sorted(types))] += length
    return result

"""What the tables of this project and the answers of HolisticTraceAnalysis say about the same facts of a trace.

The facts are those of `by_hand`, whose count is the measure for both.
"""

import gzip
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from by_hand import Facts, count
from watching import run

NAMES = {
    "names": "time by kernel name (the worst name)",
    "window": "window of the GPU's work",
    "idle": "idle",
    "communication": "communication runs",
    "kernels": "kernels compute",
    "kernels_else": "busy, but no kernel computes",
    "kernels_overlap": "share of communication under kernels",
    "device": "the device computes",
    "device_else": "busy, but the device does not compute",
    "device_overlap": "share of communication under computation",
    "types": "time by combination of types (the worst)",
}
"""The facts that are compared, as the page names them."""

HTA_ROUNDS_SHARES_TO = 0.0001
SHARES = ("kernels_overlap", "device_overlap")
EXACT = {"HTA_DISABLE_NS_ROUNDING": "1"}
MAX_DEVIATION = 0.001
SMALLEST_SHOWN = 0.00005
OF_KERNELS = ("kernels", "kernels_else", "kernels_overlap")


def _row(cat: str, name: str, thread: int, ts: int, dur: int, correlation: int, **args: int) -> dict[str, Any]:
    """An event of a trace, times in microseconds."""
    place = {"pid": 0 if "stream" in args else 1, "tid": thread, "ts": ts, "dur": dur}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        **place,
        "args": {"External id": 1, "correlation": correlation, **args},
    }


WITH_WAITS = {
    "schemaVersion": 1,
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
    "traceEvents": [
        _row("user_annotation", "ProfilerStep#1", 1, 1000, 200, 0),
        _row("cuda_runtime", "cudaLaunchKernel", 1, 1001, 3, 11),
        _row("kernel", "ampere_sgemm_64x64_nn", 7, 1010, 10, 11, stream=7),
        _row("cuda_runtime", "cudaStreamSynchronize", 1, 1015, 40, 12),
        _row("cuda_sync", "Stream Sync", 7, 1020, 20, 12, stream=7),
        _row("cuda_sync", "Stream Wait Event", 7, 1045, 10, 13, stream=7),
        _row("cuda_runtime", "cudaLaunchKernel", 1, 1056, 3, 14),
        _row("kernel", "ampere_sgemm_64x64_nn", 7, 1060, 10, 14, stream=7),
        _row("cuda_runtime", "cudaLaunchKernelExC", 1, 1060, 3, 15),
        _row("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", 8, 1070, 10, 15, stream=8),
    ],
}
"""Two kernels, then one of NCCL; between the two, the CPU and a stream wait and the GPU has nothing to do."""


@dataclass(frozen=True)
class Input:
    """Traces, which facts are shown of them, and in which of them HTA is known to err with all its steps and digits.

    `same_meaning`: they lack all that the two programs count differently.
    """

    title: str
    folder: Path
    facts: tuple[str, ...]
    known: tuple[str, ...] = ("types",)
    same_meaning: bool = False


def inputs(million: Path, traces: Path, work: Path) -> Iterator[Input]:
    """What is compared; real traces as far as they are there."""
    yield Input("made traces", million, tuple(NAMES))
    waits = work / "waits"
    waits.mkdir()
    (waits / "rank0.json").write_text(json.dumps(WITH_WAITS))
    yield Input("a made trace in which the CPU and a stream wait", waits, tuple(NAMES), tuple(NAMES))
    if traces.is_dir():
        alone = work / "nccl_data"
        alone.mkdir()
        shutil.copy(traces / "hta" / "nccl_data.json.gz", alone)
        for name, folder in (("dlrm-8rank", traces / "dlrm-8rank"), ("nccl_data", alone)):
            yield Input(name, folder, tuple(NAMES))
            copy = copy_without_memory(folder, work / f"{name}-without-memory")
            yield Input(
                f"{name}, its memsets and copies within the device left out", copy, OF_KERNELS, same_meaning=True
            )


def compare(traces: Input, hta: list[str], tables: Path) -> tuple[str, list[str]]:
    """How far our `tables` and what HTA says of the same traces are from a plain count.

    Returns a table in Markdown, and what is off by more than 0.1% without a known reason.
    """
    counts = {_rank(path): count(path) for path in sorted(traces.folder.glob("*.json*"))}
    all_steps, but_last = ({rank: both[place] for rank, both in counts.items()} for place in (0, 1))
    truth, truth_but_last = (facts | {None: sums_over_ranks(facts)} for facts in (all_steps, but_last))
    default = hta_facts(answers_of(hta, traces.folder))
    exact = hta_facts(answers_of(hta, traces.folder, "--all-steps", environment=EXACT))
    found = {
        "HTA": deviations(default, truth),
        "HTA, of the steps it keeps": deviations(default, truth_but_last),
        "HTA, all steps and digits": deviations(exact, truth),
        "this project": deviations(our_facts(tables, traces.same_meaning), truth),
    }
    first = min(counts)
    lines = [f"| fact | counted, rank {first} | {' | '.join(found)} |", "|---|---|---|---|---|---|"]
    for fact in traces.facts:
        cells = [_counted(fact, all_steps[first][fact]), *(_percent(off.get(fact)) for off in found.values())]
        lines.append(f"| {NAMES[fact]} | {' | '.join(cells)} |")
    exactly = {fact: off for fact, off in found["HTA, all steps and digits"].items() if fact not in traces.known}
    wrong = [
        f"{traces.title}, {NAMES[fact]}: {program} is off by {off:.2%}"
        for program, offs in (("HTA", exactly), ("ours", found["this project"]))
        for fact, off in offs.items()
        if abs(off) > MAX_DEVIATION
    ]
    return "\n".join([f"### {traces.title}", "", *lines]), wrong


def _rank(path: Path) -> int:
    with gzip.open(path) if path.suffix == ".gz" else path.open() as file:
        return json.load(file)["distributedInfo"]["rank"]


def answers_of(
    hta: list[str], folder: Path, *options: str, environment: dict[str, str] | None = None
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out:
        file = Path(out) / "answers.json"
        run([*hta, str(folder), "--every-name", "--out", str(file), *options], environment)
        return json.loads(file.read_text())


def _counted(fact: str, value: Any) -> str:
    if isinstance(value, dict):
        return ""
    return f"{100 * value:.3f}%" if fact in SHARES else f"{value / 1e3:,.3f} us"


def _percent(off: float | None) -> str:
    if off is None:
        return ""
    return "not in the trace" if off == float("inf") else "0" if abs(off) < SMALLEST_SHOWN else f"{off:+.2%}"


def hta_facts(answers: dict[str, list[dict[str, Any]]]) -> dict[int | None, Facts]:
    """By rank what HTA says, in ns; what it sums over ranks is under None."""
    result: dict[int | None, Facts] = {}
    for row in answers["temporal"]:
        keys = {
            "window": "kernel_time",
            "idle": "idle_time",
            "kernels": "compute_time",
            "kernels_else": "non_compute_time",
        }
        result[int(row["rank"])] = {fact: row[f"{key}(us)"] * 1000 for fact, key in keys.items()} | {"names": {}}
    for row in answers["overlap"]:
        result[int(row["rank"])]["kernels_overlap"] = row["comp_comm_overlap_pctg"] / 100
    for row in answers["kernels"]:
        result[int(row["rank"])]["names"][row["name"]] = row["sum (us)"] * 1000
    types = {"+".join(sorted(row["kernel_type"].split(" overlapping "))): row["sum"] * 1000 for row in answers["types"]}
    result[None] = {"types": types}
    return result


def our_facts(folder: Path, same_meaning: bool) -> dict[int | None, Facts]:
    """By rank what our tables say, in ns; with `same_meaning`, what the device computes is what its kernels compute."""
    tables = {name: pd.read_parquet(folder / f"{name}.parquet") for name in ("steps", "operators", "intervals")}
    result: dict[int | None, Facts] = {}
    for rank, steps in tables["steps"].groupby("rank"):
        intervals = tables["intervals"][tables["intervals"]["rank"] == rank]
        operators = tables["operators"][
            (tables["operators"]["rank"] == rank) & (tables["operators"]["device"] == "cuda")
        ]
        streams = intervals[intervals["stream"].str.startswith("gpu")]
        window = int(streams["end_ns"].max() - streams["start_ns"].min())
        # All work lies within steps, so that the GPU is idle between them.
        working = intervals[(intervals["stream"] == "rank") & (intervals["category"] != "idle")]
        busy = int((working["end_ns"] - working["start_ns"]).sum())
        overlapped = int(steps["comm_overlapped_ns"].sum())
        communication = int(steps["comm_exposed_ns"].sum()) + overlapped
        device = int(steps["compute_ns"].sum())
        facts = {
            "device": device,
            "device_else": busy - device,
            "device_overlap": overlapped / communication if communication else None,
        }
        names = operators.groupby("name")["self_ns"].sum().to_dict()
        result[int(rank)] = {"names": names, "window": window, "idle": window - busy, "communication": communication}
        result[int(rank)] |= facts
        if same_meaning:
            result[int(rank)] |= {name.replace("device", "kernels"): value for name, value in facts.items()}
    return result


def deviations(found: dict[int | None, Facts], truth: dict[int | None, Facts]) -> dict[str, float]:
    """The largest relative deviation from the truth over all ranks, by fact; what is not found is left out.

    What only one of both knows, such as the name of a kernel, deviates by infinity or by -100%. Of shares, which HTA
    gives in hundredths of a percent, half of that is no deviation.
    """
    result: dict[str, float] = {}
    for rank, facts in truth.items():
        for fact in NAMES.keys() & facts.keys() & found.get(rank, {}).keys():
            ours, true = found[rank][fact], facts[fact]
            pairs = [(ours, true)] if not isinstance(true, dict) else _joined(ours, true)
            slack = HTA_ROUNDS_SHARES_TO / 2 * 1.001 if fact in SHARES else 0
            result[fact] = max([result.get(fact, 0.0), *(_deviation(*pair, slack) for pair in pairs)], key=abs)
    return result


def _joined(found: dict[str, float], truth: dict[str, float]) -> list[tuple[float, float]]:
    return [(found.get(name, 0), truth.get(name, 0)) for name in found.keys() | truth.keys()]


def _deviation(found: float | None, true: float | None, slack: float) -> float:
    if found is None or true is None:
        return 0.0 if found is true else float("inf")
    if abs(found - true) <= slack:
        return 0.0
    return (found - true) / true if true else float("inf")


def sums_over_ranks(facts: dict[int | None, Facts]) -> Facts:
    """The time by combination of types of all ranks together."""
    types: dict[str, int] = {}
    for of_rank in facts.values():
        for name, length in of_rank["types"].items():
            types[name] = types.get(name, 0) + length
    return {"types": types}


def copy_without_memory(folder: Path, out: Path) -> Path:
    """A copy of the traces of a folder without memsets and copies within the device; returns the new folder."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for path in sorted(folder.glob("*.gz")):
        with gzip.open(path) as file:
            trace = json.load(file)
        trace["traceEvents"] = [
            event
            for event in trace["traceEvents"]
            if event.get("cat") != "gpu_memset" and not (event.get("cat") == "gpu_memcpy" and "DtoD" in event["name"])
        ]
        with gzip.open(out / path.name, "wt", compresslevel=1) as file:
            json.dump(trace, file)
    return out

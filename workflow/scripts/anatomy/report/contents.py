"""What the report says, gathered from a results folder: only what its configuration names, so nothing stale gets in."""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anatomy.errors import StudyError
from anatomy.figures import FIGURES
from anatomy.files import read_json, sha256_of
from anatomy.program import versions

MOST_ROWS = 60
"""Longer tables are cut in the report, which says so; their files are whole."""
PIXELS_PER_POINT = 1.75
RUN_TABLE = "runs"
SYMBOLS = {"supported": "✓", "not supported": "✗", "inconclusive": "?", "not measurable here": "–"}
"""Verdicts, in the order in which they are counted, with a sign that does not need colour."""
_LAYOUT = ("row", "x", "y")
"""Columns of a figure's numbers that only place its marks."""
_DIRECTIONS = {"<=": "≤", ">=": "≥"}
_HOLDS_FOR = {
    "platform": "{}",
    "cpu": "{}",
    "cores": "{} cores",
    "gpus": "{} GPUs",
    "memory_bytes": "{} of memory",
    "system": "{}",
}
_RUN_COLUMNS = {
    "run": "run",
    "status": "status",
    "platform": "platform",
    "ranks": "ranks",
    "oversubscribed": "more ranks than cores",
    "epoch_s": "epoch (s)",
    "train_nodes_per_s": "training nodes/s",
    "final_val_accuracy": "validation accuracy",
    "final_test_accuracy": "test accuracy",
    "peak_memory_bytes": "peak memory",
    "profiling_cost": "profiled / timed step",
    "reason": "reason",
}


@dataclass(frozen=True)
class Table:
    """Cells as they are shown; `left_out` rows are in the file only."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left_out: int = 0


@dataclass(frozen=True)
class FigureContent:
    """One figure: its picture (SVG), caption (reStructuredText) and the numbers it shows."""

    name: str
    title: str
    caption: str
    svg: bytes
    width_px: int
    numbers: Table
    path: str


@dataclass(frozen=True)
class Contents:
    """Everything that the page shows."""

    observations: Sequence[Mapping[str, Any]]
    figures: Mapping[str, FigureContent]
    counts: Mapping[str, int]
    experiments: Mapping[str, Mapping[str, Any]]
    runs: Table | None
    recorded: Sequence[Mapping[str, Any]]
    machines: Sequence[str]
    config: Mapping[str, Any]
    versions: Mapping[str, str]
    checksums: Sequence[tuple[str, str]]


def gather(results: Path, config_path: Path) -> Contents:
    """Read what the configuration names from `results`.

    Raises StudyError where a file is absent or damaged; the message names the file and how to build it.
    """
    config = read_json(config_path)
    observations = [_observation(results, name) for name in config.get("observations", {})]
    wanted = [*config.get("figures", []), *(observation["figure"] for observation in observations)]
    figures = {name: _figure(results, name) for name in dict.fromkeys(wanted)}
    runs = _read_csv(results / "tables" / f"{RUN_TABLE}.csv") if RUN_TABLE in config.get("tables", {}) else []
    verdicts = [observation["verdict"] for observation in observations]
    return Contents(
        observations=observations,
        figures=figures,
        counts={verdict: verdicts.count(verdict) for verdict in SYMBOLS if verdict in verdicts},
        experiments=config.get("experiments", {}),
        runs=_runs(runs) if runs else None,
        recorded=_recorded(results, config),
        machines=list(dict.fromkeys(filter(None, (observation["machine"] for observation in observations)))),
        config=config,
        versions=_versions(results, config, observations, runs),
        checksums=_checksums(results, config, figures),
    )


def shown(value: Any) -> str:
    """A value as a reader wants it: four significant digits, nothing for what is missing."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool) or value in ("True", "False"):
        return "yes" if str(value) == "True" else "no"
    if isinstance(value, list):
        return ", ".join(map(shown, value))
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    if number.is_integer() and abs(number) < 1e15:
        return f"{int(number)}"
    return f"{number:.4g}"


def as_bytes(value: Any) -> str:
    """A number of bytes in MiB or GiB."""
    if value in (None, ""):
        return "–"
    mebibytes = float(value) / 2**20
    return f"{mebibytes / 1024:.1f} GiB" if mebibytes >= 1024 else f"{mebibytes:.0f} MiB"


def _observation(results: Path, name: str) -> dict[str, Any]:
    path = results / "observations" / f"{name}.json"
    if not path.is_file():
        raise StudyError(f"{path}: not found although the configuration names it; run `snakemake {path}` first")
    content = read_json(path, "observation")
    interval = content["ci_low"] is not None
    seeds = content.get("seeds") or list(range(1, len(content["values"]) + 1))
    return content | {
        "symbol": SYMBOLS.get(content["verdict"], "?"),
        "machine": _machine(content.get("holds_for") or {}),
        "estimate_shown": shown(content["estimate"]),
        "interval_shown": f"[{shown(content['ci_low'])}, {shown(content['ci_high'])}]" if interval else "",
        "wanted": f"{_DIRECTIONS.get(content['direction'], content['direction'])} {shown(content['threshold'])}",
        "repetitions": [(shown(seed), shown(value)) for seed, value in zip(seeds, content["values"], strict=True)],
        "notes_shown": list(_flat(content.get("notes") or {})),
    }


def _machine(holds_for: Mapping[str, Any]) -> str:
    words = []
    for key, phrase in _HOLDS_FOR.items():
        values = holds_for.get(key)
        values = values if isinstance(values, list) else [values]
        known = [as_bytes(value) if key == "memory_bytes" else str(value) for value in values if value not in (None, 0)]
        if known:
            words.append(phrase.format(" or ".join(known)))
    return ", ".join(words)


def _flat(notes: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, str]]:
    """(name, value) of every number in nested notes, names joined by a colon."""
    for name, value in notes.items():
        title = f"{above}{name.replace('_', ' ')}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{title}: ")
        else:
            yield title, shown(value)


def _figure(results: Path, name: str) -> FigureContent:
    path = results / "figures" / f"{name}.svg"
    try:
        picture, rows = path.read_bytes(), _read_csv(path.with_suffix(".csv"))
    except FileNotFoundError:
        raise StudyError(f"{path}: not found; run `snakemake {path.with_suffix('.pdf')}` first") from None
    constants = FIGURES[name].constants
    columns = [column for column in (rows[0] if rows else {}) if column not in _LAYOUT]
    cells = [[shown(row[column]) for column in columns] for row in rows[:MOST_ROWS]]
    numbers = Table([column.replace("_", " ") for column in columns], cells, max(0, len(rows) - MOST_ROWS))
    return FigureContent(
        name,
        constants["TITLE"],
        constants["CAPTION"],
        picture,
        _width_px(path, picture),
        numbers,
        str(path.with_suffix("")),
    )


def _width_px(path: Path, svg: bytes) -> int:
    """How wide a picture is shown: larger than on paper, so that its words have the size of the page's captions."""
    width_pt = re.search(rb'<svg[^>]* width="([0-9.]+)pt"', svg)
    if width_pt is None:
        raise StudyError(f"{path}: not an SVG picture with its width in pt; draw the figure again")
    return round(float(width_pt[1]) * PIXELS_PER_POINT)


def _recorded(results: Path, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is known, and what is not, of traces recorded elsewhere."""
    experiments = config.get("experiments", {}).values()
    names = {name for experiment in experiments for name in experiment.get("traces", [])}
    return [
        read_json(results / "traces" / name / "traces.json", "traces") | {"path": config["traces"][name]["path"]}
        for name in sorted(names)
    ]


def _runs(rows: Sequence[Mapping[str, str]]) -> Table:
    columns = [column for column in _RUN_COLUMNS if any(row.get(column) for row in rows)]
    cells = [
        [as_bytes(row[column]) if column == "peak_memory_bytes" else shown(row[column]) for column in columns]
        for row in rows
    ]
    return Table([_RUN_COLUMNS[column] for column in columns], cells)


def _read_csv(path: Path) -> list[dict[str, str]]:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        raise StudyError(f"{path}: not found; run `snakemake {path}` first") from None


def _versions(
    results: Path,
    config: Mapping[str, Any],
    observations: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, str]],
) -> dict[str, str]:
    """Versions that took part: those in the manifests of runs, tables and observations, and of what writes this."""
    manifests = [results / "tables" / f"{table}.json" for table in config.get("tables", {})]
    manifests += [results / "runs" / row["run"] / "timed" / "metrics.json" for row in runs]
    said = [read_json(path).get("versions") or {} for path in manifests if path.is_file()]
    said += [observation.get("versions") or {} for observation in observations]
    found: dict[str, set[str]] = {}
    for some in [*said, versions("matplotlib", "jinja2", "docutils")]:
        for package, version in some.items():
            found.setdefault(package, set()).add(str(version))
    return {package: ", ".join(sorted(several)) for package, several in sorted(found.items())}


def _checksums(results: Path, config: Mapping[str, Any], figures: Iterable[str]) -> list[tuple[str, str]]:
    paths = [results / "tables" / f"{table}.parquet" for table in config.get("tables", {})]
    paths += [results / "observations" / f"{name}.json" for name in config.get("observations", {})]
    paths += [results / "figures" / f"{name}.{suffix}" for name in figures for suffix in ("csv", "pdf")]
    return [(str(path), sha256_of(path)) for path in paths if path.is_file()]

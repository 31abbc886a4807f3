"""Writing a study table (Parquet, CSV and its data dictionary) and reading it back."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from anatomy.errors import StudyError
from anatomy.files import read_json, sha256_of, staged, write_json
from anatomy.program import measured, versions
from anatomy.tables import TABLES
from anatomy.tables.common.columns import Columns, dictionary
from anatomy.tables.common.inputs import Study, StudyRun


def tabulate(table: str, study: Study, options: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Build a table and write `{out}/{table}.parquet`, `.csv` and, last, `.json`; returns that manifest.

    Raises StudyError for an unknown table, an input that is absent or damaged, a table that would be empty though no
    run was left out, or traces recorded elsewhere where the table needs runs.
    """
    module = TABLES[table].load()
    recorded = [run.name for run in study.runs if run.recorded]
    if recorded and "traces" not in module.INPUTS:
        raise StudyError(
            f"table {table!r}: of {', '.join(recorded)} there are traces alone, and this table needs runs; leave "
            f"{'it' if len(recorded) == 1 else 'them'} out"
        )
    manifest: dict[str, Any] = {
        "kind": "table",
        "table": table,
        "summary": module.SUMMARY,
        "options": dict(options),
        "columns": dictionary(module.COLUMNS),
    }
    with measured(manifest), staged(out, f"{table}.json") as stage:
        frame = module.build(study, options)
        _check(table, frame, module.COLUMNS, module.KEY, may_be_empty=bool(study.left_out))
        frame.to_parquet(stage / f"{table}.parquet", index=False)
        frame.to_csv(stage / f"{table}.csv", index=False, lineterminator="\n")
        manifest |= {
            "rows": len(frame),
            "left_out": dict(study.left_out),
            "machines": machines_of(study.runs),
            "sha256": {suffix: sha256_of(stage / f"{table}.{suffix}") for suffix in ("parquet", "csv")},
            "versions": versions("pandas", "pyarrow"),
        }
        write_json(stage / f"{table}.json", manifest)
    return manifest


def open_table(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A table and its manifest, from the path of its Parquet file.

    Raises StudyError where one of the two is absent, or the table is not the one that the manifest describes.
    """
    manifest = read_json(path.with_suffix(".json"), "table")
    try:
        frame = pd.read_parquet(path, dtype_backend="numpy_nullable")
    except FileNotFoundError:
        raise StudyError(f"{path}: not found although its manifest is there; tabulate it again") from None
    except (OSError, ValueError) as error:
        raise StudyError(f"{path}: damaged ({error}); tabulate it again") from error
    if list(frame) != list(manifest["columns"]):
        raise StudyError(
            f"{path}: found the columns {', '.join(frame)}, the manifest says {', '.join(manifest['columns'])}; "
            "tabulate it again"
        )
    return frame, manifest


def machines_of(runs: Sequence[StudyRun]) -> list[dict[str, Any]]:
    """The different machines that runs were timed on, each with its runs; none for traces recorded elsewhere."""
    found: dict[str, dict[str, Any]] = {}
    for run in (run for run in runs if not run.recorded):
        machine = run.metrics.get("machine") or {}
        found.setdefault(json.dumps(machine, sort_keys=True), {**machine, "runs": []})["runs"].append(run.name)
    return list(found.values())


def _check(table: str, frame: pd.DataFrame, columns: Columns, key: Sequence[str], may_be_empty: bool) -> None:
    """What must hold of every table; what a person can bring about is a StudyError."""
    if frame.empty and not may_be_empty:
        raise StudyError(
            f"table {table!r}: no rows; name at least one run (--run, --runs-file) that it can be made from"
        )
    assert list(frame) == list(columns), f"{table}: columns differ from its data dictionary"
    repeated = frame[frame.duplicated(list(key), keep=False)]
    assert repeated.empty, f"{table}: rows that share {key}:\n{repeated[list(key)].head()}"

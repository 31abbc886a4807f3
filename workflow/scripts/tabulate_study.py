"""Tabulate runs: write one study table as Parquet and CSV, with its data dictionary as JSON.

    python workflow/scripts/tabulate_study.py phases --run powerlaw.metis-2.minibatch.sage.s0 --out results/tables
    python workflow/scripts/tabulate_study.py scaling --runs-file runs.txt --strong strong_scaling --weak weak_scaling
    python workflow/scripts/tabulate_study.py partitions --partition powerlaw/metis-2 --partition powerlaw/random-2

Runs are named, and all of their files are found under the folder of results. A runs file has a line
`experiment<TAB>run`, or only `run`, for each run. Runs that failed for a reason of their own stay in the table, with
that reason instead of numbers. A name that has trace tables and no run is that of traces recorded elsewhere, which is
enough for tables that need no more.
"""

import argparse
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anatomy.program import parser_for, run_program
from anatomy.tables import TABLES


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("table", metavar="TABLE", help=f"one of: {', '.join(TABLES)}")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="folder of all results")
    parser.add_argument("--run", action="append", default=[], metavar="RUN", help="name of a run; repeatable")
    parser.add_argument("--runs-file", type=Path, metavar="FILE", help="names of runs, one a line")
    parser.add_argument(
        "--partition",
        action="append",
        default=[],
        metavar="GRAPH/PARTITIONER-PARTS",
        help="for partitions: beside those that the runs train on; repeatable",
    )
    options = {table: plugin.constants["OPTIONS"]["properties"] for table, plugin in TABLES.items()}
    for name in dict.fromkeys(name for own in options.values() for name in own):
        _add_option(parser, name, {table: own[name] for table, own in options.items() if name in own})
    parser.add_argument(
        "--left-out",
        default="{}",
        metavar="JSON",
        help="runs that cannot be measured here, by what they need; without any other run the table is empty",
    )
    parser.add_argument("--options", default="{}", metavar="JSON", help="the table's options as one JSON object")
    parser.add_argument("--out", type=Path, default=Path("results/tables"), metavar="DIR", help="folder to write to")
    arguments = parser.parse_args()
    schema = TABLES[arguments.table].constants["OPTIONS"]  # an unknown name is answered before pandas is loaded

    from anatomy.options import complete_options
    from anatomy.tables.common.inputs import Study, read_runs_file
    from anatomy.tables.common.options import json_object
    from anatomy.tables.common.store import tabulate

    pairs = read_runs_file(arguments.runs_file) if arguments.runs_file else []
    pairs += [("", run) for run in arguments.run]
    given = {name: value for name, value in vars(arguments).items() if name in schema["properties"]}
    given = json_object(arguments.options) | given
    options = complete_options(given, schema, f"table {arguments.table!r}")
    study = Study.of(arguments.results, pairs, arguments.partition, json_object(arguments.left_out, "--left-out"))
    manifest = tabulate(arguments.table, study, options, arguments.out)
    logging.info("wrote %s: %d rows", arguments.out / f"{arguments.table}.parquet", manifest["rows"])


def _add_option(parser: argparse.ArgumentParser, name: str, described_by: Mapping[str, Mapping[str, Any]]) -> None:
    """An option as the tables describe it that take it; of one that takes several values, each is given by itself."""
    described = next(iter(described_by.values()))
    is_list = described["type"] == "array"
    kind = described["items"]["type"] if is_list else described["type"]
    each = (
        f"for {table}: {own['description']} {'Repeatable; by' if is_list else 'By'} default {own['default']}."
        for table, own in described_by.items()
    )
    parser.add_argument(
        f"--{(name.removesuffix('s') if is_list else name).replace('_', '-')}",
        action="append" if is_list else "store",
        type=float if kind == "number" else str,
        dest=name,
        default=argparse.SUPPRESS,
        metavar="VALUE",
        help=" ".join(each),
    )


if __name__ == "__main__":
    run_program(main)

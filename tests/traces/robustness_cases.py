"""Running the whole stage on a folder of traces, as a person does or within this process."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anatomy.traces.options import ParseOptions
from anatomy.traces.parsing import parse_traces

SCRIPT = Path(__file__).parents[2] / "workflow" / "scripts" / "parse_traces.py"
OTHER_TIMES = ("compute_ns", "preparation_ns", "copy_ns", "idle_ns", "other_ns")


class Parsed(NamedTuple):
    manifest: dict[str, Any]
    tables: dict[str, pd.DataFrame]

    def steps(self, *columns):
        """Rows of the steps table, in us where a column is a time without its suffix; missing is None."""
        frame = self.tables["steps"].sort_values(["rank", "step"])
        values = [frame[name] if name in frame else frame[f"{name}_ns"] / 1000 for name in columns]
        return [tuple(None if pd.isna(value) else value for value in row) for row in zip(*values, strict=True)]

    def noted(self, *patterns):
        """Whether one note has all the patterns."""
        return any(all(re.search(pattern, note) for pattern in patterns) for note in self.manifest["notes"])


def parse(folder, out, **options):
    """The manifest and all tables, with what must hold of every result asserted: sums, and no NaN anywhere."""
    manifest = parse_traces(folder, out, options=ParseOptions(**options))
    tables = {name: pq.read_table(out / f"{name}.parquet") for name in manifest["tables"]}
    for name, content in tables.items():
        for column in content.column_names:
            if pa.types.is_floating(content[column].type):
                assert not pc.any(pc.is_nan(content[column])).as_py(), f"NaN in {name}.{column}"
    # Nullable, so that a missing number is not a NaN, and integers of 19 digits stay exact.
    frames = {name: content.to_pandas(types_mapper=_nullable) for name, content in tables.items()}
    steps = frames["steps"]
    parts = steps[list(OTHER_TIMES)].sum(axis=1) + steps["comm_exposed_ns"].fillna(0)
    assert (parts == steps["wall_ns"]).all()
    assert not steps[list(OTHER_TIMES)].isna().any(axis=None)
    return Parsed(json.loads((out / "traces.json").read_text(), parse_constant=_no_constant), frames)


def _no_constant(word):
    raise AssertionError(f"{word} in traces.json")


def _nullable(kind):
    return {pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype(), pa.float64(): pd.Float64Dtype()}.get(kind)


def run_script(*arguments):
    """Run parse_traces.py; returns the finished process."""
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def refusal(folder, out, *arguments):
    """Run parse_traces.py, which must refuse: one message on stderr and nothing else, no table. Returns the message."""
    before = _contents(out)
    done = run_script("--traces", folder, "--out", out, *arguments)
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    assert _contents(out) == before
    assert not [path for path in out.parent.iterdir() if path not in (out, folder)], "something is left beside --out"
    return lines[0].removeprefix("error: ")


def _contents(folder):
    if not folder.exists():
        return None
    return {path.name: path.read_bytes() for path in folder.iterdir()}

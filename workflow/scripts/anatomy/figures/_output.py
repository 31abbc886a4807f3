"""Draw one figure from its table and write its four files."""

import inspect
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from anatomy.errors import StudyError
from anatomy.figures import FIGURES, FORMATS, _style


def draw_figure(
    figure: str, table: Path, out: Path, style_file: Path | None = None, options: Mapping[str, float] | None = None
) -> list[Path]:
    """Draw `figure` from the Parquet file `table` and write `{out}/{figure}.pdf`, `.svg`, `.png` and `.csv`.

    The CSV has exactly the numbers that are drawn. `options` are keyword arguments of the figure's `draw`. Equal tables
    give equal bytes. Returns the paths written.

    Raises StudyError for an unknown figure or option and for a table that is absent or lacks columns.
    """
    plugin = FIGURES[figure]
    module = plugin.load()
    options = dict(options or {})
    known = list(inspect.signature(module.draw).parameters)[1:]
    for name in options:
        if name not in known:
            raise StudyError(
                f"--set {name}: figure {figure!r} has no such option; it has: {', '.join(known) or 'none'}"
            )
    frame = read_table(table, module.COLUMNS)
    with _style.applied(style_file):
        drawing, drawn = module.draw(frame, **options)
        if frame.empty and (wants := left_out(table)):
            reason = f"not measurable here, for want of {' and '.join(wants)}"
            drawing = _style.no_data(module.TITLE, reason)
        return _write(figure, drawing, drawn, out)


def read_table(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """Read a study table and check that it has `columns`; raises StudyError where it cannot be read or lacks one."""
    try:
        table = pd.read_parquet(path)
    except FileNotFoundError:
        raise StudyError(f"{path}: not found; run the step that writes this table") from None
    except (OSError, ValueError) as error:
        raise StudyError(f"{path}: not a Parquet table ({error}); run the step that writes it again") from error
    missing = [name for name in columns if name not in table]
    if missing:
        raise StudyError(
            f"{path}: found columns {', '.join(table.columns)}; {', '.join(missing)} missing; "
            "is this the table that the figure reads?"
        )
    return table


def left_out(table: Path) -> list[str]:
    """What the runs need that were left out of a table; empty where none was, or nothing says so."""
    manifest = table.with_suffix(".json")
    return list(json.loads(manifest.read_text(encoding="utf-8")).get("left_out", {})) if manifest.is_file() else []


def _write(figure: str, drawing, drawn: pd.DataFrame, out: Path) -> list[Path]:
    """Write all four files beside their places first, so that they appear only when each could be made."""
    out.mkdir(parents=True, exist_ok=True)
    stage = out / f".partial-{figure}-{os.getpid()}"
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir()
    names = [f"{figure}.{suffix}" for suffix in FORMATS]
    _style.settle(drawing)
    try:
        for suffix, metadata in _style.METADATA.items():
            drawing.savefig(stage / f"{figure}.{suffix}", format=suffix, metadata=metadata)
        drawn.to_csv(stage / f"{figure}.csv", index=False, lineterminator="\n")
        for name in names:
            (stage / name).replace(out / name)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return [out / name for name in names]

"""One step as it went on every rank, with the chain of work and collectives that determined its length."""

import math
import textwrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.patheffects import withStroke

from anatomy.figures import _segments, _style
from anatomy.figures._summary import (
    RECORDED,
    ROW,
    RUN_COLUMNS,
    as_number,
    completed,
    failures,
    labelled,
    lost,
    marks,
    note,
)

TABLE = "timeline"
TITLE = "One step on every rank, and its critical path"
COLUMNS = (
    *RUN_COLUMNS,
    "kind",
    "rank",
    "place",
    "step",
    "annotated",
    "category",
    "phase",
    "collective",
    "start_s",
    "length_s",
    "slack_s",
    "merged",
)
CAPTION = """
Each panel is one step of one configuration, of its first seed (n = 1): of the profiled steps the one of median length,
or the whole trace where it marks no steps, as the panel's head says, with the platform. Each row is a rank; the
horizontal axis is the time in milliseconds since the first rank began the step, with the clocks of the ranks corrected.
Blue segments prepare the mini-batch; cross-hatched purple ones are communication that nothing hides, with the waiting
for other ranks in it; hatched orange segments compute; striped green is copying between host and device outside of
preparation; dotted white is idle and grey is what no phase covers. The black line is the critical path, from a dot to
a dot: the chain of work and transfers that determined when the step ended. It changes ranks where a rank waited, to
the rank that arrived last at the collective. The head names the element of the path with the largest margin: by how
much it would have to shrink before another path takes over, which is what the step would gain without it. Profiling
makes steps longer. Runs without numbers keep their panel and say why.
"""

DRAWN = (
    *ROW,
    "mark",
    "rank",
    "group",
    "phase",
    "collective",
    "start",
    "value",
    "slack",
    "step",
    "annotated",
    "merged",
    "seed",
    "n",
    "failure",
)
_MOST_ROWS = 24
"""Rows of ranks of full height in a panel; more share the height of as many."""
_BAR = 0.8
"""Height of a rank's segments, in rows."""
_PATH = {
    "color": "black",
    "linewidth": 1.3,
    "marker": "o",
    "markersize": 3,
    "solid_joinstyle": "miter",
    "path_effects": [withStroke(linewidth=3.2, foreground="white")],
    "clip_on": False,
    "zorder": 5,
}


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per mark.

    `mark` is `interval` (of a rank, from `start`, of length `value`, both in milliseconds), `path` (an element of the
    critical path likewise, with its margin `slack`) or `failure`.
    """
    runs = labelled(table[list(RUN_COLUMNS)].drop_duplicates("run"))
    table = table.drop(columns="seed").merge(runs[["run", "seed", *ROW]], on="run")
    for name, source in (("start", "start_s"), ("value", "length_s"), ("slack", "slack_s")):
        table[name] = 1000 * as_number(table[source])
    table["group"] = table["category"]
    undivided = table["group"].isin(list(_segments.UNDIVIDED)) & table["kind"].eq("interval")
    table["phase"] = table["phase"].where(~undivided, table["group"])
    table["n"] = 1
    done = completed(table).dropna(subset=["kind"])
    first = done.sort_values(["seed", "run"], kind="stable").drop_duplicates(["panel", "row"])
    done = done[done["run"].isin(first["run"])].sort_values(["panel", "row", "rank", "place"], kind="stable")
    kinds = {kind: done[done["kind"] == kind] for kind in ("interval", "path")}
    kinds["path"] = kinds["path"].sort_values(["panel", "row", "place"], kind="stable")
    return marks(DRAWN, **kinds, failure=failures(table, ROW))


def draw(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no run of this table was profiled"), drawn
    panels = [part for _, part in drawn.groupby(["panel", "row"], sort=True)]
    shown = drawn[drawn["mark"] == "interval"]
    looks = _segments.looks(zip(shown["group"], shown["phase"], strict=True))
    heights = [min(max(part["rank"].nunique(), 1), _MOST_ROWS) + 0.8 for part in panels]
    figure, axes = _style.panel_rows(TITLE, heights, (1,))
    for (place,), part in zip(axes, panels, strict=True):
        place.set_title(_head(part))
        _draw_ranks(place, part, looks)
        _style.say_failures(place, lost(part).assign(row=0))
    axes[-1, 0].set_xlabel("Time since the step began (ms)")
    handles = [Patch(**_segments.EDGE, **look, label=_segments.name(*pair)) for pair, look in looks.items()]
    handles += [Line2D([], [], **_PATH, label="critical path")] if drawn["mark"].eq("path").any() else []
    _style.finish(figure, note(drawn, _words(drawn)), handles, ncols=5)
    return figure, drawn


def _words(drawn: pd.DataFrame) -> str:
    words = "One profiled step of each configuration, of median length"
    if not drawn["panel"].str.startswith(RECORDED).all():
        words += ", of its first seed"
    return words + ("; short intervals are merged" if drawn["merged"].eq(True).any() else "")


def _head(part: pd.DataFrame) -> str:
    """What a panel shows: the configuration, the step, and the element of its path that matters most."""
    first, shown, path = part.iloc[0], part[part["mark"] != "failure"], part[part["mark"] == "path"]
    step = ""
    if len(shown):
        step = f", step {shown['step'].iloc[0]}" if shown["annotated"].eq(True).all() else ", the whole trace"
    lines = [f"{first['label']}{step} ({first['panel']})"]
    if path["slack"].notna().any():
        most = path.loc[path["slack"].idxmax()]
        name = _segments.name(most["group"], most["phase"])
        margin = f"largest margin: {name} on rank {most['rank']}, {most['slack']:.3g} of {most['value']:.3g} ms"
        lines.append(f"critical path of {path['value'].sum():.4g} ms; {margin}")
    return "\n".join(line for text in lines for line in textwrap.wrap(text, 115))


def _draw_ranks(axes: Axes, part: pd.DataFrame, looks: dict[_segments.Segment, dict[str, Any]]) -> None:
    """The segments of every rank, one row each, and the path over them."""
    intervals = part[part["mark"] == "interval"]
    ranks = sorted(intervals["rank"].unique())
    rows = {rank: row for row, rank in enumerate(ranks)}
    every = math.ceil(len(ranks) / _MOST_ROWS) or 1
    _style.name_rows(axes, [f"rank {rank}" if row % every == 0 else "" for row, rank in enumerate(ranks)] or [""])
    for pair, segments in intervals.groupby(["group", "phase"], sort=True):
        patch = PathPatch(_boxes(segments, rows), linewidth=0, **looks[pair])
        _style.mark(patch, "interval")
        axes.add_patch(patch)
    for rank, own in intervals.groupby("rank", sort=True):
        begin, end = own["start"].min(), (own["start"] + own["value"]).max()
        (outline,) = axes.barh([rows[rank]], [end - begin], left=begin, height=_BAR, fill=False, **_segments.EDGE)
        _style.mark(outline, "outline")
    path = part[part["mark"] == "path"]
    if len(path):
        ends = np.column_stack([path["start"], path["start"] + path["value"]]).ravel()
        (line,) = axes.plot(ends, np.repeat(path["rank"].map(rows), 2), markevery=[0, len(ends) - 1], **_PATH)
        _style.mark(line, "path")
    axes.set_xlim(left=0)


def _boxes(segments: pd.DataFrame, rows: dict[int, int]) -> Path:
    """One path of a rectangle per segment: thousands of them stay one artist, and the files small."""
    left, row = segments["start"].to_numpy(), segments["rank"].map(rows).to_numpy(dtype=float)
    right, top, bottom = left + segments["value"].to_numpy(), row + _BAR / 2, row - _BAR / 2
    corners = np.stack([left, bottom, right, bottom, right, top, left, top, left, bottom], axis=1).reshape(-1, 2)
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(segments)
    return Path(corners, codes)

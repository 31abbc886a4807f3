"""What bringing mini-batches together takes of a step, and what a cache and prefetching take away from it."""

from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from anatomy.figures import _style
from anatomy.figures._summary import (
    ROW,
    RUN_COLUMNS,
    as_number,
    by_panel,
    completed,
    failures,
    labelled,
    lost,
    marks,
    note,
    over_seeds,
    row_names,
)

TABLE = "preparation"
TITLE = "Preparation of mini-batches that nothing hides"
PHASES = ("sample", "fetch", "gather", "copy")
COLUMNS = (
    *RUN_COLUMNS,
    *(f"{phase}_s_per_step" for phase in PHASES),
    "hit_rate",
    "saved_bytes_per_epoch",
    "cache_bytes",
)
CAPTION = """
Left: milliseconds of a profiled step in which a rank prepares a batch and computes nothing: it samples neighbours,
fetches features from other ranks (waiting in), gathers local ones and copies to the device; means over ranks, steps and
seeds. What is on its way while the model computes is not in. The whisker reaches from the lowest to the highest seed.
Middle: share of the remote features asked for that a cache held. Right: the bytes that were not sent for that in an
epoch, of all ranks (filled), and the memory of the rank with the largest cache (hollow), in megabytes (millions of
bytes). Runs that failed keep their
row and say why. A star marks configurations with more ranks than cores.
"""

DRAWN = (*ROW, "mark", "phase", "start", "value", "low", "high", "n", "failure")
_HATCHES = ("", "////", "xxxx", "....")
_LOOKS: dict[str, dict[str, Any]] = {
    phase: {"facecolor": colour, "hatch": hatch, "hatchcolor": "white"}
    for phase, colour, hatch in zip(PHASES, _style.PALETTE, _HATCHES, strict=False)
}
_SOLID = {"color": _style.INK, "marker": "o"}
_HOLLOW = _SOLID | {"markerfacecolor": "white"}
_EDGE = {"edgecolor": _style.INK, "linewidth": 0.4}


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per mark.

    `mark` is `phase` (a segment in ms, with its start), `total` (where the bar ends), `hits` (percent), `saved` and
    `memory` (megabytes, 1e6 B), `nothing` (a row that was not profiled) or `failure`; `low` and `high` are the extreme
    seeds.
    """
    table = labelled(table)
    done = completed(table)
    for phase in PHASES:
        done = done.assign(**{phase: 1000 * as_number(done[f"{phase}_s_per_step"])})
    profiled = done.dropna(subset=list(PHASES))
    parts = profiled.melt([*ROW, "run", "seed"], PHASES, "phase", "milliseconds")
    totals = profiled.assign(total=profiled[list(PHASES)].sum(axis=1))
    cached = done.assign(
        hits=100 * as_number(done["hit_rate"]),
        saved=as_number(done["saved_bytes_per_epoch"]) / 1e6,
        memory=as_number(done["cache_bytes"]) / 1e6,
    )
    cached = cached[cached["memory"] > 0]
    unprofiled = done.groupby(list(ROW), sort=False).filter(lambda row: row[list(PHASES)].isna().all(axis=None))
    return marks(
        DRAWN,
        phase=_segments(over_seeds(parts, (*ROW, "phase"), "milliseconds")),
        total=over_seeds(totals, ROW, "total"),
        **{mark: over_seeds(cached, ROW, mark) for mark in ("hits", "saved", "memory")},
        nothing=unprofiled.drop_duplicates(list(ROW)),
        failure=failures(table, ROW),
    )


def draw(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no run of this table trained by mini-batches"), drawn
    panels = by_panel(drawn)
    figure, axes = _style.panel_rows(TITLE, [len(row_names(part)) for _, part in panels], (3, 1, 1))
    for (times, hits, sizes), (panel, part) in zip(axes, panels, strict=True):
        times.set_title(panel)
        _style.name_rows(times, row_names(part))
        _style.say_failures(times, lost(part))
        _draw_phases(times, part)
        _draw_cache(hits, sizes, part)
    axes[-1, 0].set_xlabel("Exposed preparation (ms per step)")
    axes[-1, 1].set_xlabel("Hit rate (%)")
    axes[-1, 2].set_xlabel("Size (MB)")
    handles: list[Artist] = [Patch(**_EDGE, **look, label=phase) for phase, look in _LOOKS.items()]
    handles.append(Line2D([], [], linestyle="", **_SOLID, label="hits; features not sent in an epoch"))
    handles.append(Line2D([], [], linestyle="", **_HOLLOW, label="memory of the cache"))
    _style.finish(figure, note(drawn, "Means; whiskers: lowest to highest seed"), handles, ncols=3)
    return figure, drawn


def _segments(phases: pd.DataFrame) -> pd.DataFrame:
    """Phases in their order, each starting where the one before ends."""
    phases = phases.assign(order=[PHASES.index(phase) for phase in phases["phase"]])
    phases = phases.sort_values(["panel", "row", "order"], kind="stable")
    return phases.assign(start=phases.groupby(list(ROW), sort=False)["value"].cumsum() - phases["value"])


def _draw_phases(axes: Axes, part: pd.DataFrame) -> None:
    for _, segment in part[part["mark"] == "phase"].iterrows():
        (bar,) = axes.barh(
            [segment["row"]],
            [segment["value"]],
            left=[segment["start"]],
            height=0.72,
            **_EDGE,
            **_LOOKS[segment["phase"]],
        )
        _style.mark(bar, "phase")
    _style.whiskers(axes, "total", part[part["mark"] == "total"])
    across = axes.get_yaxis_transform()
    for row in part.loc[part["mark"] == "nothing", "row"]:
        axes.text(0.02, row, "not profiled", va="center", fontsize=6.5, fontstyle="italic", transform=across)
    axes.set_xlim(left=0)


def _draw_cache(hits: Axes, sizes: Axes, part: pd.DataFrame) -> None:
    for axes, mark, look in ((hits, "hits", _SOLID), (sizes, "saved", _SOLID), (sizes, "memory", _HOLLOW)):
        points = part[part["mark"] == mark]
        if not points.empty:
            _style.dots(axes, mark, points, **look)
    hits.set_xlim(0, 100)
    sizes.set_xlim(left=0)

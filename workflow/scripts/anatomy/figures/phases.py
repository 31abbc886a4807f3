"""Where the time of a step goes: shares of phases as stacked bars, with the step's own duration beside them."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
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
from anatomy.phases import PREPARATION, Phase

TABLE = "phases"
TITLE = "Where the time of a step goes"
COLUMNS = (*RUN_COLUMNS, "phase", "group", "seconds_per_step", "share")
CAPTION = """
Each bar is one configuration; its segments are the mean shares of a step's wall time (left, in percent; they sum to
100 %) that a rank spends in each phase, averaged over ranks, steps and seeds. Blue segments prepare the mini-batch;
cross-hatched purple ones are communication that nothing hides, named by the phase it happens in; hatched orange
segments compute; dotted white is idle and grey is what no phase covers. The whisker ends the share that brings the
mini-batch together, that is, preparation and the communication of fetch: it reaches from the seed with the smallest
to the seed with the largest such share. The points on the right are the mean duration of a profiled step in
milliseconds, with whiskers from the fastest to the slowest seed; profiling makes steps longer, so these are not
epoch times. Runs without numbers keep their row and say why. A star marks configurations with more ranks than cores.
"""

DRAWN = (*ROW, "mark", "group", "phase", "start", "value", "low", "high", "n", "failure")
COMPUTATION = (Phase.AGGREGATE, Phase.COMBINE, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZE, Phase.EVALUATE)
"""Phases that compute and do little else; computing in other ones is named as such."""
_UNDIVIDED = ("idle", "other")
"""Groups that are one segment whatever the phase."""


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per mark.

    `mark` is `share` (value and start in percent of a step), `batch` (percent of a step that brings the mini-batch
    together), `step` (milliseconds) or `failure`; `low` and `high` are the extreme seeds.
    """
    table = labelled(table)
    table["share"] = 100 * as_number(table["share"])
    table["step_ms"] = 1000 * as_number(table["seconds_per_step"])
    done = completed(table).dropna(subset=["share", "phase"])
    fetched = done["group"].eq("communication") & done["phase"].eq(Phase.FETCH)
    done["batch"] = done["share"].where(done["group"].eq("preparation") | fetched, 0.0)
    done["phase"] = done["phase"].where(~done["group"].isin(_UNDIVIDED), done["group"])
    totals = done.groupby([*ROW, "run", "seed"], sort=False)[["step_ms", "batch"]].sum().reset_index()
    batch = over_seeds(totals, ROW, "batch")
    return marks(
        DRAWN,
        share=_mean_shares(done),
        batch=batch[batch["high"] > 0],
        step=over_seeds(totals, ROW, "step_ms"),
        failure=failures(table, ROW),
    )


_EDGE = {"edgecolor": _style.INK, "linewidth": 0.4}


def draw(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no run of this table was profiled"), drawn
    panels = by_panel(drawn)
    looks = _looks(drawn)
    figure, axes = _style.panel_rows(TITLE, [len(row_names(part)) for _, part in panels], (4, 1.2))
    for (left, right), (panel, part) in zip(axes, panels, strict=True):
        left.set_title(panel)
        _style.name_rows(left, row_names(part))
        _style.say_failures(left, lost(part))
        _draw_shares(left, part, looks)
        _style.dots(right, "step", part[part["mark"] == "step"], color=_style.INK)
        right.set_xlim(left=0)
    axes[-1, 0].set_xlabel("Share of a step's wall time (%)")
    axes[-1, 1].set_xlabel("Step (ms)")
    handles = [Patch(**_EDGE, **look, label=_segment_name(*pair)) for pair, look in looks.items()]
    words = "Means; whiskers: lowest to highest seed (left: of preparation plus the communication of fetch)"
    _style.finish(figure, note(drawn, words), handles, ncols=4)
    return figure, drawn


def _mean_shares(done: pd.DataFrame) -> pd.DataFrame:
    """Mean share per phase over a row's seeds, a phase that a seed lacks counting as 0, and its segment's start."""
    shares = done.groupby([*ROW, "group", "phase"], sort=False)["share"].sum().rename("value").reset_index()
    counts = done.groupby(list(ROW), sort=False).agg(n=("seed", "nunique"), runs=("run", "nunique")).reset_index()
    shares = shares.merge(counts, on=list(ROW))
    shares["value"] /= shares["runs"]
    shares["order"] = [_order(*pair) for pair in zip(shares["group"], shares["phase"], strict=True)]
    shares = shares.sort_values(["panel", "row", "order"], kind="stable")
    shares["start"] = shares.groupby(list(ROW), sort=False)["value"].cumsum() - shares["value"]
    return shares


def _order(group: str, phase: str) -> tuple[int, int, str]:
    """Where a segment stands in its bar; names that the study does not know come last."""
    groups, phases = tuple(_style.GROUP_COLOURS), tuple(Phase)
    return (
        groups.index(group) if group in groups else len(groups),
        phases.index(phase) if phase in phases else len(phases),
        phase,
    )


def _segment_name(group: str, phase: str) -> str:
    if group in _UNDIVIDED:
        return group
    usual = phase in PREPARATION if group == "preparation" else group == "compute" and phase in COMPUTATION
    return phase if usual else f"{phase} ({group})"


def _looks(drawn: pd.DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    """The fill of every (group, phase) shown, in the order of segments."""
    segments = drawn[drawn["mark"] == "share"]
    pairs = sorted(set(zip(segments["group"], segments["phase"], strict=True)), key=lambda pair: _order(*pair))
    looks = {}
    for group in dict.fromkeys(group for group, _ in pairs):
        members = [pair for pair in pairs if pair[0] == group]
        looks |= dict(zip(members, _style.shades(group, len(members)), strict=True))
    return looks


def _draw_shares(axes: Axes, part: pd.DataFrame, looks: dict[tuple[str, str], dict[str, Any]]) -> None:
    for _, segment in part[part["mark"] == "share"].iterrows():
        look = looks[segment["group"], segment["phase"]]
        (bar,) = axes.barh([segment["row"]], [segment["value"]], left=[segment["start"]], height=0.72, **_EDGE, **look)
        _style.mark(bar, "share")
    _style.whiskers(axes, "batch", part[part["mark"] == "batch"])
    axes.set_xlim(0, 100)

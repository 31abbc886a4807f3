"""How fast strategies learn: validation accuracy against the seconds of training that it took."""

import math
from itertools import islice
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

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
)

TABLE = "convergence"
TITLE = "Accuracy against training time"
COLUMNS = (*RUN_COLUMNS, "epoch", "train_s", "val_accuracy")
CAPTION = """
Accuracy on the validation nodes in percent (vertical) against the seconds of training until then (horizontal):
slowest rank, evaluation excluded. Thin lines are single runs, one for each seed; the thick line of the same colour
joins, epoch by epoch, the mean time and the mean accuracy over the seeds that reached it. Colour, mark and line tell
the configurations apart; where there are more than six, each has a panel of its own, with the means of the others in
grey. A dotted horizontal line, where there is one, is the accuracy to reach. Runs that failed before their first
evaluation are named above their panel; those that failed later end with a cross.
"""

MOST_LINES = 6
"""Configurations whose curves can be told apart in one panel."""

_TIME, _ACCURACY = "Training time (s)", "Validation accuracy (%)"
_COLUMNS = 4
_OTHERS = {"color": "#bbbbbb", "linewidth": 0.6}

DRAWN = (*ROW, "mark", "seed", "epoch", "train_s", "value", "n", "failure")


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per point, in seconds of training and percent of accuracy.

    `mark` is `run` (one seed), `mean` (over seeds, per epoch), `end` (last point of a run that failed) or `failure`.
    """
    table = labelled(table)
    table["train_s"] = as_number(table["train_s"])
    table["value"] = 100 * as_number(table["val_accuracy"])
    known = table.dropna(subset=["train_s", "value", "epoch"]).sort_values(["panel", "row", "seed", "epoch"])
    point = (*ROW, "epoch")
    done = completed(known)
    means = over_seeds(done, point, "value").merge(
        over_seeds(done, point, "train_s").rename(columns={"value": "train_s"})[[*point, "train_s"]], on=list(point)
    )
    ends = known[~known.index.isin(done.index)].groupby([*ROW, "seed"]).tail(1)
    return marks(DRAWN, run=known, mean=means, end=ends, failure=failures(table, ROW))


def draw(table: pd.DataFrame, target: float | None = None) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows; `target` is an accuracy between 0 and 1 to draw a line at."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no run of this table was evaluated"), drawn
    panels = by_panel(drawn)
    shown = drawn[drawn["mark"] != "failure"].sort_values(["panel", "row"], kind="stable")
    looks = _style.looks(dict.fromkeys(shown["label"]))
    apart = max(len(_configurations(part)) for _, part in panels) > MOST_LINES
    figure = _draw_apart(panels, looks, target) if apart else _draw_together(panels, looks, target)
    named = {"the others": _OTHERS} if apart else looks
    handles = [Line2D([], [], label=label, **look) for label, look in named.items()]
    if target is not None:
        handles.append(Line2D([], [], color=_style.INK, linestyle=":", label=f"target {100 * target:g} %"))
    words = note(drawn, "Thin: single seeds; thick: their mean per epoch")
    _style.finish(figure, words, handles, ncols=1 if len(panels) == 1 and not apart else 3)
    return figure, drawn


def _configurations(part: pd.DataFrame) -> list[str]:
    """What a panel has curves of, from the first row on."""
    return list(part[part["mark"] != "failure"].sort_values("row", kind="stable")["label"].unique())


def _draw_together(
    panels: list[tuple[str, pd.DataFrame]], looks: dict[str, dict[str, Any]], target: float | None
) -> Figure:
    figure, axes = _style.panel_grid(TITLE, len(panels), height_in=2.2)
    for cell, (panel, part) in zip(axes, panels, strict=True):
        _style.head_panel(cell, panel, lost(part))
        cell.set_xlabel(_TIME)
        cell.set_ylabel(_ACCURACY)
        _draw_runs(cell, part, looks)
        cell.set_xlim(left=0)
        _draw_target(cell, target)
    return figure


def _draw_apart(
    panels: list[tuple[str, pd.DataFrame]], looks: dict[str, dict[str, Any]], target: float | None
) -> Figure:
    """Each panel as rows of cells, one for each of its configurations, or an empty one where it has none."""
    rows = [math.ceil(max(1, len(_configurations(part))) / _COLUMNS) for _, part in panels]
    figure, axes = _style.panel_grid(TITLE, _COLUMNS * sum(rows), height_in=1.25, columns=_COLUMNS)
    unused = iter(axes)
    for (panel, part), count in zip(panels, rows, strict=True):
        cells = list(islice(unused, _COLUMNS * count))
        _style.head_panel(cells[0], panel, lost(part))
        labels = _configurations(part)
        for cell in cells[max(1, len(labels)) :]:
            cell.set_axis_off()
        for place, (cell, label) in enumerate(zip(cells, labels, strict=False)):
            cell.set_title("\n".join(filter(None, [cell.get_title(loc="left"), label])))
            cell.set_xlabel(_TIME if place + _COLUMNS >= len(labels) else "")
            cell.set_ylabel("Accuracy (%)" if place % _COLUMNS == 0 else "")
            for _, other in part[(part["mark"] == "mean") & (part["label"] != label)].groupby("label"):
                (line,) = cell.plot(other["train_s"], other["value"], zorder=2, **_OTHERS)
                _style.mark(line, "line")
            _draw_runs(cell, part[part["label"] == label], looks)
            cell.set_xlim(0, 1.05 * part["train_s"].max())
            cell.set_ylim(0, 1.05 * part["value"].max())
            _draw_target(cell, target)
    return figure


def _draw_target(axes: Axes, target: float | None) -> None:
    if target is not None:
        axes.axhline(100 * target, color=_style.INK, linestyle=":", linewidth=0.9, label="_target")


def _draw_runs(axes: Axes, part: pd.DataFrame, looks: dict[str, dict]) -> None:
    for (label, _), run in part[part["mark"] == "run"].groupby(["label", "seed"], sort=False):
        thin = {"color": looks[label]["color"], "linewidth": 0.6, "alpha": 0.55}
        (line,) = axes.plot(run["train_s"], run["value"], zorder=3, **thin)
        _style.mark(line, "run")
    for label, mean in part[part["mark"] == "mean"].groupby("label", sort=False):
        every = max(1, len(mean) // 8)
        (line,) = axes.plot(mean["train_s"], mean["value"], zorder=4, markevery=every, **looks[label])
        _style.mark(line, "mean")
    ends = part[part["mark"] == "end"]
    (crosses,) = axes.plot(ends["train_s"], ends["value"], linestyle="", marker="x", color=_style.INK, zorder=5)
    _style.mark(crosses, "end")

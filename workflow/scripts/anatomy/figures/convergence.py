"""How fast strategies learn: validation accuracy against the seconds of training that it took."""

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
the configurations apart. A dotted horizontal line, where there is one, is the accuracy to reach. Runs that failed
before their first evaluation are named above their panel; those that failed later end with a cross.
"""

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
    figure, axes = _style.panel_grid(TITLE, len(panels), height_in=2.2)
    for cell, (panel, part) in zip(axes, panels, strict=True):
        _style.head_panel(cell, panel, lost(part))
        cell.set_xlabel("Training time (s)")
        cell.set_ylabel("Validation accuracy (%)")
        _draw_runs(cell, part, looks)
        cell.set_xlim(left=0)
        if target is not None:
            cell.axhline(100 * target, color=_style.INK, linestyle=":", linewidth=0.9, label="_target")
    handles = [Line2D([], [], label=label, **look) for label, look in looks.items()]
    if target is not None:
        handles.append(Line2D([], [], color=_style.INK, linestyle=":", label=f"target {100 * target:g} %"))
    words = note(drawn, "Thin: single seeds; thick: their mean per epoch")
    _style.finish(figure, words, handles, ncols=1 if len(panels) == 1 else 3)
    return figure, drawn


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

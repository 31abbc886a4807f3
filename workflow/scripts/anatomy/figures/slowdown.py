"""Epoch time, idle ranks and accuracy as one rank becomes slower, by strategy."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from anatomy.figures import _style
from anatomy.figures._summary import (
    DIMENSIONS,
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

TABLE = "slowdown"
TITLE = "One slow rank"
COLUMNS = (*RUN_COLUMNS, "slow_factor", "epoch_s", "idle_share", "val_accuracy")
CAPTION = """
What a slow rank costs (horizontal, logarithmic: by how much one rank is slowed; 1 is the machine as it is). Left, the
median time of an epoch in seconds (training only, slowest rank, without warm-up and evaluation). Middle, the share of
the ranks' time from an epoch's start until the last has ended it in which they were blocked in communication or had
ended the epoch before. Right, the accuracy on the validation nodes after the last epoch. With an all-reduce in every
step all ranks wait for the slow one; with a shared pool the others take the batches that it does not come to. The slow
rank is emulated: it sleeps in proportion to the processor time that it has used, which counts as work. Each line of
panels is a graph and a platform; colour, mark and line tell the configurations apart. Marks are means over seeds,
whiskers reach from the lowest to the highest seed. A cross at the lower edge is a configuration whose runs all failed;
the head of the panel says why.
"""

DRAWN = (*ROW, "mark", "slow_factor", "value", "low", "high", "n", "failure")
_POINT = (*ROW, "slow_factor")
_MEASURES = {
    "epoch time": ("epoch_s", 1, "Epoch time (s)"),
    "idle": ("idle_share", 100, "Idle (%)"),
    "accuracy": ("val_accuracy", 100, "Validation accuracy (%)"),
}


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per mark: `epoch time` (seconds), `idle` and `accuracy` (percent), or `failure`.

    Runs under conditions without one slow rank are left out.
    """
    table = table[table["slow_factor"].notna() & table["graph"].notna()]
    # The horizontal axis tells the conditions apart.
    table = labelled(table.assign(slow_factor=as_number(table["slow_factor"]), condition=pd.NA), DIMENSIONS)
    for column, scale, _ in _MEASURES.values():
        table[column] = scale * as_number(table[column])
    done = completed(table)
    measured = {mark: over_seeds(done, _POINT, column) for mark, (column, _, _) in _MEASURES.items()}
    drawn = marks(DRAWN, **measured, failure=failures(table, _POINT))
    return drawn.sort_values([*ROW, "mark", "slow_factor"], ignore_index=True)


def draw(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no run of this table had one slow rank, or none"), drawn
    panels = by_panel(drawn)
    looks = _style.looks(dict.fromkeys(drawn.sort_values(["panel", "row"])["label"]))
    figure = _style.new_figure(_style.FULL_WIDTH_IN, 0.3 + 1.9 * len(panels), TITLE)
    axes = figure.subplots(len(panels), len(_MEASURES), squeeze=False)
    for line, (panel, part) in zip(axes, panels, strict=True):
        _style.head_panel(line[0], panel, lost(part, ("row", "slow_factor")).drop_duplicates("label"))
        for cell, (mark, (_, _, words)) in zip(line, _MEASURES.items(), strict=True):
            cell.set_ylabel(words)
            _draw_lines(cell, mark, part[part["mark"] == mark], looks)
            _name_factors(cell, sorted(part["slow_factor"].unique()))
        for cell in line[:2]:
            cell.set_ylim(bottom=0)
    handles = [Line2D([], [], label=label, **look) for label, look in looks.items()]
    words = note(drawn, "Means; whiskers: lowest to highest seed", ("row", "slow_factor"))
    _style.finish(figure, words, handles, ncols=2)
    return figure, drawn


def _draw_lines(axes: Axes, mark: str, points: pd.DataFrame, looks: dict[str, dict]) -> None:
    for label, line in points.groupby("label", sort=False):
        (drawn,) = axes.plot(line["slow_factor"], line["value"], **looks[label])
        _style.mark(drawn, mark)
        _style.whiskers(axes, mark, line, x="slow_factor", colour=looks[label]["color"])


def _name_factors(axes: Axes, factors: list[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlabel("One rank slower by (logarithmic)")
    axes.set_xlim(factors[0] / 1.2, factors[-1] * 1.2)
    axes.xaxis.set_major_locator(FixedLocator(factors))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{factor:g}×" for factor in factors]))
    axes.xaxis.set_minor_locator(NullLocator())

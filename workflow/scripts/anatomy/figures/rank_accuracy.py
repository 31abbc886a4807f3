"""How good each rank is at its own nodes, against how mixed the classes of its part are."""

import pandas as pd
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

TABLE = "rank_accuracy"
TITLE = "Accuracy of ranks at their own nodes"
COLUMNS = (*RUN_COLUMNS, "rank", "label_entropy_bits", "test_accuracy")
CAPTION = """
Accuracy at the test nodes of a rank's own part after the last epoch (vertical, in percent) against the entropy of the
classes of the part's nodes (horizontal, in bits; 0 is a part of one class). Each mark is a rank; colours and shapes
tell the configurations apart. Marks are means over seeds, whiskers reach from the lowest to the highest seed. A
partition is the same for all seeds, and so is the entropy. Runs that failed are named above their panel.
"""

DRAWN = (*ROW, "mark", "rank", "entropy_bits", "value", "low", "high", "n", "failure")


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per mark: `accuracy` (percent, of a rank at `entropy_bits`) or `failure`."""
    table = labelled(table)
    table = table.assign(
        entropy_bits=as_number(table["label_entropy_bits"]), percent=100 * as_number(table["test_accuracy"])
    )
    points = over_seeds(completed(table), [*ROW, "rank", "entropy_bits"], "percent")
    return marks(DRAWN, accuracy=points, failure=failures(table, ROW))


def draw(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no run of this table evaluated its ranks' own nodes"), drawn
    panels = by_panel(drawn)
    shown = drawn[drawn["mark"] == "accuracy"].sort_values(["panel", "row"], kind="stable")
    looks = _style.looks(dict.fromkeys(shown["label"]))
    figure, axes = _style.panel_grid(TITLE, len(panels), 2.4)
    for cell, (panel, part) in zip(axes, panels, strict=True):
        _style.head_panel(cell, panel, lost(part))
        cell.set_xlabel("Entropy of the part's classes (bits)")
        cell.set_ylabel("Accuracy at own test nodes (%)")
        for label, points in part[part["mark"] == "accuracy"].groupby("label", sort=False):
            look = {**looks[label], "linestyle": ""}
            (dots,) = cell.plot(points["entropy_bits"], points["value"], zorder=4, **look)
            _style.mark(dots, "accuracy")
            _style.whiskers(cell, "accuracy", points, x="entropy_bits", colour=look["color"])
    handles = [Line2D([], [], label=label, **{**look, "linestyle": ""}) for label, look in looks.items()]
    words = note(drawn, "Each mark is a rank; means; whiskers: lowest to highest seed")
    _style.finish(figure, words, handles, ncols=2)
    return figure, drawn

"""What gradient-only training loses in accuracy, against how long a rank keeps what it holds."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, NullLocator

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

TABLE = "gradient_only"
TITLE = "Accuracy lost by sending nothing but gradients"
COLUMNS = (*RUN_COLUMNS, "period", "correction", "epochs", "accuracy_lost")
CAPTION = """
Validation accuracy of plain full-graph training of the same graph, model, ranks and seed less that of gradient-only
training after as many epochs (vertical, in points of percent; above the line at 0 is lost) against the epochs for which
a rank keeps the chunk that it holds beside its own (horizontal, logarithmic; lines stand a little apart). At a period
as long as the run, ranks keep the first chunk. Lines tell how a rank's gradient is weighed by how much of its nodes'
neighbourhoods it holds. Marks are means over seeds, whiskers reach from the lowest to the highest seed. Runs that
failed are named above their panel; runs without a baseline are left out.
"""

DRAWN = (*ROW, "mark", "period", "kept", "x", "value", "low", "high", "n", "failure")
_PLACES = ("row", "kept")
_STEP = 1.07
"""Lines stand apart at a period by this factor, so that each mark can be seen."""
_ZERO = {"color": _style.FAINT, "linestyle": "--", "linewidth": 0.8}


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per mark: `lost` (points of percent, at a `period`, drawn at `x`) or `failure`."""
    table = labelled(table, ("correction", "partitioner", "model", "ranks"))
    table = table.assign(period=as_number(table["period"]), points=100 * as_number(table["accuracy_lost"]))
    table["kept"] = [f"period {period:g}" for period in table["period"]]
    losses = over_seeds(completed(table), [*ROW, "period", "kept"], "points")
    middle = (losses.groupby("panel")["row"].transform("max") + losses.groupby("panel")["row"].transform("min")) / 2
    losses["x"] = losses["period"] * _STEP ** (losses["row"] - middle)
    return marks(DRAWN, lost=losses, failure=failures(table, [*ROW, "kept"]))


def draw(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no gradient-only run of this table has a full-graph run beside it"), drawn
    panels = by_panel(drawn)
    shown = drawn[drawn["mark"] == "lost"].sort_values(["panel", "row"], kind="stable")
    looks = _style.looks(dict.fromkeys(shown["label"]))
    figure, axes = _style.panel_grid(TITLE, len(panels), 2.2)
    for cell, (panel, part) in zip(axes, panels, strict=True):
        failed = lost(part, _PLACES)
        _style.head_panel(cell, panel, failed.assign(label=failed["label"] + ", " + failed["kept"]))
        cell.set_xlabel("Epochs between changes (logarithmic)")
        cell.set_ylabel("Accuracy lost (points of %)")
        _style.mark(cell.axhline(0, zorder=2, **_ZERO), "baseline")
        points = part[part["mark"] == "lost"].sort_values("period", kind="stable")
        for label, line in points.groupby("label", sort=False):
            (drawn_line,) = cell.plot(line["x"], line["value"], zorder=4, **looks[label])
            _style.mark(drawn_line, "lost")
            _style.whiskers(cell, "lost", line, x="x", colour=looks[label]["color"])
        cell.set_xscale("log")
        cell.xaxis.set_minor_locator(NullLocator())
        cell.xaxis.set_minor_formatter(NullFormatter())
        periods = sorted(points["period"].unique())
        cell.set_xticks(periods, [f"{period:g}" for period in periods])
    handles = [Line2D([], [], label=label, **look) for label, look in looks.items()]
    handles.append(Line2D([], [], **_ZERO, label="full-graph training"))
    words = note(drawn, "Means; whiskers: lowest to highest seed", _PLACES)
    _style.finish(figure, words, handles, ncols=2)
    return figure, drawn

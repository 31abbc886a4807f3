"""What each policy of gradients does to the time in synchronisation, to an epoch and to accuracy."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from anatomy.figures import _style
from anatomy.figures._compared import by_baseline
from anatomy.figures._summary import (
    ROW,
    RUN_COLUMNS,
    as_number,
    by_panel,
    completed,
    failures,
    lost,
    marks,
    note,
    over_seeds,
    row_names,
)

TABLE = "policies"
TITLE = "Policies of gradient synchronisation"
_AXES = {
    "synchronisation": ("sync_share", 100, "Synchronisation\n(% of a step)"),
    "epoch time": ("epoch_s", 1, "Epoch\n(s)"),
    "accuracy": ("val_accuracy", 100, "Validation\naccuracy (%)"),
}
"""Each mark, from left to right: the table's column, the factor to the unit of its axis, and the axis's label."""
COLUMNS = (*RUN_COLUMNS, "baseline_run", *(column for column, _, _ in _AXES.values()))
CAPTION = """
Each row is one configuration; each panel has the runs of one graph, platform, model and number of ranks. The dashed
vertical lines are runs that sum all gradients in one all-reduce per step, the baseline. From the left: share of a
profiled step in which the training thread synchronises gradients, waiting for other ranks included (%, mean over ranks
and steps; what is on its way while something else is done is not in it); median time of an epoch (s; training only,
slowest rank, without warm-up and evaluation, not profiled); accuracy on the validation nodes after the last epoch (%).
Marks are means over seeds, whiskers reach from the lowest to the highest seed. A mark is missing where there is no such
number: shares of runs that were not profiled, epochs and accuracy of traces recorded elsewhere. Runs that failed keep
their row and say why. A star marks configurations with more ranks than cores.
"""

DRAWN = (*ROW, "is_baseline", "mark", "value", "low", "high", "n", "failure")
_LOOKS: dict[str, dict[str, Any]] = {
    "synchronisation": {"color": _style.PALETTE[1], "marker": "o"},
    "epoch time": {"color": _style.INK, "marker": "s", "markersize": 4},
    "accuracy": {"color": _style.PALETTE[3], "marker": "D", "markersize": 4},
}
_BASELINE = {"color": _style.FAINT, "linestyle": "--", "linewidth": 0.8}


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per mark, in the units of the axes.

    `mark` is `synchronisation` (percent of a step), `epoch time` (s), `accuracy` (percent) or `failure`; `is_baseline`
    says whether it is of what the others of its panel are compared with.
    """
    table = by_baseline(table)
    done = completed(table).copy()
    for name, (column, factor, _) in _AXES.items():
        done[name] = factor * as_number(done[column])
    found = {name: over_seeds(done, (*ROW, "is_baseline"), name) for name in _AXES}
    return marks(DRAWN, **found, failure=failures(table, ROW))


def draw(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no run of this table was timed or profiled"), drawn
    panels = by_panel(drawn)
    counts = [len(row_names(part)) for _, part in panels]
    figure, axes = _style.panel_rows(TITLE, counts, [1] * len(_AXES), row_height_in=0.22)
    for line, (panel, part) in zip(axes, panels, strict=True):
        line[0].set_title(panel)
        _style.name_rows(line[0], row_names(part))
        _style.say_failures(line[0], lost(part), columns=len(_AXES))
        for cell, name in zip(line, _AXES, strict=True):
            _style.band_rows(cell, len(row_names(part)))
            _draw_points(cell, name, part[part["mark"] == name])
    for cell, (_, _, words) in zip(axes[-1], _AXES.values(), strict=True):
        cell.set_xlabel(words)
    handles = [Line2D([], [], **_BASELINE, label="one all-reduce per step")]
    _style.finish(figure, note(drawn, "Means; whiskers: lowest to highest seed"), handles, ncols=1)
    return figure, drawn


def _draw_points(axes: Axes, name: str, points: pd.DataFrame) -> None:
    if points.empty:
        axes.set_xticks([])
        axes.grid(False)
        return
    _style.dots(axes, name, points, **_LOOKS[name])
    for value in dict.fromkeys(points.loc[points["is_baseline"].eq(True), "value"]):
        _style.mark(axes.axvline(value, zorder=2, **_BASELINE), "baseline")
    axes.margins(x=0.12)
    if name != "accuracy":
        axes.set_xlim(0, 1.1 * max(points["high"].max(), 1e-9))
    axes.xaxis.set_major_locator(MaxNLocator(4))

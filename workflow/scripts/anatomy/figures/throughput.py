"""Seed nodes per second of each strategy, on the machine as it is and under emulated disturbances."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from anatomy.figures import _style
from anatomy.figures._rows import panels_of_rows
from anatomy.figures._summary import (
    ROW,
    RUN_COLUMNS,
    completed,
    failures,
    labelled,
    marks,
    note,
    over_seeds,
    row_names,
)

TABLE = "runs"
TITLE = "Throughput of training, undisturbed and disturbed"
COLUMNS = (*RUN_COLUMNS, "train_nodes_per_s")
CAPTION = """
Seed nodes that all ranks together train per second, median over epochs of the slowest rank's time, without warm-up and
evaluation; means over seeds, with whiskers from the lowest to the highest seed. Each mark is a condition, one below the
other within a strategy's row; the line from the first to the last shows what the strategy loses. Strategies that were
trained on the machine as it is alone are left out. Slow ranks are emulated: they sleep for as long as they have
computed, times their factor less one. Runs that failed keep their row and say so. A star marks configurations with more
ranks than cores.
"""

DRAWN = (*ROW, "mark", "y", "value", "low", "high", "n", "failure")
UNDISTURBED = "undisturbed"
_LINK = {"color": _style.FAINT, "linewidth": 0.8, "zorder": 2}


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per mark, in seed nodes per second.

    `mark` is the condition, `undisturbed` without one, or `failure`; `y` is where it stands.
    """
    runs = table[table["graph"].notna()]
    together = [name for name in RUN_COLUMNS if name not in ("run", "seed", "condition", "oversubscribed", "status")]
    disturbed = runs.groupby(together, dropna=False)["condition"].transform(lambda names: names.notna().any())
    runs = runs[disturbed.astype(bool)]
    conditions = runs["condition"].fillna(UNDISTURBED)
    runs = labelled(runs.assign(mark=conditions, condition=None))
    names = sorted(set(conditions), key=lambda name: (name != UNDISTURBED, name))
    measured = over_seeds(completed(runs), (*ROW, "mark"), "train_nodes_per_s")
    height = dict(zip(names, _style.spread(len(names), 0.25), strict=True))
    measured["y"] = measured["row"] + measured["mark"].map(height)
    failed = failures(runs, (*ROW, "mark")).drop_duplicates([*ROW, "failure"])
    parts = {name: measured[measured["mark"] == name] for name in names}
    return marks(DRAWN, **parts, failure=failed)


def draw(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no run of this table was disturbed"), drawn
    looks = _style.looks(dict.fromkeys(drawn.loc[drawn["mark"] != "failure", "mark"]))
    figure, axes, parts = panels_of_rows(TITLE, drawn, row_height_in=0.3)
    for (line,), part in zip(axes, parts, strict=True):
        _style.band_rows(line, len(row_names(part)))
        _draw_rates(line, part, looks)
        line.set_xlim(left=0)
    axes[-1, 0].set_xlabel("Seed nodes per second")
    handles = [Line2D([], [], label=name, **look | {"linestyle": ""}) for name, look in looks.items()]
    _style.finish(figure, note(drawn, "Means; whiskers: lowest to highest seed"), handles, ncols=4)
    return figure, drawn


def _draw_rates(axes: Axes, part: pd.DataFrame, looks: dict[str, dict]) -> None:
    points = part[part["mark"] != "failure"]
    for _, row in points.groupby("row", sort=False):
        (link,) = axes.plot(row["value"], row["y"], **_LINK)
        _style.mark(link, "loss")
    for name, found in points.groupby("mark", sort=False):
        _style.dots(axes, name, found.assign(row=found["y"]), **looks[name])

"""What training sends: bytes per epoch by kind, measured, and predicted where a closed form exists."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from anatomy.figures import _style
from anatomy.figures._rows import panels_of_rows
from anatomy.figures._summary import (
    ROW,
    RUN_COLUMNS,
    as_number,
    completed,
    failures,
    labelled,
    marks,
    note,
    over_seeds,
    row_names,
)

TABLE = "volume"
TITLE = "Bytes sent per epoch, measured and predicted"
COLUMNS = (*RUN_COLUMNS, "kind", "compared_bytes_per_epoch", "predicted_bytes_per_epoch")
CAPTION = """
Bytes that all ranks together hand to the transport during one epoch's training (horizontal, logarithmic), without
warm-up epochs and evaluation. Each row is one configuration; colour and shape of a filled mark tell the kind of
data. Features and requests of mini-batches are those of the last epochs, whose accesses are recorded and from which
the prediction is made. Marks are means over seeds, whiskers reach from the lowest to the highest seed. A ring is the
volume predicted from partition, strategy, model and recorded accesses alone, where a closed form exists (of plain
full-graph and mini-batch training computed apart from the program that trains, of any other strategy by the strategy
itself before it trains): where measurement and prediction agree, the ring surrounds its mark. Kinds of which nothing is
sent are left out; a row that sends nothing says so. Runs that failed keep their row and say why.
"""

DRAWN = (*ROW, "mark", "kind", "y", "value", "low", "high", "n", "failure")
KINDS = ("features", "requests", "activations", "gradients", "weights")


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per mark, in bytes per epoch.

    `mark` is `measured`, `predicted`, `nothing` (a row whose ranks send nothing) or `failure`; `y` is its height.
    """
    table = labelled(table)
    done = completed(table)
    measured = over_seeds(done, (*ROW, "kind"), "compared_bytes_per_epoch")
    predicted = over_seeds(done, (*ROW, "kind"), "predicted_bytes_per_epoch")
    sent = measured[measured["high"] > 0]
    silent = measured.groupby(list(ROW), sort=False).filter(lambda row: (row["high"] == 0).all())
    drawn = marks(
        DRAWN,
        measured=sent,
        predicted=predicted[predicted["value"] > 0],
        nothing=silent.drop_duplicates(list(ROW)).drop(columns="kind"),
        failure=failures(table, ROW),
    )
    drawn["y"] = as_number(drawn["row"])
    for _, row in drawn[drawn["kind"].notna()].groupby(list(ROW)):
        kinds = sorted(set(row["kind"]), key=_order)
        heights = dict(zip(kinds, _style.spread(len(kinds), 0.3), strict=True))
        drawn.loc[row.index, "y"] += row["kind"].map(heights)
    return drawn


def draw(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no run of this table counted its bytes"), drawn
    figure, axes, parts = panels_of_rows(TITLE, drawn, row_height_in=0.42)
    for (line,), part in zip(axes, parts, strict=True):
        _style.band_rows(line, len(row_names(part)))
        _draw_kinds(line, part)
    axes[-1, 0].set_xlabel("Bytes sent per epoch, all ranks together (logarithmic)")
    shown = [kind for kind in sorted(set(drawn["kind"].dropna()), key=_order)]
    handles = [Line2D([], [], label=kind, **_look(kind)) for kind in shown]
    if (drawn["mark"] == "predicted").any():
        handles.append(Line2D([], [], linestyle="", label="predicted", **_RING))
    _style.finish(figure, note(drawn, "Means; whiskers: lowest to highest seed"), handles, ncols=6)
    return figure, drawn


_RING = {
    "marker": "o",
    "markersize": 8,
    "markerfacecolor": "none",
    "markeredgecolor": _style.INK,
    "markeredgewidth": 0.7,
}


def _draw_kinds(axes: Axes, part: pd.DataFrame) -> None:
    axes.set_xscale("log")
    measured, predicted = part[part["mark"] == "measured"], part[part["mark"] == "predicted"]
    for kind, points in measured.groupby("kind"):
        _style.dots(axes, "measured", points.assign(row=points["y"]), **_look(kind))
    (rings,) = axes.plot(predicted["value"], predicted["y"], linestyle="", zorder=7, **_RING)
    _style.mark(rings, "predicted")
    across = axes.get_yaxis_transform()
    for _, row in part[part["mark"] == "nothing"].iterrows():
        axes.text(0.02, row["row"], "nothing sent", va="center", fontsize=6.5, fontstyle="italic", transform=across)
    low, high = axes.dataLim.intervalx
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,), numticks=12))
    axes.xaxis.set_major_formatter(EngFormatter(unit="B", sep=" "))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.06)


def _order(kind: str) -> tuple[int, str]:
    return (KINDS.index(kind) if kind in KINDS else len(KINDS), kind)


_LOOKS = {kind: {**look, "linestyle": ""} for kind, look in _style.looks([*KINDS, "another kind"]).items()}


def _look(kind: str) -> dict[str, Any]:
    return _LOOKS.get(kind, _LOOKS["another kind"])

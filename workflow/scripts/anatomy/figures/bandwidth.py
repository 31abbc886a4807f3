"""What slow links between the hosts cost: epoch time and exposed communication against the links' bandwidth."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

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

TABLE = "bandwidth"
TITLE = "Training over slow links"
COLUMNS = (*RUN_COLUMNS, "epoch_s", "exposed_share")
CAPTION = """
Against the bandwidth of the links between the hosts, each way (horizontal, in Mbit/s, logarithmic; at the right end,
apart from the others, links that are as fast as they are): above, the median time of an epoch in seconds (training
only, slowest rank, without warm-up and evaluation); below, communication that no computation hides, waiting for other
ranks included, in percent of the wall time of profiled steps. Each column is a graph and a platform. Colour, mark and
line tell the configurations apart. Marks are means over seeds, whiskers reach from the lowest to the highest seed. The
head of a column names configurations whose runs all failed.
"""

DRAWN = (*ROW, "mark", "links", "link_mbit", "x", "value", "low", "high", "n", "failure")
UNSHAPED = "unshaped"
_POINT = (*ROW, "links")
_MEASURES = {"epoch time": "Epoch time (s)", "exposed communication": "Exposed communication\n(% of a step)"}
_APART = 3.0
"""How many times the largest bandwidth the place of unshaped links lies at."""


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per mark.

    `mark` is `epoch time` (seconds), `exposed communication` (percent) or `failure`; `low` and `high` are the extreme
    seeds. `link_mbit` is missing, and `links` says so, where the links are as they are; `x` is the place in the figure.
    """
    links_mbit = as_number(table["link_mbit"])
    links = links_mbit.map(lambda rate: UNSHAPED if pd.isna(rate) else f"{rate:.0f} Mbit/s")
    table = labelled(table.assign(links=links, link_mbit=pd.NA)).copy()
    table["exposed"] = 100 * as_number(table["exposed_share"])
    done = completed(table)
    drawn = marks(
        DRAWN,
        **{
            "epoch time": over_seeds(done, _POINT, "epoch_s"),
            "exposed communication": over_seeds(done, _POINT, "exposed"),
            "failure": failures(table, _POINT),
        },
    )
    drawn["link_mbit"] = as_number(drawn["links"].astype(str).str.removesuffix(" Mbit/s"))
    rightmost = _APART * drawn["link_mbit"].max() if drawn["link_mbit"].notna().any() else 1.0
    drawn["x"] = drawn["link_mbit"].fillna(rightmost)
    return drawn.sort_values([*ROW, "mark", "x"], ignore_index=True)


def draw(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no run of this table was timed or profiled"), drawn
    panels = by_panel(drawn)
    looks = _style.looks(dict.fromkeys(drawn.sort_values(["panel", "row"])["label"]))
    width_in = min(_style.FULL_WIDTH_IN, _style.COLUMN_WIDTH_IN * len(panels))
    figure = _style.new_figure(width_in, 3.7, TITLE)
    axes = figure.subplots(2, len(panels), squeeze=False, sharex="col", sharey="row")
    for column, (panel, part) in zip(axes.T, panels, strict=True):
        _style.head_panel(column[0], panel, lost(part, ("row", "links")))
        for cell, measure in zip(column, _MEASURES, strict=True):
            _draw_lines(cell, part[part["mark"] == measure], looks)
        _name_links(column, part)
    for line, words in zip(axes, _MEASURES.values(), strict=True):
        line[0].set_ylabel(words)
        line[0].set_ylim(bottom=0)
    axes[1, 0].set_ylim(0, 100)
    handles = [Line2D([], [], label=label, **look) for label, look in looks.items()]
    words = note(drawn, "Means; whiskers: lowest to highest seed", ("row", "links"))
    _style.finish(figure, words, handles, ncols=len(panels) + 1 if len(panels) > 1 else 1)
    return figure, drawn


def _draw_lines(axes: Axes, points: pd.DataFrame, looks: dict[str, dict]) -> None:
    """A line per configuration; the mark of unshaped links, whose bandwidth is not known, is not joined to it."""
    for label, line in points.groupby("label", sort=False):
        look = looks[label]
        shaped = line[line["link_mbit"].notna()]
        axes.plot(shaped["x"], shaped["value"], color=look["color"], linestyle=look["linestyle"], label="_line")
        (dots,) = axes.plot(line["x"], line["value"], **{**look, "linestyle": ""}, zorder=6)
        _style.mark(dots, str(line["mark"].iloc[0]))
        _style.whiskers(axes, str(line["mark"].iloc[0]), line, x="x", colour=look["color"])


def _name_links(column: list[Axes], part: pd.DataFrame) -> None:
    places = part.drop_duplicates("x").sort_values("x")
    bottom, ends = column[1], (places["x"].iloc[0], places["x"].iloc[-1])
    bottom.set_xscale("log")
    bottom.set_xlabel("Bandwidth of the links (Mbit/s, logarithmic)")
    bottom.set_xlim(ends[0] / 1.5, ends[1] * 1.5)
    names = [UNSHAPED if pd.isna(rate) else f"{rate:.0f}" for rate in places["link_mbit"]]
    bottom.xaxis.set_major_locator(FixedLocator(list(places["x"])))
    bottom.xaxis.set_major_formatter(FixedFormatter(names))
    bottom.xaxis.set_minor_locator(NullLocator())
    if UNSHAPED in names and len(names) > 1:
        for axes in column:
            axes.axvline(ends[1] / _APART**0.5, color=_style.FAINT, linestyle=":", linewidth=0.8, label="_border")

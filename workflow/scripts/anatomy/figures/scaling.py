"""How epoch time and efficiency change with the ranks, for a fixed graph (strong) and a growing one (weak)."""

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

TABLE = "scaling"
TITLE = "Scaling with the number of ranks"
COLUMNS = (*RUN_COLUMNS, "mode", "experiment", "epoch_s", "efficiency")
CAPTION = """
Each column is a platform and a mode: in strong scaling the graph stays the same, in weak scaling it grows with the
ranks. Above, the median time of an epoch in seconds (training only, slowest rank, without warm-up and evaluation);
below, the efficiency in percent against the run on one rank with the same strategy, model and seed; the dashed line
is ideal. The horizontal axis, the number of ranks, is logarithmic. Colour, mark and line tell the configurations
apart. Marks are means over seeds, whiskers reach from the lowest to the highest seed. Hollow marks have more ranks
than cores: they show what oversubscription costs and decide nothing. A cross at the lower edge is a configuration
whose runs all failed; the head of the column says why.
"""

DRAWN = (*ROW, "mark", "ranks", "value", "low", "high", "n", "oversubscribed", "failure")
_POINT = (*ROW, "ranks")
_MEASURES = {"epoch time": "Epoch time (s)", "efficiency": "Efficiency (%)"}


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per mark.

    `mark` is `epoch time` (seconds), `efficiency` (percent) or `failure`; `low` and `high` are the extreme seeds.
    """
    table = table.assign(scaling=table["mode"].astype(str) + " scaling", ranks=as_number(table["ranks"]))
    modes = [_named(part) for _, part in table.groupby("mode")]
    if not modes:
        return pd.DataFrame(columns=list(DRAWN))
    table = pd.concat(modes, ignore_index=True)
    table["efficiency"] = 100 * as_number(table["efficiency"])
    done = completed(table)
    drawn = marks(
        DRAWN,
        **{
            "epoch time": over_seeds(done, _POINT, "epoch_s"),
            "efficiency": over_seeds(done, _POINT, "efficiency"),
            "failure": failures(table, _POINT),
        },
    )
    crowded = (
        table.assign(oversubscribed=table["oversubscribed"].eq(True)).groupby(list(_POINT))["oversubscribed"].any()
    )
    drawn["oversubscribed"] = list(
        crowded.fillna(False).astype(bool).reindex(pd.MultiIndex.from_frame(drawn[list(_POINT)]))
    )
    return drawn.astype({"ranks": int}).sort_values([*ROW, "mark", "ranks"], ignore_index=True)


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """Name the lines of one mode; a graph that only follows the number of ranks (weak scaling) tells no lines apart."""
    table = table.drop_duplicates(["experiment", "run"])
    experiments = ["experiment"] if table["experiment"].nunique() > 1 else []
    others = [*experiments, "strategy", "partitioner", "model"]
    per_point = table.groupby(["platform", *others, "ranks"])["graph"].nunique()
    follows = table["graph"].nunique() > 1 and per_point.max() == 1
    dimensions = others if follows else ["graph", *others]
    table = _share_one_rank(table, [name for name in dimensions if name != "partitioner"])
    return labelled(table, dimensions, panel_by=("platform", "scaling"))


def _share_one_rank(table: pd.DataFrame, same: list[str]) -> pd.DataFrame:
    """One rank needs no partitioner, so its runs begin the line of every partitioner."""
    parts = []
    for _, part in table.groupby(["platform", *same], sort=False):
        alone = part["ranks"] == 1
        partitioners = list(dict.fromkeys(part.loc[~alone, "partitioner"])) or list(dict.fromkeys(part["partitioner"]))
        parts.append(part[~alone])
        parts += [part[alone].assign(partitioner=partitioner) for partitioner in partitioners]
    return pd.concat(parts, ignore_index=True)


def draw(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no run of this table was timed"), drawn
    panels = by_panel(drawn)
    looks = _style.looks(dict.fromkeys(drawn.sort_values(["panel", "row"])["label"]))
    width_in = min(_style.FULL_WIDTH_IN, _style.COLUMN_WIDTH_IN * len(panels))
    figure = _style.new_figure(width_in, 3.7, TITLE)
    axes = figure.subplots(2, len(panels), squeeze=False, sharex="col", sharey="row")
    for column, (panel, part) in zip(axes.T, panels, strict=True):
        _style.head_panel(column[0], panel, lost(part, ("row", "ranks")))
        for cell, measure in zip(column, _MEASURES, strict=True):
            _draw_lines(cell, part[part["mark"] == measure], looks)
            _cross_out(cell, lost(part, ("row", "ranks")), looks)
        _name_ranks(column[1], sorted(part["ranks"].unique()))
    for line, words in zip(axes, _MEASURES.values(), strict=True):
        line[0].set_ylabel(words)
        line[0].set_ylim(bottom=0)
    handles = [Line2D([], [], label=label, **look) for label, look in looks.items()]
    if drawn["oversubscribed"].any():
        handles.append(Line2D([], [], linestyle="", marker="o", **_HOLLOW, label="hollow: more ranks than cores"))
    words = note(drawn, "Means; whiskers: lowest to highest seed; dashed: ideal", ("row", "ranks"))
    _style.finish(figure, words, handles, ncols=len(panels) + 1 if len(panels) > 1 else 1)
    return figure, drawn


_HOLLOW = {"markerfacecolor": "white", "markeredgecolor": _style.INK, "markeredgewidth": 0.8}


def _draw_lines(axes: Axes, points: pd.DataFrame, looks: dict[str, dict]) -> None:
    """A line per configuration; its marks are drawn apart, since some are hollow."""
    for label, line in points.sort_values("ranks").groupby("label", sort=False):
        look = looks[label]
        axes.plot(line["ranks"], line["value"], color=look["color"], linestyle=look["linestyle"], label="_line")
        for hollow, dots in line.groupby(line["oversubscribed"].astype(bool)):
            face = {**_HOLLOW, "markeredgecolor": look["color"]} if hollow else {}
            (drawn,) = axes.plot(dots["ranks"], dots["value"], **{**look, **face, "linestyle": ""}, zorder=6)
            _style.mark(drawn, str(dots["mark"].iloc[0]))
        _style.whiskers(axes, str(line["mark"].iloc[0]), line, x="ranks", colour=look["color"])
    if points["mark"].eq("efficiency").any():
        axes.axhline(100, color=_style.FAINT, linestyle="--", linewidth=0.8, label="_ideal")


def _cross_out(axes: Axes, failed: pd.DataFrame, looks: dict[str, dict]) -> None:
    """A cross at the lower edge for each configuration that failed at a number of ranks, one above the other."""
    for _, group in failed.groupby("ranks"):
        for height, (_, point) in enumerate(group.iterrows()):
            colour = looks[point["label"]]["color"]
            place = {"transform": axes.get_xaxis_transform(), "markeredgewidth": 1.5}
            (cross,) = axes.plot([point["ranks"]], [0.05 + 0.1 * height], marker="x", color=colour, **place)
            _style.mark(cross, "failure")


def _name_ranks(axes: Axes, ranks: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlabel("Ranks (logarithmic)")
    axes.set_xlim(ranks[0] / 1.25, ranks[-1] * 1.25)
    axes.xaxis.set_major_locator(FixedLocator(ranks))
    axes.xaxis.set_major_formatter(FixedFormatter([str(count) for count in ranks]))
    axes.xaxis.set_minor_locator(NullLocator())

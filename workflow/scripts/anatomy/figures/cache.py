"""How many remote features a cache would have saved: hit rate against its capacity, for each policy."""

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

TABLE = "cache"
TITLE = "Hit rate of a cache of remote features"
COLUMNS = (*RUN_COLUMNS, "rank", "policy", "capacity_share", "accesses", "hits")
CAPTION = """
Share of a rank's accesses to remote features that a cache would have answered (vertical, in percent) against the
cache's capacity in percent of the graph's nodes (horizontal). Only remote nodes are candidates. Solid lines: the
cache holds the nodes that were accessed most often in the epoch before; dashed lines: those of highest degree.
Colours and marks tell the configurations apart. Hits and accesses are summed over the ranks of a run; marks are
means over seeds, whiskers reach from the lowest to the highest seed. Runs that failed are named above their panel.
"""

DRAWN = (*ROW, "mark", "policy", "capacity_percent", "value", "low", "high", "n", "failure")
POLICIES = {"accesses": "-", "degree": "--"}


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per mark.

    `mark` is `hit rate` (percent of a run's accesses, all ranks together) or `failure`; `low` and `high` are the
    extreme seeds.
    """
    table = labelled(table)
    table = table.assign(**{name: as_number(table[name]) for name in ("hits", "accesses", "capacity_share")})
    point = [*ROW, "policy", "capacity_share"]
    done = completed(table)
    runs = done.groupby([*point, "run", "seed"], sort=False)[["hits", "accesses"]].sum().reset_index()
    runs = runs[runs["accesses"] > 0]
    runs["rate"] = 100 * runs["hits"] / runs["accesses"]
    rates = over_seeds(runs, point, "rate")
    rates["capacity_percent"] = 100 * rates["capacity_share"]
    return marks(DRAWN, **{"hit rate": rates, "failure": failures(table, ROW)})


def draw(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no run of this table fetched a remote feature"), drawn
    panels = by_panel(drawn)
    shown = drawn[drawn["mark"] == "hit rate"].sort_values(["panel", "row"], kind="stable")
    looks = _style.looks(dict.fromkeys(shown["label"]))
    figure, axes = _style.panel_grid(TITLE, len(panels))
    for cell, (panel, part) in zip(axes, panels, strict=True):
        _style.head_panel(cell, panel, lost(part))
        cell.set_xlabel("Capacity (% of the graph's nodes)")
        cell.set_ylabel("Hit rate (%)")
        points = part[part["mark"] == "hit rate"].sort_values("capacity_percent", kind="stable")
        for (label, policy), line in points.groupby(["label", "policy"], sort=False):
            look = {**looks[label], "linestyle": POLICIES.get(policy, ":")}
            (drawn_line,) = cell.plot(line["capacity_percent"], line["value"], zorder=4, **look)
            _style.mark(drawn_line, "hit rate")
            _style.whiskers(cell, "hit rate", line, x="capacity_percent", colour=look["color"])
        cell.set_xticks(sorted(points["capacity_percent"].unique()))
        cell.set_xlim(left=0)
        cell.set_ylim(0, 100)
    handles = [Line2D([], [], label=label, **{**look, "linestyle": ""}) for label, look in looks.items()]
    handles += [
        Line2D([], [], color=_style.INK, linestyle=POLICIES.get(policy, ":"), label=f"by {policy}")
        for policy in dict.fromkeys(shown["policy"])
    ]
    words = note(drawn, "Means; whiskers: lowest to highest seed")
    _style.finish(figure, words, handles, ncols=2 if len(panels) == 1 else 4)
    return figure, drawn

"""How unequal the ranks are: each one's computation and gradient synchronisation, split into waiting and transfer."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from anatomy.figures import _segments, _style
from anatomy.figures._rows import panels_of_rows
from anatomy.figures._summary import (
    COMPLETED,
    ROW,
    RUN_COLUMNS,
    as_number,
    completed,
    failures,
    labelled,
    marks,
    note,
    over_seeds,
)

TABLE = "imbalance"
TITLE = "Unequal ranks and the wait for the slowest"
COLUMNS = (*RUN_COLUMNS, "rank", "compute_s_per_step", "sync_s_per_step", "sync_wait_s_per_step", "wait_share")
CAPTION = """
Each bar is one rank of one configuration. Left: its mean time per step in milliseconds, first in computation
(orange, hatched), then in gradient synchronisation, of which one part is waiting until the last rank has arrived
(white, dotted) and the rest is transfer (purple, cross-hatched); where the ranks' traces could not be matched,
synchronisation is shown unsplit in light grey. In traces that annotate no phases, every collective is taken for
synchronisation. Means over steps and seeds; the upper whisker is the range of computation over seeds, the lower one
that of the whole bar. Right: the share of synchronisation that is waiting, in percent, with its range over seeds.
Platforms have panels of their own, and so have traces that were recorded elsewhere. Runs without numbers keep their
row and say why.
"""

DRAWN = (*ROW, "mark", "rank", "start", "value", "low", "high", "n", "failure")
_LOOKS = {
    "compute": _style.shades("compute", 3)[1],
    "wait": _style.shades("idle", 1)[0],
    "transfer": _style.shades("communication", 2)[0],
    "unsplit": _style.shades("other", 1)[0],
}
_WORDS = {
    "compute": "compute",
    "wait": "synchronisation: waiting for the last rank",
    "transfer": "synchronisation: transfer",
    "unsplit": "synchronisation, not split",
}


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per mark.

    `mark` is `compute`, `wait`, `transfer` or `unsplit` (milliseconds per step, from `start`), `total` (their sum),
    `share` (waiting in synchronisation, percent) or `failure`; `low` and `high` are the extreme seeds.
    """
    table = _one_row_per_rank(labelled(table))
    for name in ("compute", "sync", "sync_wait"):
        table[name] = 1000 * as_number(table[f"{name}_s_per_step"])
    known = table["sync_wait"].notna() | table["status"].ne(COMPLETED)
    split = known.groupby([table["panel"], table["row"]]).transform("all")
    table["wait"] = table["sync_wait"].where(split)
    table["transfer"] = (table["sync"] - table["sync_wait"]).where(split)
    table["unsplit"] = table["sync"].where(~split)
    table["total"] = table["compute"] + table["sync"].fillna(0.0)
    table["share"] = 100 * as_number(table["wait_share"])
    done = completed(table).assign(
        label=lambda done: done["label"] + ", rank " + done["rank"].astype("Int64").astype(str)
    )
    keys = (*ROW, "rank")
    shown = {
        name: over_seeds(done, keys, name) for name in ("compute", "wait", "transfer", "unsplit", "total", "share")
    }
    drawn = marks(DRAWN, **shown, failure=failures(table, ROW)).reset_index(drop=True)
    segments = drawn[drawn["mark"].isin(list(_LOOKS))]
    drawn["start"] = segments.groupby(["panel", "row"])["value"].cumsum() - segments["value"]
    return drawn


def draw(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no run of this table was profiled"), drawn
    figure, axes, parts = panels_of_rows(TITLE, drawn, (4, 1.2))
    for (left, right), part in zip(axes, parts, strict=True):
        _draw_times(left, part)
        _style.dots(right, "share", part[part["mark"] == "share"], color=_style.INK)
        right.set_xlim(-4, 104)
    axes[-1, 0].set_xlabel("Time per step (ms)")
    axes[-1, 1].set_xlabel("Waiting in sync (%)")
    handles = [
        Patch(**_segments.EDGE, **_LOOKS[name], label=_WORDS[name]) for name in _LOOKS if drawn["mark"].eq(name).any()
    ]
    _style.finish(figure, note(drawn, "Means; whiskers: lowest to highest seed"), handles, ncols=3)
    return figure, drawn


def _one_row_per_rank(table: pd.DataFrame) -> pd.DataFrame:
    """Count rows by rank; a run that failed before it had ranks takes its configuration's first row."""
    table["rank"] = as_number(table["rank"])
    place = ["panel", "row", "rank"]
    table["rank"] = table["rank"].fillna(table.groupby(["panel", "row"])["rank"].transform("min"))
    rows = table[place].drop_duplicates().sort_values(place)
    rows["place"] = rows.groupby("panel").cumcount()
    return table.merge(rows, on=place, how="left").drop(columns="row").rename(columns={"place": "row"})


def _draw_times(axes: Axes, part: pd.DataFrame) -> None:
    for name, look in _LOOKS.items():
        points = part[part["mark"] == name]
        for bar in axes.barh(
            points["row"], points["value"], left=points["start"], height=0.72, **_segments.EDGE, **look
        ):
            _style.mark(bar, name)
    computed, total = part[part["mark"] == "compute"], part[part["mark"] == "total"]
    _style.whiskers(axes, "compute", computed.assign(row=computed["row"] - 0.17))
    _style.whiskers(axes, "total", total.assign(row=total["row"] + 0.17))
    axes.set_xlim(left=0)

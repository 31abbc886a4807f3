"""The gain of each strategy measured here, beside the one that its paper heads its abstract with."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from anatomy.figures import _style
from anatomy.figures._compared import by_baseline
from anatomy.figures._rows import panels_of_rows
from anatomy.figures._summary import (
    ROW,
    RUN_COLUMNS,
    as_number,
    completed,
    failures,
    marks,
    note,
    over_seeds,
    row_names,
)

TABLE = "strategies"
TITLE = "Gain over full-graph training, measured and as published"
COLUMNS = (*RUN_COLUMNS, "baseline_run", "gain", "paper_gain", "paper_claim")
CAPTION = """
How many times faster than plain full-graph training of the same graph, model and ranks an epoch is (horizontal,
logarithmic; right of the line at 1 is faster). Filled circles are measured here: the baseline's median epoch time over
the strategy's, slowest rank, without warm-up and evaluation; means over seeds, with whiskers from the lowest to the
highest seed. Hollow diamonds are the headline gains of the methods' papers; there is none where a paper gives no number
that can be carried over. The two are not of the same thing. Papers report what is best or what is usual, over baselines
of their own, on GPUs and on graphs that are mostly larger; what each reports stands below the figure. On a laptop,
ranks are CPU processes that share two cores, and Gloo passes messages over the loopback link of one host, so that there
is little of the waiting for links that most of the methods save, and what hides a message takes the time of a core
from the message itself; on small graphs the fixed costs of a message count for more. Platforms have panels of their
own. Runs that failed, and runs without a baseline, keep their row and say so; traces recorded elsewhere have no epochs
and are left out. A star marks configurations with more ranks than cores, whose times decide nothing.
"""

DRAWN = (*ROW, "mark", "value", "low", "high", "n", "claim", "failure")
_MEASURED = {"color": _style.INK, "marker": "o"}
_PUBLISHED = {
    "color": _style.PALETTE[3],
    "marker": "D",
    "markersize": 5,
    "markerfacecolor": "white",
    "markeredgewidth": 1,
}
_ONE = {"color": _style.FAINT, "linestyle": "--", "linewidth": 0.8}


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per mark.

    `mark` is `measured` (the baseline's epoch time over this one's), `published` (what the paper reports, with the
    words of its `claim`), `nothing` (a row without a baseline) or `failure`.
    """
    table = by_baseline(table[table["graph"].notna()])
    done = completed(table)
    measured = over_seeds(done, ROW, "gain")
    known = done.dropna(subset=["gain", "paper_gain"]).drop_duplicates(list(ROW))
    published = known.assign(value=as_number(known["paper_gain"]), claim=known["method"] + ": " + known["paper_claim"])
    alone = done.groupby(list(ROW), sort=False).filter(lambda row: row["gain"].isna().all())
    return marks(
        DRAWN,
        measured=measured,
        published=published,
        nothing=alone.drop_duplicates(list(ROW)),
        failure=failures(table, ROW),
    )


def draw(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no strategy of this table was trained beside full-graph training"), drawn
    figure, axes, parts = panels_of_rows(TITLE, drawn)
    for (line,), part in zip(axes, parts, strict=True):
        _draw_gains(line, part)
    ends = [line.get_xlim() for (line,) in axes]
    for (line,) in axes:
        line.set_xlim(min(low for low, _ in ends), max(high for _, high in ends))
    axes[-1, 0].set_xlabel("Times as fast as full-graph training (logarithmic)")
    handles = [Line2D([], [], linestyle="", **_MEASURED, label="measured here")]
    handles.append(Line2D([], [], linestyle="", **_PUBLISHED, label="headline of the paper"))
    handles.append(Line2D([], [], **_ONE, label="full-graph training"))
    words = note(drawn, "Measured: means; whiskers: lowest to highest seed")
    _style.finish(figure, f"{words} {_differences(table, drawn)}", handles, ncols=3)
    return figure, drawn


def _draw_gains(axes: Axes, part: pd.DataFrame) -> None:
    axes.set_xscale("log")
    _style.band_rows(axes, len(row_names(part)))
    _style.mark(axes.axvline(1, zorder=2, **_ONE), "baseline")
    for name, look in (("published", _PUBLISHED), ("measured", _MEASURED)):
        points = part[part["mark"] == name]
        if not points.empty:
            _style.dots(axes, name, points, **look)
    across = axes.get_yaxis_transform()
    for _, row in part[part["mark"] == "nothing"].iterrows():
        words = "no full-graph training to compare with"
        axes.text(0.02, row["row"], words, va="center", fontsize=6.5, fontstyle="italic", transform=across)
    axes.margins(x=0.06)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda gain, _: f"{gain:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _differences(table: pd.DataFrame, drawn: pd.DataFrame) -> str:
    """In what the two gains of a row differ: how these were measured, and what each paper reports."""
    table = table[table["graph"].notna()]
    platforms = " or ".join(sorted(table["platform"].dropna().unique()))
    most = table["hosts"].max()
    hosts = "all ranks on one host and its loopback link" if most == 1 else f"ranks on up to {most} hosts"
    words = f"Here: {platforms}, {hosts}; the panels name the graphs."
    claims = sorted(drawn.loc[drawn["mark"] == "published", "claim"].unique())
    return f"{words} Papers, on machines and graphs of their own: {'; '.join(claims)}." if claims else words

"""Where the time of a step goes: shares of phases as stacked bars, with the step's own duration beside them."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from anatomy.figures import _segments, _style
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
)
from anatomy.phases import Phase

TABLE = "phases"
TITLE = "Where the time of a step goes"
COLUMNS = (*RUN_COLUMNS, "phase", "group", "seconds_per_step", "share")
CAPTION = """
Each bar is one configuration; its segments are the mean shares of a step's wall time (left, in percent; they sum to
100 %) that a rank spends in each phase, averaged over ranks, steps and seeds. Blue segments prepare the mini-batch;
cross-hatched purple ones are communication that nothing hides, named by the phase it happens in; hatched orange
segments compute; striped green is copying between host and device outside of preparation; dotted white is idle and
grey is what no phase covers. The whisker ends the share that brings the mini-batch together, that is, preparation and
the communication of fetch: it reaches from the seed with the smallest to the seed with the largest such share. The
points on the right are the mean duration of a profiled step in milliseconds, with whiskers from the fastest to the
slowest seed; profiling makes steps longer, so these are not epoch times. Platforms have panels of their own, and so
have traces that were recorded elsewhere. Runs without numbers keep their row and say why. A star marks configurations
with more ranks than cores.
"""

DRAWN = (*ROW, "mark", "group", "phase", "start", "value", "low", "high", "n", "failure")


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per mark.

    `mark` is `share` (value and start in percent of a step), `batch` (percent of a step that brings the mini-batch
    together), `step` (milliseconds) or `failure`; `low` and `high` are the extreme seeds.
    """
    table = labelled(table)
    table["share"] = 100 * as_number(table["share"])
    table["step_ms"] = 1000 * as_number(table["seconds_per_step"])
    done = completed(table).dropna(subset=["share", "phase"])
    fetched = done["group"].eq("communication") & done["phase"].eq(Phase.FETCH)
    done["batch"] = done["share"].where(done["group"].eq("preparation") | fetched, 0.0)
    done["phase"] = done["phase"].where(~done["group"].isin(list(_segments.UNDIVIDED)), done["group"])
    totals = done.groupby([*ROW, "run", "seed"], sort=False)[["step_ms", "batch"]].sum().reset_index()
    batch = over_seeds(totals, ROW, "batch")
    return marks(
        DRAWN,
        share=_mean_shares(done),
        batch=batch[batch["high"] > 0],
        step=over_seeds(totals, ROW, "step_ms"),
        failure=failures(table, ROW),
    )


def draw(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no run of this table was profiled"), drawn
    segments = drawn[drawn["mark"] == "share"]
    looks = _segments.looks(zip(segments["group"], segments["phase"], strict=True))
    figure, axes, parts = panels_of_rows(TITLE, drawn, (4, 1.2))
    for (left, right), part in zip(axes, parts, strict=True):
        _draw_shares(left, part, looks)
        _style.dots(right, "step", part[part["mark"] == "step"], color=_style.INK)
        right.set_xlim(0, 1.05 * right.get_xlim()[1])
    axes[-1, 0].set_xlabel("Share of a step's wall time (%)")
    axes[-1, 1].set_xlabel("Step (ms)")
    handles = [Patch(**_segments.EDGE, **look, label=_segments.name(*pair)) for pair, look in looks.items()]
    words = "Means; whiskers: lowest to highest seed (left: of preparation plus the communication of fetch)"
    _style.finish(figure, note(drawn, words), handles, ncols=4)
    return figure, drawn


def _mean_shares(done: pd.DataFrame) -> pd.DataFrame:
    """Mean share per phase over a row's seeds, a phase that a seed lacks counting as 0, and its segment's start."""
    shares = done.groupby([*ROW, "group", "phase"], sort=False)["share"].sum().rename("value").reset_index()
    counts = done.groupby(list(ROW), sort=False).agg(n=("seed", "nunique"), runs=("run", "nunique")).reset_index()
    shares = shares.merge(counts, on=list(ROW))
    shares["value"] /= shares["runs"]
    shares["order"] = [_segments.order(*pair) for pair in zip(shares["group"], shares["phase"], strict=True)]
    shares = shares.sort_values(["panel", "row", "order"], kind="stable")
    shares["start"] = shares.groupby(list(ROW), sort=False)["value"].cumsum() - shares["value"]
    return shares


def _draw_shares(axes: Axes, part: pd.DataFrame, looks: dict[_segments.Segment, dict[str, Any]]) -> None:
    for _, segment in part[part["mark"] == "share"].iterrows():
        look = looks[segment["group"], segment["phase"]]
        (bar,) = axes.barh(
            [segment["row"]], [segment["value"]], left=[segment["start"]], height=0.72, **_segments.EDGE, **look
        )
        _style.mark(bar, "share")
    _style.whiskers(axes, "batch", part[part["mark"] == "batch"])
    axes.set_xlim(0, 100)

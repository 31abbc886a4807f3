"""Who owns the memory of the rank that needs most: accounted bytes as stacked bars, up to the measured peak."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

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
)

TABLE = "memory"
TITLE = "Who owns the memory of a rank"
COLUMNS = (*RUN_COLUMNS, "rank", "owner", "bytes", "peak_memory_bytes")
CAPTION = """
Each bar is the memory, in megabytes (millions of bytes), of the rank whose process needs most, means over seeds. Its
segments are computed from the sizes of partition and model, not measured: features of own and halo nodes; the graph's
structure; activations kept for the backward pass (for layers other than gcn and sage, and with dropout, at least so
much); weights, gradients and the optimiser's moments (parameters); buffers of the halo exchanges; and what exact
evaluation keeps. What a strategy keeps beyond these, histories, caches and buffers of its own, is looked up in the
process. The white rest, up to the largest resident memory of the process, is measured: interpreter and libraries,
mapped files, and what is not accounted for, which for strategies that exchange otherwise than by halo rows includes
activations. On GPUs there is no rest, and the bar ends where the account does. The whisker
reaches from the lowest to the highest end of the bar among seeds. Runs that failed keep their row and say why. A star
marks configurations with more ranks than cores.
"""

DRAWN = (*ROW, "mark", "owner", "start", "value", "low", "high", "n", "failure")
OWNERS = ("features", "structure", "activations", "exchange", "evaluation", "parameters", "kept", "rest")
_HATCHES = ("", "////", "xxxx", "....", "----", "", "||||", "")
_LOOKS: dict[str, dict[str, Any]] = {
    owner: {"facecolor": colour, "hatch": hatch, "hatchcolor": "white" if place < 3 else _style.FAINT}
    for place, (owner, colour, hatch) in enumerate(
        zip(OWNERS, (*_style.PALETTE, "0.9", "white"), _HATCHES, strict=True)
    )
}
_EDGE = {"edgecolor": _style.INK, "linewidth": 0.4}


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per mark, in megabytes (1e6 B).

    `mark` is `memory` (a segment, with its start), `total` (where the bar ends) or `failure`; `low` and `high` are the
    extreme seeds.
    """
    table = labelled(table)
    table["megabytes"] = as_number(table["bytes"]) / 1e6
    largest = _largest_ranks(completed(table).dropna(subset=["megabytes", "owner"]))
    totals = largest.groupby([*ROW, "run", "seed"], sort=False)["megabytes"].sum().reset_index()
    return marks(
        DRAWN,
        memory=_segments(over_seeds(largest, (*ROW, "owner"), "megabytes")),
        total=over_seeds(totals, ROW, "megabytes"),
        failure=failures(table, ROW),
    )


def draw(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no run of this table counted its memory"), drawn
    figure, axes, parts = panels_of_rows(TITLE, drawn)
    for (line,), part in zip(axes, parts, strict=True):
        _draw_owners(line, part)
    axes[-1, 0].set_xlabel("Memory of the rank that needs most (MB)")
    shown = set(drawn["owner"].dropna())
    handles = [Patch(**_EDGE, **look, label=owner) for owner, look in _LOOKS.items() if owner in shown]
    words = "Means; whiskers: lowest to highest seed, of all that a bar shows"
    _style.finish(figure, note(drawn, words), handles, ncols=4)
    return figure, drawn


def _largest_ranks(done: pd.DataFrame) -> pd.DataFrame:
    """The rows of each run's rank with the largest peak, the first of several."""
    peaks = done.assign(peak=as_number(done["peak_memory_bytes"])).sort_values(["run", "rank"], kind="stable")
    first = peaks.loc[peaks.groupby("run")["peak"].idxmax(), ["run", "rank"]]
    return done.merge(first, on=["run", "rank"])


def _segments(owners: pd.DataFrame) -> pd.DataFrame:
    """Owners in their order, each starting where the one before ends."""
    owners = owners.assign(order=[OWNERS.index(owner) for owner in owners["owner"]])
    owners = owners.sort_values(["panel", "row", "order"], kind="stable")
    return owners.assign(start=owners.groupby(list(ROW), sort=False)["value"].cumsum() - owners["value"])


def _draw_owners(axes: Axes, part: pd.DataFrame) -> None:
    for _, segment in part[part["mark"] == "memory"].iterrows():
        (bar,) = axes.barh(
            [segment["row"]],
            [segment["value"]],
            left=[segment["start"]],
            height=0.72,
            **_EDGE,
            **_LOOKS[segment["owner"]],
        )
        _style.mark(bar, "memory")
    _style.whiskers(axes, "total", part[part["mark"] == "total"])
    axes.set_xlim(left=0)

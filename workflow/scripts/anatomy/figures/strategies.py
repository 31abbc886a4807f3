"""What each strategy gains and costs: time, communication, bytes, memory and accuracy beside full-graph training."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FixedLocator, MaxNLocator, NullFormatter, StrMethodFormatter

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

TABLE = "strategies"
TITLE = "What each strategy gains and costs beside full-graph training"
_NUMBERS = {
    "epoch time": ("epoch_s", 1),
    "exposed": ("exposed_s_per_step", 1e3),
    "hidden": ("hidden_s_per_step", 1e3),
    "sent": ("sent_bytes_per_epoch", 1),
    "memory": ("peak_memory_bytes", 1e-6),
    "accuracy": ("val_accuracy", 100),
    "lost by epochs": ("accuracy_lost", 100),
    "lost by time": ("accuracy_lost_in_time", 100),
}
"""Each mark: the column of the table that it shows, and the factor to the unit of its axis."""
COLUMNS = (*RUN_COLUMNS, "baseline_run", *(column for column, _ in _NUMBERS.values()))
CAPTION = """
Each row is one configuration; each panel has the runs of one graph, platform, model and number of ranks. The dashed
vertical lines are plain full-graph training, the baseline. From the left: median time of an epoch (s; training only,
slowest rank, without warm-up and evaluation); communication in a profiled step (ms, mean over ranks and steps), filled
while nothing is computed, waiting for other ranks included, and hollow while something is; bytes that all ranks
together send in an epoch (logarithmic); peak memory of the rank that needs most (MB, evaluation included); accuracy on
the validation nodes after the last epoch (%); and the baseline's accuracy less this configuration's (percentage
points; right of the line is worse), once after as many epochs of both (squares) and once after as much training time
of both (hollow triangles). Marks are means over seeds, whiskers reach from the lowest to the highest seed. Profiling
makes steps longer, so the times of communication are no parts of the epoch times. A mark is missing where there is no
such number: communication of runs that were not profiled, losses where no run of the baseline completed. Runs that
failed keep their row and say why. A star marks configurations with more ranks than cores, whose times decide nothing.
"""

DRAWN = (*ROW, "is_baseline", "mark", "y", "value", "low", "high", "n", "failure")
_AXES = {
    "Epoch\n(s)": ("epoch time",),
    "Communication\n(ms per step)": ("exposed", "hidden"),
    "Sent per epoch\n(logarithmic)": ("sent",),
    "Peak memory\n(MB per rank)": ("memory",),
    "Validation\naccuracy (%)": ("accuracy",),
    "Accuracy lost\n(points)": ("lost by epochs", "lost by time"),
}
"""The axes from left to right, and the marks on each."""
_HOLLOW = {"markerfacecolor": "white", "markeredgewidth": 0.9, "markersize": 4}
_LOOKS: dict[str, dict[str, Any]] = {
    "exposed": {"color": _style.PALETTE[1], "marker": "o"},
    "hidden": {"color": _style.PALETTE[1], "marker": "o", **_HOLLOW},
    "lost by epochs": {"color": _style.PALETTE[0], "marker": "s", "markersize": 3.6},
    "lost by time": {"color": _style.PALETTE[3], "marker": "^", **_HOLLOW},
}
_PLAIN = {"color": _style.INK, "marker": "o"}
_BASELINE = {"color": _style.FAINT, "linestyle": "--", "linewidth": 0.8}
_NAMES = {
    "exposed": "exposed",
    "hidden": "hidden",
    "lost by epochs": "at equal epochs",
    "lost by time": "at equal time",
}


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per mark, in the units of the axes.

    `mark` is one of `epoch time` (s), `exposed` and `hidden` (ms per step), `sent` (bytes per epoch), `memory` (MB),
    `accuracy` (percent), `lost by epochs` and `lost by time` (percentage points), `nothing` (a row whose ranks send
    nothing) or `failure`; `y` is its height, `is_baseline` whether it is of what the others of its panel are compared
    with.
    """
    table = by_baseline(table)
    done = completed(table).copy()
    keys = (*ROW, "is_baseline")
    for name, (column, factor) in _NUMBERS.items():
        done[name] = factor * as_number(done[column])
    found = {name: over_seeds(done, keys, name) for name in _NUMBERS}
    silent = found["sent"][found["sent"]["high"] == 0]
    found["sent"] = found["sent"][found["sent"]["high"] > 0]
    drawn = marks(DRAWN, **found, nothing=silent, failure=failures(table, ROW))
    drawn["y"] = as_number(drawn["row"])
    for names in _AXES.values():
        for name, height in zip(names, _style.spread(len(names), 0.17), strict=True):
            drawn.loc[drawn["mark"] == name, "y"] += height
    return drawn


def draw(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no run of this table was timed or profiled"), drawn
    panels = by_panel(drawn)
    counts = [len(row_names(part)) for _, part in panels]
    figure, axes = _style.panel_rows(TITLE, counts, [1] * len(_AXES), row_height_in=0.22)
    for line, (panel, part) in zip(axes, panels, strict=True):
        _head_line(line, panel)
        _style.name_rows(line[0], row_names(part))
        _style.say_failures(line[0], lost(part), columns=len(_AXES))
        for cell, names in zip(line, _AXES.values(), strict=True):
            _style.band_rows(cell, len(row_names(part)))
            _draw_marks(cell, part[part["mark"].isin(names)])
        _say_nothing_sent(line[2], part[part["mark"] == "nothing"])
    for cell, words in zip(axes[-1], _AXES, strict=True):
        cell.set_xlabel(words)
    figure.align_xlabels(list(axes[-1]))
    handles = [Line2D([], [], linestyle="", **_LOOKS[mark], label=name) for mark, name in _NAMES.items()]
    handles.append(Line2D([], [], **_BASELINE, label="full-graph training"))
    _style.finish(figure, note(drawn, "Means; whiskers: lowest to highest seed"), handles, ncols=5)
    return figure, drawn


def _head_line(line: Sequence[Axes], panel: str) -> None:
    """A panel's name above its first axes, which would be set apart from the next if it were their title."""
    line[0].annotate(
        panel, (0, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points", in_layout=False
    )
    line[1].set_title(" ")


def _draw_marks(axes: Axes, points: pd.DataFrame) -> None:
    if points.empty:
        axes.set_xticks([])
        axes.grid(False)
        axes.tick_params(axis="y", length=0)
        return
    for name, found in points.groupby("mark", sort=False):
        _style.dots(axes, name, found.assign(row=found["y"]), **_LOOKS.get(name, _PLAIN))
        if name != "hidden":
            for value in dict.fromkeys(found.loc[found["is_baseline"].eq(True), "value"]):
                _style.mark(axes.axvline(value, zorder=2, **_BASELINE), "baseline")
    if "sent" in set(points["mark"]):
        _scale_bytes(axes, points["low"].min(), points["high"].max())
    else:
        _scale_plain(axes, points)


def _scale_plain(axes: Axes, points: pd.DataFrame) -> None:
    """Few ticks, and 0 in sight of what is an amount; accuracies differ too little for that."""
    axes.margins(x=0.12)
    if points["mark"].iloc[0] in ("epoch time", "exposed", "hidden", "memory"):
        right = 1.1 * max(points["high"].max(), 1e-9)
        axes.set_xlim(-0.05 * right, right)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _scale_bytes(axes: Axes, low: float, high: float) -> None:
    """Two round numbers of bytes, as far apart as may be: a narrow axis has no room for more."""
    axes.set_xscale("log")
    pad = max((high / low) ** 0.12, 1.5)
    axes.set_xlim(low / pad, high * pad)
    for leading in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)):
        decades = range(math.floor(math.log10(low / pad)), math.ceil(math.log10(high * pad)))
        ticks = [digit * 10.0**power for power in decades for digit in leading]
        ticks = [tick for tick in ticks if low / pad <= tick <= high * pad]
        # Their labels need some of the axis between them.
        if ticks and ticks[-1] / ticks[0] > (high * pad**2 / low) ** 0.55:
            break
    axes.xaxis.set_major_locator(FixedLocator([ticks[0], ticks[-1]]))
    axes.xaxis.set_major_formatter(EngFormatter(unit="B", sep=" "))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _say_nothing_sent(axes: Axes, silent: pd.DataFrame) -> None:
    across = axes.get_yaxis_transform()
    for _, row in silent.iterrows():
        axes.text(0.05, row["row"], "nothing", va="center", fontsize=6.5, fontstyle="italic", transform=across)

"""How the study's figures look: the one place that decides sizes, colours, marks and words around the data.

Colours are ordered by lightness, so that they stay apart in grey and for colour-blind readers; marks and hatches repeat
what the colours say. Everything that could differ between two drawings of the same numbers (dates, random ids, a
person's own settings) is fixed here.
"""

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib import rc_context, rc_params_from_file
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from anatomy.errors import StudyError

COLUMN_WIDTH_IN = 3.4
FULL_WIDTH_IN = 7.0
ROW_HEIGHT_IN = 0.2
"""Height of one bar or row of dots."""

PALETTE = ("#16213e", "#6a2c70", "#1f6fb2", "#d1603d", "#e3a13a", "#c8d96f")
MARKERS = ("o", "s", "^", "D", "v", "P")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 1)))
INK = "#222222"
FAINT = "#6b6b6b"
HALO = [withStroke(linewidth=1.8, foreground="white")]
"""Keeps whiskers visible on dark bars."""
BAND = "#f1f1f1"

GROUP_COLOURS = {
    "preparation": ("#1b3a5c", "#c3d9ec"),
    "communication": ("#4a1f5e", "#d9c6ea"),
    "compute": ("#7a3b10", "#f8e0c2"),
    "copy": ("#2f7f6b", "#2f7f6b"),
    "idle": ("#ffffff", "#ffffff"),
    "other": ("#d0d0d0", "#d0d0d0"),
}
"""What a rank does with its time, in the order of drawing: one hue per group, from dark to light within it."""
GROUP_HATCHES = {
    "preparation": "",
    "communication": "xxxx",
    "compute": "////",
    "copy": "----",
    "idle": "....",
    "other": "",
}

_SETTINGS = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.titlesize": 7.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 7.5,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.5,
    "hatch.linewidth": 0.5,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "anatomy",
}

METADATA = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}
"""What files say of their making: nothing, so that equal numbers give equal bytes."""


def looks(names: Iterable[Any]) -> dict[Any, dict[str, Any]]:
    """Colour, mark and line of each name, as far apart in lightness as their number allows.

    Up to twelve differ in grey too: where colours begin anew, marks are hollow. After that marks are shifted, so that
    no two are alike in colour, mark and filling.
    """
    names = list(names)
    steps = (len(PALETTE) - 2) / max(len(names) - 1, 1)
    found = {}
    for place, name in enumerate(names):
        colour = PALETTE[round(place * steps)] if len(names) < len(PALETTE) else PALETTE[place % len(PALETTE)]
        begun_anew = place // len(PALETTE)
        hollow = begun_anew % 2 == 1
        found[name] = {
            "color": colour,
            "marker": MARKERS[(place + begun_anew // 2) % len(MARKERS)],
            "linestyle": LINES[(place + begun_anew) % len(LINES)],
            "markerfacecolor": "white" if hollow else colour,
            "markeredgecolor": colour if hollow else INK,
            "markeredgewidth": 0.8 if hollow else 0.4,
        }
    return found


def shades(group: str, count: int) -> list[dict[str, Any]]:
    """How `count` parts of a group of GROUP_COLOURS are filled, from dark to light."""
    dark, light = (np.array(to_rgb(colour)) for colour in GROUP_COLOURS.get(group, GROUP_COLOURS["other"]))
    fills = []
    for weight in np.linspace(0, 1, count) if count > 1 else [0.35]:
        colour = dark + weight * (light - dark)
        hatch_colour = "white" if colour.mean() < 0.5 else FAINT
        fills.append({"facecolor": to_hex(colour), "hatch": GROUP_HATCHES.get(group, ""), "hatchcolor": hatch_colour})
    return fills


@contextmanager
def applied(style_file: Path | None = None) -> Iterator[None]:
    """Draw and save in the study's style, whatever the person's own matplotlib settings are.

    `style_file` is a matplotlib style sheet whose settings override the study's.

    Raises StudyError where it is absent or wrong.
    """
    override = _read_style(style_file) if style_file else {}
    with rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        matplotlib.rcParams.update(override)
        yield


def _read_style(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise StudyError(f"--style {path}: not found; give the path of a matplotlib style file (.mplstyle)")
    lines = [line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    unknown = [line for line in lines if line and line.split(":")[0].strip() not in matplotlib.rcParams]
    if unknown:
        raise StudyError(f"--style {path}: {unknown[0]!r} is no setting of matplotlib; correct or remove it")
    try:
        return rc_params_from_file(path, fail_on_error=True, use_default_template=False)
    except ValueError as error:
        raise StudyError(f"--style {path}: {error}; correct it") from error


def new_figure(width_in: float, height_in: float, title: str) -> Figure:
    """An empty figure with its title above."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=8.5, fontweight="bold", color=INK)
    return figure


def finish(figure: Figure, note: str, handles: Sequence[Artist] = (), ncols: int = 1) -> None:
    """Make room below the axes for a legend and, under it, a note that says what n and the whiskers are.

    The legend has `ncols` columns, or as many as the figure has room for.
    """
    width_in, height_in = figure.get_size_inches()
    ncols = _columns_that_fit(figure, handles, ncols)
    lines = textwrap.wrap(note, int(width_in * 20), break_long_words=False)
    note_in = 0.11 * len(lines) + 0.06
    legend_in = 0.155 * math.ceil(len(handles) / ncols) + 0.04 if handles else 0.0
    below_in = note_in + legend_in
    height_in += below_in
    figure.set_size_inches(width_in, height_in)
    figure.get_layout_engine().set(rect=(0, below_in / height_in, 1, 1 - below_in / height_in))
    text = "\n".join(lines)
    figure.text(0.01, 0.05 / height_in, text, fontsize=6.5, color=FAINT, va="bottom", linespacing=1.2, in_layout=False)
    if handles:
        anchor = (0.006, below_in / height_in)
        legend = figure.legend(handles=handles, loc="upper left", bbox_to_anchor=anchor, ncols=ncols, borderaxespad=0)
        legend.set_in_layout(False)


def _columns_that_fit(figure: Figure, handles: Sequence[Artist], ncols: int) -> int:
    """The most columns, up to `ncols`, with which a legend is not wider than its figure; at least one."""
    for columns in range(ncols, 1, -1):
        legend = figure.legend(handles=handles, ncols=columns)
        width = legend.get_window_extent().width
        legend.remove()
        if width <= 0.99 * figure.bbox.width:
            return columns
    return 1


def settle(figure: Figure) -> None:
    """Lay a figure out now, for good: of many panels, the layout's last digits would differ from time to time."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position([round(number, 6) for number in axes.get_position().bounds])


def no_data(title: str, reason: str) -> Figure:
    """A figure that says why there is nothing to see."""
    figure = new_figure(COLUMN_WIDTH_IN, 1.3, title)
    axes = figure.subplots()
    axes.set_axis_off()
    text = "\n".join(textwrap.wrap(f"no data: {reason}", 52))
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
    return figure


def panel_rows(
    title: str, labels_per_panel: Sequence[int], width_ratios: Sequence[float], row_height_in: float = ROW_HEIGHT_IN
) -> tuple[Figure, np.ndarray]:
    """A full-width figure with a line of axes per panel, as high as its rows need; axes lie in [panel, column]."""
    title_in, per_panel_in = 0.3, 0.55
    height_in = title_in + sum(row_height_in * count + per_panel_in for count in labels_per_panel)
    figure = new_figure(FULL_WIDTH_IN, height_in, title)
    axes = figure.subplots(
        len(labels_per_panel),
        len(width_ratios),
        squeeze=False,
        sharey="row",
        gridspec_kw={"width_ratios": width_ratios, "height_ratios": [count + 1.5 for count in labels_per_panel]},
    )
    return figure, axes


def panel_grid(title: str, count: int, height_in: float = 2.0, columns: int = 2) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels with their own axes: one at column width, more in `columns` at full width."""
    columns = min(count, columns)
    rows = math.ceil(count / columns)
    figure = new_figure(COLUMN_WIDTH_IN if count == 1 else FULL_WIDTH_IN, 0.3 + rows * height_in, title)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.set_axis_off()
    return figure, axes[:count]


def name_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Label the rows of horizontal bars or dots, the first at the top; only vertical grid lines make sense there."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")


def spread(count: int, reach: float) -> list[float]:
    """Offsets that set `count` marks of one row apart, from `-reach` to `reach` rows; 0 for a single one."""
    return [0.0] if count == 1 else list(np.linspace(-reach, reach, count))


def band_rows(axes: Axes, count: int) -> None:
    """Shade every second row, where several marks lie apart in one."""
    for row in range(1, count, 2):
        axes.axhspan(row - 0.5, row + 0.5, color=BAND, linewidth=0, zorder=0, label="_band")


def mark(artist: Artist, name: str) -> None:
    """Note what an artist shows; the leading underscore keeps it out of legends."""
    artist.set_label(f"_{name}")


def whiskers(axes: Axes, name: str, points: pd.DataFrame, x: str | None = None, colour: str = INK) -> None:
    """Whiskers from `low` to `high`: across at each point's `row`, or upright at its `x` where that column is given.

    A point of one seed has none.
    """
    for _, point in points[points["n"] > 1].iterrows():
        ends = [point["low"], point["high"]]
        place = [point[x or "row"]] * 2
        line_x, line_y, cap = (place, ends, "_") if x else (ends, place, "|")
        above = {"zorder": 3} if x else {"zorder": 5, "path_effects": HALO}
        (line,) = axes.plot(line_x, line_y, color=colour, linewidth=0.8, marker=cap, markersize=4, **above)
        mark(line, f"{name} range")


def dots(axes: Axes, name: str, points: pd.DataFrame, **look: Any) -> None:
    """A dot at each point's `value` and `row`, with its whisker."""
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    whiskers(axes, name, points)
    (line,) = axes.plot(points["value"], points["row"], **{"marker": "o", "zorder": 6, **look, "linestyle": ""})
    mark(line, name)


def say_failures(axes: Axes, failed: pd.DataFrame, columns: int = 1) -> None:
    """Say at the rows whose runs all failed why they did, over `columns` axes of one width of which these are first."""
    across = axes.get_yaxis_transform()
    if columns > 1:
        axes.set_zorder(1)
        axes.patch.set_visible(False)
    for _, row in failed.iterrows():
        (cross,) = axes.plot([0.02 * columns], [row["row"]], marker="x", color=INK, markersize=5, transform=across)
        mark(cross, "failure")
        look = {"va": "center", "fontsize": 6.5, "fontstyle": "italic", "in_layout": columns == 1}
        axes.text(0.045 * columns, row["row"], row["failure"], transform=across, **look)


def head_panel(axes: Axes, panel: str, failed: pd.DataFrame) -> None:
    """Head a panel of lines with its name and, since they have no line, the configurations whose runs all failed."""
    lines = panel.split(": ", 1)
    for _, row in failed.iterrows():
        where = f", {row['ranks']} ranks" if "ranks" in row.index else ""
        where += f", {row['links']}" if "links" in row.index else ""
        lines += textwrap.wrap(f"× {row['label']}{where}: {row['failure']}", 62, subsequent_indent="   ")
    axes.set_title("\n".join(lines))

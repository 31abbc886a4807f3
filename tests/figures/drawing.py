"""Figures drawn for a test, and what is read off them."""

from collections import defaultdict

import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from anatomy.figures import FIGURES, _style

UPRIGHT = {"scaling", "slowdown", "bandwidth", "cache", "convergence", "rank_accuracy", "gradient_only"}
"""Figures whose values are heights; those of the others lie on the horizontal axis."""


def drawn_with(name: str, table: pd.DataFrame, **options):
    """(figure, drawn frame) in the study's style."""
    with _style.applied():
        return FIGURES[name].load().draw(table, **options)


def artists_of(figure) -> dict[str, list]:
    """Data artists by what they show, without the underscore that keeps them out of legends."""
    found = defaultdict(list)
    for axes in figure.axes:
        for artist in [*(line for line in axes.lines if len(line.get_xdata())), *axes.patches]:
            found[artist.get_label().removeprefix("_")].append(artist)
    return found


def values_of(name: str, artists: list) -> list[float]:
    """Every value that artists show: lengths of bars, and positions of points along the value's axis."""
    values = []
    for artist in artists:
        if isinstance(artist, Rectangle):
            values.append(artist.get_width())
        else:
            assert isinstance(artist, Line2D)
            values += list(artist.get_ydata() if name in UPRIGHT else artist.get_xdata())
    return sorted(values)


def texts_of(figure) -> str:
    """All words in a figure."""
    words = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        words += [axes.get_title(loc="left"), *(text.get_text() for text in axes.texts)]
        words += [tick.get_text() for tick in axes.get_yticklabels()]
    return " ".join(words).replace("\n", " ")


def mixed(*tables: pd.DataFrame) -> pd.DataFrame:
    """Tables under one another, as a study with own runs and recorded traces has them."""
    return pd.concat(tables, ignore_index=True)

"""The frame of figures that give each configuration a row: a line of axes for each panel, with everything named."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from anatomy.figures import _style
from anatomy.figures._summary import by_panel, lost, row_names


def panels_of_rows(
    title: str,
    drawn: pd.DataFrame,
    width_ratios: Sequence[float] = (1,),
    row_height_in: float = _style.ROW_HEIGHT_IN,
) -> tuple[Figure, np.ndarray, list[pd.DataFrame]]:
    """A figure, its axes, [panels, width ratios], and the marks of each panel.

    `drawn` has the columns `panel`, `row`, `label`, `mark` and `failure`. The first axes of a line have the panel's
    title, the names of its rows, and why all runs of a row failed.
    """
    panels = by_panel(drawn)
    figure, axes = _style.panel_rows(title, [len(row_names(part)) for _, part in panels], width_ratios, row_height_in)
    for line, (panel, part) in zip(axes, panels, strict=True):
        line[0].set_title(panel)
        _style.name_rows(line[0], row_names(part))
        _style.say_failures(line[0], lost(part))
    return figure, axes, [part for _, part in panels]

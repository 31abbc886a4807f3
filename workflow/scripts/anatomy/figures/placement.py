"""What travels under each placement of samplers and feature stores: measured, and predicted."""

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
    row_names,
)

TABLE = "placement"
TITLE = "What travels between ranks, by placement"
COLUMNS = (*RUN_COLUMNS, "samplers", "stores", "together", "measured_bytes_per_epoch", "predicted_bytes_per_epoch")
CAPTION = """
Each row is a placement: which rank samples each rank's batches, and which keeps the features of each part. The
horizontal axis is what all ranks together send each other per epoch in megabytes (millions of bytes): sampled batches,
requests and features, without gradients, warm-up and evaluation. Filled dots are measured at the hand-over to the
transport, means over seeds, with whiskers from the lowest to the highest seed; hollow squares are predicted from the
batches of the run with all together, also where a dot covers their middle. Runs that failed keep their row and say why.
A star marks configurations with more ranks than cores.
"""

DRAWN = (*ROW, "mark", "value", "low", "high", "n", "failure")
_LOOKS = {
    "predicted": {"marker": "s", "markersize": 9, "markerfacecolor": "white", "color": _style.INK},
    "measured": {"marker": "o", "markersize": 4, "color": _style.PALETTE[0]},
}


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per mark, in megabytes (1e6 B); `low` and `high` are the extreme seeds."""
    placed = table[table["samplers"].notna() | (table["status"] != "completed")]
    rows = _labelled(placed)
    found = {}
    for mark, column in (("predicted", "predicted_bytes_per_epoch"), ("measured", "measured_bytes_per_epoch")):
        known = completed(rows).assign(megabytes=as_number(completed(rows)[column]) / 1e6).dropna(subset=["megabytes"])
        totals = known.groupby([*ROW, "run", "seed"], sort=False)["megabytes"].sum().reset_index()
        found[mark] = over_seeds(totals, ROW, "megabytes")
    return marks(DRAWN, **found, failure=failures(rows, ROW))


def _labelled(table: pd.DataFrame) -> pd.DataFrame:
    """Rows told apart by what is where, not by how the config calls it."""
    words = "samplers " + table["samplers"] + ", stores " + table["stores"]
    words = words.mask(table["together"].fillna(False).astype(bool), "all together")
    return labelled(table.assign(strategy=words.fillna(table["strategy"])))


def draw(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no run of this table says where it samples"), drawn
    panels = by_panel(drawn)
    figure, axes = _style.panel_rows(TITLE, [len(row_names(part)) for _, part in panels], (1,))
    for (line,), (panel, part) in zip(axes, panels, strict=True):
        line.set_title(panel)
        _style.name_rows(line, row_names(part))
        _style.say_failures(line, lost(part))
        for mark, look in _LOOKS.items():
            points = part[part["mark"] == mark]
            if not points.empty:
                _style.dots(line, mark, points, **look)
        line.set_xlim(left=0)
        line.margins(x=0.06)
    axes[-1, 0].set_xlabel("Sent between ranks per epoch (MB)")
    handles = [Line2D([], [], linestyle="", **look, label=mark) for mark, look in _LOOKS.items()]
    _style.finish(figure, note(drawn, "Means; whiskers: lowest to highest seed"), handles, ncols=2)
    return figure, drawn

"""What partitioners make of a graph: edge cut, replication and balance, side by side."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from anatomy.figures import _style
from anatomy.figures._summary import as_number

TABLE = "partitions"
TITLE = "Quality of the partitions"
MEASURES = {
    "edge_cut": "Edge cut\n(edges)",
    "replication_factor": "Replication factor\n(copies per node)",
    "balance_nodes": "Balance of nodes\n(max / mean)",
    "balance_train": "Balance of training\nnodes (max / mean)",
}
COLUMNS = ("graph", "partitioner", "num_parts", "edge_cut", "replication_factor", "balance_nodes", "balance_train")
CAPTION = """
Each row is a partitioner; colour and shape tell the number of parts. From left to right: undirected edges whose ends
lie in different parts; replication factor, that is, how many copies of a node exist on average when every part also
holds its halo (1 means no halo); the largest part's number of nodes over the mean part's; the same for training
nodes (1 is perfect balance in both). Smaller is better everywhere. These are properties of the graph and the
partition, whatever the machine. There is one partition for each row and number of parts (n = 1), so there are no
whiskers.
"""

DRAWN = ("panel", "row", "label", "num_parts", "measure", "y", "value")


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn, one row per mark: `value` of `measure` for a partitioner (`label`) and `num_parts`."""
    table = table[as_number(table["num_parts"]) > 1].drop_duplicates(["graph", "partitioner", "num_parts"])
    drawn = table.melt(
        ["graph", "partitioner", "num_parts"], list(MEASURES), var_name="measure", value_name="value"
    ).rename(columns={"graph": "panel", "partitioner": "label"})
    drawn["value"] = as_number(drawn["value"])
    drawn["row"] = drawn.groupby("panel")["label"].rank("dense").astype(int) - 1
    counts = sorted(drawn["num_parts"].unique())
    heights = dict(zip(counts, _style.spread(len(counts), 0.2), strict=True))
    drawn["y"] = drawn["row"] + drawn["num_parts"].map(heights)
    return drawn.dropna(subset=["value"]).reindex(columns=list(DRAWN)).reset_index(drop=True)


def draw(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure, and exactly what it shows."""
    drawn = summarise(table)
    if drawn.empty:
        return _style.no_data(TITLE, "no partition has more than one part"), drawn
    counts = sorted(drawn["num_parts"].unique())
    looks = {parts: {**look, "linestyle": ""} for parts, look in _style.looks(counts).items()}
    panels = list(drawn.groupby("panel"))
    sizes = [part["row"].nunique() for _, part in panels]
    figure, axes = _style.panel_rows(TITLE, sizes, (1,) * len(MEASURES))
    for line, (panel, part) in zip(axes, panels, strict=True):
        line[0].set_title(panel)
        _style.name_rows(line[0], list(part.drop_duplicates("row").sort_values("row")["label"]))
        for cell, measure in zip(line, MEASURES, strict=True):
            shown = part[part["measure"] == measure]
            for parts, points in shown.groupby("num_parts"):
                (dots,) = cell.plot(points["value"], points["y"], **looks[parts])
                _style.mark(dots, measure)
            _style.band_rows(cell, part["row"].nunique())
            cell.grid(False, axis="y")
            cell.tick_params(axis="y", length=0)
            best = 0.0 if measure == "edge_cut" else 1.0
            span = max(shown["value"].max() - best, 0.1)
            cell.set_xlim(best - 0.08 * span, best + 1.1 * span)
            cell.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        line[0].xaxis.set_major_formatter(EngFormatter(sep=""))
    for cell, words in zip(axes[-1], MEASURES.values(), strict=True):
        cell.set_xlabel(words)
    handles = [Line2D([], [], label=f"{parts} parts", **looks[parts]) for parts in counts]
    _style.finish(figure, "One partition for each row and number of parts (n = 1).", handles, ncols=6)
    return figure, drawn

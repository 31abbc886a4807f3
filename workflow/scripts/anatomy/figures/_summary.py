"""From a study table to what is drawn: names for its rows, means and ranges over seeds, runs that failed."""

from collections.abc import Sequence

import pandas as pd

COMPLETED = "completed"
DIMENSIONS = ("strategy", "partitioner", "model", "ranks")
"""What tells the runs of one graph apart, beside the seed."""
RUN_COLUMNS = (
    "run",
    "graph",
    "partitioner",
    "num_parts",
    "strategy",
    "method",
    "model",
    "ranks",
    "hosts",
    "link_mbit",
    "condition",
    "seed",
    "oversubscribed",
    "platform",
    "status",
)
ROW = ("panel", "row", "label")
"""What names a row (or a line) of a figure."""
OVERSUBSCRIBED = "*"
"""Follows the name of runs with more ranks than cores."""
RECORDED = "Traces recorded elsewhere"
"""Heads the panels of what the study did not run: no graph and no strategy is known of it, only its name."""


def labelled(
    table: pd.DataFrame, dimensions: Sequence[str] = DIMENSIONS, panel_by: Sequence[str] = ("graph", "platform")
) -> pd.DataFrame:
    """A copy with `panel` (graph, platform, and what its runs have in common), `label` (what tells them apart), `row`.

    Platforms never share a panel. Rows are in the order in which they are shown; `row` counts the labels of a panel. A
    label or panel that tells the number of ranks has a star where they are more than the cores. Of

        graph     platform      strategy   partitioner  model  ranks
        powerlaw  CPU and Gloo  minibatch  metis        sage   2
        powerlaw  CPU and Gloo  minibatch  random       sage   2

    the panel is "powerlaw, CPU and Gloo: minibatch, sage, 2 ranks" and the labels are "metis" and "random". Traces
    recorded elsewhere, which have no graph, are told apart by their names and each count as one seed, 0.
    """
    parts = [table.assign(panel="", label="", row=0).head(0)]
    table = table.assign(seed=table["seed"].fillna(0))
    for heads, part in table.groupby(list(panel_by), dropna=False):
        told_by = [*dimensions] if part["graph"].notna().any() else ["run", "ranks"]
        told_by += ["hosts"] if part["hosts"].gt(1).any() else []
        told_by += [name for name in ("link_mbit", "condition") if part[name].notna().any()]
        varying = [name for name in told_by if part[name].nunique(dropna=False) > 1] or [told_by[0]]
        common = [name for name in told_by if name not in varying]
        head = ", ".join(_head(*pair) for pair in zip(panel_by, heads, strict=True))
        part = part.sort_values([*varying, "seed"], kind="stable")
        labels = [_name(row, varying) for _, row in part.iterrows()]
        order = {label: row for row, label in enumerate(dict.fromkeys(labels))}
        panel = ": ".join(filter(None, [head, _name(part.iloc[0], common)]))
        parts.append(part.assign(panel=panel, label=labels, row=[order[label] for label in labels]))
    return pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)


def over_seeds(table: pd.DataFrame, keys: Sequence[str], value: str) -> pd.DataFrame:
    """Mean, lowest, highest and number of seeds of `value` per group of `keys`: columns `value`, `low`, `high`, `n`.

    Groups come in order of their first row; missing values do not count.
    """
    known = table.assign(value=as_number(table[value])).dropna(subset=["value"])
    groups = known.groupby(list(keys), sort=False, observed=True)
    return groups.agg(
        value=("value", "mean"), low=("value", "min"), high=("value", "max"), n=("seed", "nunique")
    ).reset_index()


def failures(table: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Groups of `keys` in which runs failed, with `failure` in words, such as "out of memory (2 of 3 seeds)"."""
    runs = table.drop_duplicates("run")
    rows = []
    for names, group in runs.groupby(list(keys), sort=False, dropna=False):
        failed = group.loc[group["status"] != COMPLETED]
        if not failed.empty:
            reasons = ", ".join(sorted(failed["status"].astype(str).unique()))
            words = f"{reasons} ({len(failed)} of {len(group)} seed{'s' if len(group) > 1 else ''})"
            words = reasons if group["graph"].isna().all() else words
            rows.append({**dict(zip(keys, names, strict=True)), "failure": words, "n": len(failed)})
    return pd.DataFrame(rows, columns=[*keys, "failure", "n"])


def completed(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of runs that came to their end."""
    return table[table["status"] == COMPLETED]


def as_number(column: pd.Series) -> pd.Series:
    """A column as float64, with NaN for what is missing."""
    return pd.to_numeric(column, errors="coerce").astype("float64")


def marks(columns: Sequence[str], **frames: pd.DataFrame) -> pd.DataFrame:
    """Frames of what is drawn under one another, each with its name in the column `mark`, reduced to `columns`."""
    parts = [frame.assign(mark=name).reindex(columns=columns) for name, frame in frames.items() if len(frame)]
    shown = pd.concat([part.dropna(axis=1, how="all") for part in parts] or [pd.DataFrame()], ignore_index=True)
    return shown.reindex(columns=list(columns))


def by_panel(drawn: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """What is drawn in each panel, in order of the panels' names."""
    return list(drawn.groupby("panel", sort=True))


def row_names(panel: pd.DataFrame) -> list[str]:
    """The labels of a panel's rows, from the top."""
    return list(panel.drop_duplicates("row").sort_values("row")["label"])


def lost(panel: pd.DataFrame, places: Sequence[str] = ("row",)) -> pd.DataFrame:
    """The failures at places that have nothing else to show; the others are told by `note`."""
    failed = panel["mark"] == "failure"
    where = panel[list(places)].apply(tuple, axis=1) if len(panel) else panel["row"]
    return panel[failed & ~where.isin(set(where[~failed]))]


def note(drawn: pd.DataFrame, shown: str, places: Sequence[str] = ("row",)) -> str:
    """The line below a figure: what its marks are, how many seeds, partial failures, what a star means."""
    counted = drawn[drawn["mark"] != "failure"]
    recorded = counted["panel"].astype(str).str.startswith(RECORDED)
    sizes = [_size(counted[~recorded])] if len(counted[~recorded]) or not recorded.any() else []
    if recorded.any():
        sizes.append("n = 1 for traces recorded elsewhere")
    words = [f"{shown}; {'; '.join(sizes)}."]
    partial = pd.concat([part.drop(lost(part, places).index).query("mark == 'failure'") for _, part in by_panel(drawn)])
    for failure, rows in partial.groupby("failure"):
        names = [
            ", ".join([row["label"], *(_word(name, row[name]) for name in places[1:])]) for _, row in rows.iterrows()
        ]
        words.append(f"{failure[0].upper()}{failure[1:]}: {'; '.join(dict.fromkeys(names))}.")
    if any(drawn[name].astype(str).str.endswith(OVERSUBSCRIBED).any() for name in ("label", "panel")):
        words.append(f"{OVERSUBSCRIBED} more ranks than cores.")
    return " ".join(words)


def _size(counted: pd.DataFrame) -> str:
    counts = sorted({int(count) for count in counted["n"].dropna()})
    size = f"n = {counts[0]}–{counts[-1]}" if len(counts) > 1 else f"n = {counts[0]}" if counts else "n = 0"
    return f"{size} {'seed' if counts == [1] else 'seeds'}"


def _head(column: str, value: object) -> str:
    if pd.notna(value):
        return str(value)
    return RECORDED if column == "graph" else f"{column} unknown"


def _name(row: pd.Series, dimensions: Sequence[str]) -> str:
    crowded = "ranks" in dimensions and pd.notna(row["oversubscribed"]) and bool(row["oversubscribed"])
    return ", ".join(_word(name, row[name]) for name in dimensions) + (OVERSUBSCRIBED if crowded else "")


def _word(dimension: str, value: object) -> str:
    if dimension == "link_mbit":
        return "unshaped links" if pd.isna(value) else f"links of {value} Mbit/s"
    if dimension == "condition":
        return "undisturbed" if pd.isna(value) else str(value)
    if pd.isna(value):
        return f"{dimension} unknown"
    if dimension == "ranks":
        return "1 rank" if value == 1 else f"{value} ranks"
    if dimension == "hosts":
        return "1 host" if value == 1 else f"{value} hosts"
    return str(value)

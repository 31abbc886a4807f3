"""Columns of the study tables: the data dictionary's entries, and the columns that name a run."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import pandas as pd


@dataclass(frozen=True)
class Column:
    """One column.

    `dtype` is a nullable pandas dtype (`string`, `Int64`, `Float64`, `boolean`); `unit` is empty for names and counts.
    `description` says what is in it, and over which ranks and steps or epochs, with or without warm-up and evaluation.
    """

    dtype: str
    unit: str
    description: str


Columns = dict[str, Column]

RUN_COLUMNS: Columns = {
    "run": Column(
        "string",
        "",
        "name of the run: {graph}.{partitioner}-{num_parts}.{strategy}.{model}.s{seed}, with .h{hosts} before the seed "
        "where there are several, .l{link_mbit} where their links were given a bandwidth, and .c-{condition} under a "
        "condition; of traces recorded elsewhere, the name that they have in the config, and what traces do not tell "
        "is missing",
    ),
    "graph": Column("string", "", "graph trained on"),
    "partitioner": Column("string", "", "partitioner, as named in the config; `single` for one part"),
    "num_parts": Column("Int64", "", "parts of the partition"),
    "strategy": Column("string", "", "strategy, as named in the config"),
    "method": Column("string", "", "method of the strategy: minibatch, fullgraph, …"),
    "model": Column("string", "", "model, as named in the config"),
    "ranks": Column("Int64", "", "training processes"),
    "hosts": Column("Int64", "", "hosts that the ranks are spread over, as many on each"),
    "link_mbit": Column(
        "Int64", "Mbit/s", "bandwidth that the hosts' links were given, each way; missing where they were as they are"
    ),
    "condition": Column(
        "string", "", "emulated disturbance of the machine, as named in the config; missing where there was none"
    ),
    "seed": Column("Int64", "", "seed of the run; runs that differ in nothing else are its repetitions"),
    "oversubscribed": Column(
        "boolean",
        "",
        "more ranks x threads than cores (on GPUs: more ranks than GPUs) on the machine that ran it; decides nothing",
    ),
    "platform": Column(
        "string",
        "",
        "device and transport: `CPU and Gloo` or `GPU and NCCL`, and `CPU` or `GPU` of traces recorded elsewhere that "
        "show no communication; platforms are never compared",
    ),
    "status": Column(
        "string",
        "",
        "`completed`, or why there are no numbers: `out of memory`, `time limit`, `not profiled`, `no GPU`",
    ),
}
"""The columns that lead every table of runs."""


def as_frame(rows: list[Mapping[str, object]] | pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """A table with exactly `columns`, in their order and dtypes; a value that a row does not give is missing."""
    frame = pd.DataFrame(rows).reindex(columns=list(columns))
    return frame.astype({name: column.dtype for name, column in columns.items()}).reset_index(drop=True)


def dictionary(columns: Columns) -> dict[str, dict[str, str]]:
    """The data dictionary as it stands in a table's manifest."""
    return {name: asdict(column) for name, column in columns.items()}

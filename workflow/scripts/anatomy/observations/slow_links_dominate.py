"""Is a step over slow links mostly communication, whatever the strategy?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.observations.common.evidence import COMPLETED, Repetitions, by_configuration, chosen, per_run, repetitions

CLAIM = (
    "Over slow links (100 Mbit/s unless told otherwise), communication that nothing hides takes more than half of a "
    "step under every strategy."
)
SOURCE = (
    "BNS-GCN (Wan et al., MLSys 2022) finds the cost of bringing boundary nodes to other ranks to be what keeps "
    "full-graph training from scaling; that slow links do so to every strategy, and the threshold, are this study's own"
)
TABLE = "bandwidth"
FIGURE = "bandwidth"
STATISTIC = (
    "exposed communication over wall time, sums over ranks and profiled steps of runs whose hosts' links have the "
    "bandwidth `link_mbit`; the configuration with the smallest share"
)
UNIT = "share of a step"
DIRECTION = ">"
THRESHOLD = 0.5
OPTIONS = {
    "properties": {
        "link_mbit": {
            "type": "integer",
            "minimum": 1,
            "default": 100,
            "description": "Bandwidth of the links that the claim is about, in Mbit/s.",
        },
    },
    "required": [],
}


def values(table: pd.DataFrame, options: Mapping[str, Any]) -> Repetitions:
    """One share per seed, from the table `bandwidth`."""
    rows = chosen(table, options, timed=True, link_mbit=options["link_mbit"])
    return repetitions(per_run(rows, "exposed_s_per_step", "profiled_step_s"), DIRECTION)


def notes(table: pd.DataFrame, options: Mapping[str, Any]) -> dict[str, Any]:
    """Mean share and mean epoch time of every configuration at every bandwidth, as far as they are known."""
    rows = chosen(table[table["status"] == COMPLETED], options, timed=True)
    shares = rows.assign(value=rows["exposed_s_per_step"] / rows["profiled_step_s"]).dropna(subset=["value"])
    timed = rows.rename(columns={"epoch_s": "value"}).dropna(subset=["value"])
    return {
        "share_by_configuration": by_configuration(shares),
        "epoch_s_by_configuration": by_configuration(timed),
    }

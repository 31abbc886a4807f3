"""Self time of operators and GPU kernels."""

import numpy as np
import pandas as pd

from anatomy.traces.communication import WORK_PREFIXES
from anatomy.traces.intervals import clip, innermost, spans_of, total_length, union
from anatomy.traces.naming import Category, category_of
from anatomy.traces.reading import GPU_KINDS, by_name


def operator_times(events: pd.DataFrame, steps: dict[int, tuple[int, int]], computing: np.ndarray) -> pd.DataFrame:
    """Calls and self time by step, category, name and device.

    An operator's self time is what it spends outside of the operators that it calls on its thread. Operators that
    communicate (not `computing`, bool [n]) do not count the time in which the backend's threads work for them, which is
    the backend's self time. A kernel's is its duration, so kernels that run at the same time both count. What starts
    within a step belongs to it.

    Columns: step, category, name, device (cpu or cuda), calls, self_ns.
    """
    windows = np.array(list(steps.values()), dtype=np.int64).reshape(-1, 2)
    backend = (events["kind"] == "annotation") & events["name"].str.startswith(WORK_PREFIXES)
    chosen = events["kind"].isin((*GPU_KINDS, "op")) | backend
    on_gpu = events["kind"].isin(GPU_KINDS)
    self_ns = np.where(on_gpu, events["end_ns"] - events["start_ns"], 0)
    on_cpu = np.flatnonzero((chosen & ~on_gpu).to_numpy())
    work = union(spans_of(events.loc[backend, "start_ns"], events.loc[backend, "end_ns"]))
    self_ns[on_cpu] = _self_times(events.iloc[on_cpu], computing[on_cpu] | backend.to_numpy()[on_cpu], work)
    index = np.searchsorted(windows[:, 0], events["start_ns"].to_numpy(), side="right") - 1
    inside = (index >= 0) & (events["start_ns"].to_numpy() < windows[index, 1])
    rows = pd.DataFrame(
        {
            "step": np.array(list(steps), dtype=np.int64)[index],
            "category": _categories(events, computing),
            "name": events["name"].astype(object),
            "device": np.where(on_gpu, "cuda", "cpu"),
            "self_ns": self_ns,
        }
    )[chosen.to_numpy() & inside]
    groups = rows.groupby(["step", "category", "name", "device"], sort=True)["self_ns"]
    return groups.agg(calls="size", self_ns="sum").reset_index()


def _categories(events: pd.DataFrame, computing: np.ndarray) -> np.ndarray:
    """Categories by name, where an unclassified operator that communicates is communication [n]."""
    categories = by_name(events, category_of, object)
    blocks = (events["kind"] == "op").to_numpy() & ~computing & (categories == Category.UNCLASSIFIED)
    categories[blocks] = Category.COMMUNICATION
    return categories


def _self_times(events: pd.DataFrame, own: np.ndarray, work: np.ndarray) -> np.ndarray:
    """Self times in ns of operators [n]; those not `own` lose what lies within the backend's `work`, disjoint spans."""
    result = np.zeros(len(events), dtype=np.int64)
    threads = events["thread"].cat.codes.to_numpy()
    for thread in np.unique(threads):
        chosen = np.flatnonzero(threads == thread)
        pieces, owner = innermost(spans_of(events["start_ns"].iloc[chosen], events["end_ns"].iloc[chosen]))
        owner = chosen[owner]
        np.add.at(result, owner, pieces[:, 1] - pieces[:, 0])
        for blocked in np.flatnonzero(~own[owner]):
            result[owner[blocked]] -= total_length(clip(work, *pieces[blocked]))
    return result

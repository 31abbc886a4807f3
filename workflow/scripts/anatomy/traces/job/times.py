"""Sums of all ranks' time, by step and by phase."""

from collections.abc import Mapping

import numpy as np

from anatomy.phases import PREPARATION
from anatomy.traces.columns import MISSING, Columns, Named
from anatomy.traces.job.waiting import STATES
from anatomy.traces.rank.annotations import PHASES
from anatomy.traces.rank.decomposition import CATEGORIES, COMMUNICATION, COMPUTE, COPYING, IDLE, OTHER, PREPARING
from anatomy.traces.rank.record import RankRecord

EXPOSED, OVERLAPPED = 0, 1
WAITING, TRANSFER, UNKNOWN = range(len(STATES))


def time_tables(records: Mapping[int, RankRecord], states: Mapping[int, Columns]) -> tuple[Columns, Columns]:
    """The tables `steps` and `phases`.

    `states` are each rank's pieces of communication split into waiting and transfer. A phase has a row in every step of
    a rank in which it occurs at all.
    """
    windows = [(rank, step, *window) for rank, record in records.items() for step, window in record.steps.items()]
    place = {(rank, step): row for row, (rank, step, *_) in enumerate(windows)}
    rank, step, start, end = np.array(windows, dtype=np.int64).T
    spent, communication, calls = _totals(records, states, place)
    silent = np.array([not records[number].communicates for number in rank.tolist()])

    steps = {"rank": rank, "step": step, "start_ns": start, "wall_ns": end - start}
    steps |= _own(spent.sum(axis=1))
    steps |= {f"prep_{name}_ns": spent[:, PHASES.index(name), PREPARING] for name in PREPARATION}
    steps |= _communication(spent.sum(axis=1), communication.sum(axis=1), silent)

    occurs = (spent.any(axis=2) | communication.any(axis=(2, 3)) | (calls > 0)).astype(np.int8)
    for number in records:
        occurs[rank == number] = occurs[rank == number].max(axis=0)
    row, phase = np.nonzero(occurs)
    phases = {"rank": rank[row], "step": step[row], "phase": Named(phase, PHASES)}
    phases |= {"calls": calls[row, phase], "total_ns": spent[row, phase].sum(axis=1)}
    phases |= _own(spent[row, phase])
    within = _communication(spent[row, phase], communication[row, phase], silent[row])
    phases |= {name.replace("_exposed", ""): values for name, values in within.items()}
    check_sums(steps, phases)
    return steps, phases


def check_sums(steps: Columns, phases: Columns) -> None:
    """Assert that the parts of every step add up to its wall time, to the nanosecond, by category and by phase."""
    own = sum(steps[f"{name}_ns"] for name in ("compute", "preparation", "copy", "idle", "other"))
    exposed = np.where(steps["comm_exposed_ns"] == MISSING, 0, steps["comm_exposed_ns"])
    assert (own + exposed == steps["wall_ns"]).all(), "the categories of a step do not add up to its wall time"
    preparation = sum(steps[f"prep_{name}_ns"] for name in PREPARATION)
    assert (preparation == steps["preparation_ns"]).all(), "the phases of preparation do not add up to it"
    for kind in ("comm_exposed", "comm_overlapped"):
        wait, transfer = steps[f"{kind}_wait_ns"], steps[f"{kind}_transfer_ns"]
        split = (wait == MISSING) | (wait + transfer == steps[f"{kind}_ns"])
        assert split.all(), f"waiting and transfer do not add up to {kind}_ns"
    starts = np.flatnonzero(np.append(True, np.diff(phases["rank"]) | np.diff(phases["step"])))
    totals = np.add.reduceat(phases["total_ns"], starts)
    assert (totals == steps["wall_ns"]).all(), "the phases of a step do not add up to its wall time"


def _totals(
    records: Mapping[int, RankRecord], states: Mapping[int, Columns], place: Mapping[tuple[int, int], int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By row of `place` and phase: time by category [rows, phases, categories]; communication by whether it is
    overlapped and state [rows, phases, 2, states]; and calls [rows, phases]; all int64."""
    shape = (len(place), len(PHASES))
    spent = np.zeros((*shape, len(CATEGORIES)), dtype=np.int64)
    communication = np.zeros((*shape, 2, len(STATES)), dtype=np.int64)
    calls = np.zeros(shape, dtype=np.int64)
    for rank, record in records.items():

        def rows_of(table: Columns, rank: int = rank) -> np.ndarray:
            numbers, index = np.unique(table["step"], return_inverse=True)
            return np.array([place[rank, step] for step in numbers.tolist()], dtype=np.int64)[index]

        sums, count, state = record.sums, record.calls, states[rank]
        np.add.at(spent, (rows_of(sums), sums["phase"], sums["category"]), sums["ns"])
        np.add.at(calls, (rows_of(count), count["phase"]), count["calls"])
        rows, overlapped = rows_of(state), state["overlapped"].astype(np.int64)
        for number, name in enumerate(STATES):
            np.add.at(communication, (rows, state["phase"], overlapped, number), state[name])
    return spent, communication, calls


def _own(spent: np.ndarray) -> Columns:
    """Time [n, categories] by the names of columns, but that of communication."""
    names = {"compute": COMPUTE, "preparation": PREPARING, "copy": COPYING, "idle": IDLE, "other": OTHER}
    return {f"{name}_ns": spent[:, category] for name, category in names.items()}


def _communication(spent: np.ndarray, states: np.ndarray, silent: np.ndarray) -> Columns:
    """Communication from time by category [n, categories] and by state [n, 2, states].

    It is `MISSING` where a rank is `silent`, bool [n], and its split where any of it is unknown.
    """
    assert (states[:, EXPOSED].sum(axis=1) == spent[:, COMMUNICATION]).all(), "exposed communication is not all split"
    result = {}
    for kind, name in ((EXPOSED, "comm_exposed"), (OVERLAPPED, "comm_overlapped")):
        unknown = silent | (states[:, kind, UNKNOWN] > 0)
        result[f"{name}_ns"] = np.where(silent, MISSING, states[:, kind].sum(axis=1))
        result[f"{name}_wait_ns"] = np.where(unknown, MISSING, states[:, kind, WAITING])
        result[f"{name}_transfer_ns"] = np.where(unknown, MISSING, states[:, kind, TRANSFER])
    return result

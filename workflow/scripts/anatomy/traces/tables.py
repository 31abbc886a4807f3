"""The tables of this stage: their columns, types and meaning."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anatomy.arrow import TYPES, named, numbers, texts
from anatomy.traces.columns import MISSING, Named
from anatomy.traces.rank.annotations import PHASES
from anatomy.traces.rank.decomposition import CATEGORIES

RANK_AND_STEP = {
    "rank": ("int32", "rank whose trace this is from"),
    "step": ("int64", "number of the profiled step (ProfilerStep#N); 0 where the whole window counts as one step"),
}

COMMUNICATION_TIMES = {
    "comm_exposed_ns": ("int64", "communication while nothing is computed; missing without any communication"),
    "comm_exposed_wait_ns": (
        "int64",
        "of it, waiting for ranks that have not arrived; missing where ranks are missing",
    ),
    "comm_exposed_transfer_ns": ("int64", "of it, the rest; missing where ranks are missing"),
    "comm_overlapped_ns": ("int64", "communication while something is computed; not part of the sum"),
    "comm_overlapped_wait_ns": ("int64", "of it, waiting for ranks that have not arrived; missing as above"),
    "comm_overlapped_transfer_ns": ("int64", "of it, the rest; missing as above"),
}

OWN_TIMES = {
    "compute_ns": ("int64", "time in computation"),
    "preparation_ns": ("int64", "sampling, fetching, gathering and copying a mini-batch, without communication"),
    "prep_sample_ns": ("int64", "of preparation, phase sample"),
    "prep_fetch_ns": ("int64", "of preparation, phase fetch without its communication: packing and unpacking"),
    "prep_gather_ns": ("int64", "of preparation, phase gather"),
    "prep_copy_ns": ("int64", "of preparation, phase copy"),
    "copy_ns": ("int64", "memory copies between host and device that no phase of preparation launched"),
    "idle_ns": ("int64", "time in which the GPU has nothing to do and is not waiting for preparation; 0 on a CPU"),
    "other_ns": ("int64", "what is none of these: on a CPU, outside of operators in exchange, sync and between phases"),
}

COLUMNS: dict[str, dict[str, tuple[str, str]]] = {
    "steps": {
        **RANK_AND_STEP,
        "annotated": ("bool", "whether the step is a ProfilerStep; else the whole window of the trace counts as one"),
        "trace_kind": ("string", "cuda-nccl, cuda, cpu-gloo or cpu: what the job ran on and communicated with"),
        "start_ns": ("int64", "start of the step by the trace's own clock, since 1970"),
        "wall_ns": ("int64", "its duration = compute + exposed communication + preparation + copy + idle + other"),
        **OWN_TIMES,
        **COMMUNICATION_TIMES,
    },
    "phases": {
        **RANK_AND_STEP,
        "phase": ("phase", "phase; of nested ones, the innermost; other is where none is annotated"),
        "calls": ("int64", "how many annotations of the phase start in the step"),
        "total_ns": ("int64", "time in the phase, without phases nested in it; over the phases, the step's wall time"),
        **{name: meaning for name, meaning in OWN_TIMES.items() if not name.startswith("prep_")},
        **{name.replace("_exposed", ""): meaning for name, meaning in COMMUNICATION_TIMES.items()},
    },
    "collectives": {
        "collective": ("int64", "index by first arrival; the ranks' rows of a matched one share it"),
        "group": ("string", "process group; `default` where the trace names none"),
        "sequence": ("int64", "sequence number within the group, where the trace has one"),
        "kind": (
            "string",
            "all_reduce, all_to_all, broadcast, all_gather, reduce_scatter, send_recv, barrier, other; all_to_all_v: "
            "messages of any size between the ranks of a group, annotated as one",
        ),
        "phase": ("phase", "phase in which it was launched"),
        **RANK_AND_STEP,
        "bytes": ("int64", "larger of the rank's input and output; missing where the trace has no sizes"),
        "group_size": ("int64", "ranks in the group"),
        "start_ns": ("int64", "arrival of the rank, by its own clock"),
        "end_ns": ("int64", "end on this rank, by its own clock"),
        "arrival_ns": ("int64", "arrival by the reference rank's clock; missing where the clocks can't be compared"),
        "wait_ns": ("int64", "from the rank's arrival to the last arrival; missing where not matched"),
        "transfer_ns": ("int64", "the rest of its duration; missing where not matched"),
        "straggler": ("int32", "rank that arrived last; missing where not matched"),
        "matched": ("bool", "whether all ranks of the group have it"),
        "matched_by": ("string", "`sequence` number, or `order` within group and step; missing where not matched"),
        "algorithm_bandwidth": ("float64", "bytes per second as NCCL's tests define it; missing without bytes"),
        "bus_bandwidth": ("float64", "the same, times what the kind sends over a link for each byte of its result"),
        "bandwidth_of": (
            "string",
            "`transfer`: over transfer_ns; `duration`: over start to end, waiting included, hence a lower bound",
        ),
    },
    "clocks": {
        "rank": RANK_AND_STEP["rank"],
        "offset_ns": ("int64", "this rank's clock less the reference rank's; missing where it can't be known"),
        "uncertainty_ns": ("int64", "the true offset lies within offset ± this; missing where it can't be known"),
        "method": (
            "string",
            "reference; exchange: messages during the run; collectives: their ends and arrivals; unknown",
        ),
        "collectives": ("int64", "collectives that the estimate rests on"),
    },
    "operators": {
        **RANK_AND_STEP,
        "category": ("string", "sparse, sampling, dense, elementwise, reduction, copy, communication, unclassified"),
        "name": ("string", "name of the operator or GPU kernel"),
        "device": ("string", "cpu or cuda"),
        "calls": ("int64", "how often it started in the step"),
        "self_ns": ("int64", "time in it and not in operators that it calls, summed over calls"),
    },
    "queueing": {
        **RANK_AND_STEP,
        "stream": ("int64", "stream of the GPU"),
        "kernels": ("int64", "kernels that start in the step, without communication"),
        "kernel_ns": ("int64", "sum of their durations"),
        "mean_kernel_ns": ("int64", "their mean duration"),
        "short_kernels": ("int64", "of them, those shorter than 10 us, which take no longer than their launch"),
        "launched": ("int64", "of them, those whose launch the trace has"),
        "delay_mean_ns": ("int64", "from the start of the launching call to the kernel's start: mean"),
        "delay_median_ns": ("int64", "the same: median"),
        "delay_p95_ns": ("int64", "the same: 95th percentile"),
    },
    "idle": {
        **RANK_AND_STEP,
        "not_computing_ns": ("int64", "time in which the GPU computes nothing: the sum of the following"),
        "communication_bound_ns": ("int64", "communication is running"),
        "copy_bound_ns": ("int64", "else a copy over the GPU's border is running"),
        "synchronisation_ns": ("int64", "the next work is not launched since the host waits for the GPU"),
        "host_bound_ns": ("int64", "the next work is not launched since the host does something else"),
        "launched_ns": ("int64", "the next work is launched and has not started"),
        "unknown_ns": ("int64", "the trace does not say when the next work was launched"),
    },
    "intervals": {
        **RANK_AND_STEP,
        "start_ns": ("int64", "start, by the rank's own clock"),
        "end_ns": ("int64", "end, by the rank's own clock"),
        "category": ("string", "compute, communication, preparation, copy, idle, other"),
        "phase": ("phase", "phase that it belongs to"),
        "stream": ("string", "`rank`: the rank as a whole, without gap or overlap; else one GPU stream or CPU thread"),
    },
    "critical_path": {
        "step": RANK_AND_STEP["step"],
        "place": ("int64", "place in the chain that determined the step's length over all ranks, from 0"),
        "rank": ("int32", "rank that it happens on; of a transfer, the one that goes on from there"),
        "element": ("string", "`phase`: work of one rank in one phase; `transfer`: a collective from its last arrival"),
        "phase": ("phase", "phase"),
        "category": ("category", "what fills most of it: compute, communication, preparation, copy, idle, other"),
        "collective": ("int64", "the collective of a transfer"),
        "start_ns": ("int64", "start, by the reference rank's clock"),
        "end_ns": ("int64", "end, by the reference rank's clock"),
        "length_ns": ("int64", "end - start"),
        "slack_to_next_ns": ("int64", "by how much it would have to shrink before another chain determines the step"),
    },
}

CODED = {"phase": PHASES, "category": CATEGORIES}
"""Columns of names that may be given as codes, which are indices into these."""

NOTHING = np.empty(0, dtype=np.int64)

ROWS_AT_ONCE = 100_000
"""Rows that are encoded together: all that the writer holds beside the table."""


def write_tables(folder: Path, tables: Mapping[str, Mapping[str, np.ndarray | Named]]) -> dict[str, Any]:
    """Write every table as Parquet and return what the manifest says about them; a table not given is empty."""
    described = {}
    for table, columns in COLUMNS.items():
        given = tables.get(table, {})
        arrays = [_array(given.get(name, NOTHING), kind) for name, (kind, _) in columns.items()]
        pq.write_table(
            pa.table(arrays, names=list(columns)),
            folder / f"{table}.parquet",
            row_group_size=ROWS_AT_ONCE,
            use_dictionary=[name for name, (kind, _) in columns.items() if kind not in TYPES],
            # Without Arrow's own schema in the file, text is text for every reader, however it is encoded.
            store_schema=False,
        )
        meanings = {name: meaning for name, (_, meaning) in columns.items()}
        described[table] = {"rows": len(arrays[0]), "columns": meanings}
    return described


def _array(column: np.ndarray | Named, kind: str) -> pa.Array:
    if kind == "float64":
        return numbers(column, kind, ~np.isnan(column))
    if kind in TYPES:
        return numbers(column, kind, column != MISSING if column.dtype == np.int64 else None)
    if kind in CODED and isinstance(column, np.ndarray):
        column = Named(column, CODED[kind])
    return named(column.codes, column.names) if isinstance(column, Named) else texts(column)

"""The tables of this stage: their columns, types and meaning."""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

RANK_AND_STEP = {
    "rank": ("int32", "rank whose trace this is from"),
    "step": ("int64", "number of the profiled step (ProfilerStep#N); 0 where the whole window counts as one step"),
}

TIMES = {
    "compute_ns": ("int64", "time in computation"),
    "comm_exposed_ns": ("int64", "communication while nothing is computed; missing without any communication"),
    "comm_exposed_wait_ns": (
        "int64",
        "of it, waiting for ranks that have not arrived; missing where ranks are missing",
    ),
    "comm_exposed_transfer_ns": ("int64", "of it, the rest; missing where ranks are missing"),
    "comm_overlapped_ns": ("int64", "communication while something is computed; not part of the sum"),
    "preparation_ns": ("int64", "sampling, fetching, gathering and copying a mini-batch, without communication"),
    "prep_sample_ns": ("int64", "of preparation, phase sample"),
    "prep_fetch_ns": ("int64", "of preparation, phase fetch without its communication: packing and unpacking"),
    "prep_gather_ns": ("int64", "of preparation, phase gather"),
    "prep_copy_ns": ("int64", "of preparation, phase copy, and copies between host and device"),
    "idle_ns": ("int64", "time in which the GPU has nothing to do and is not waiting for preparation; 0 on a CPU"),
    "other_ns": ("int64", "what is none of these: on a CPU, outside of operators in exchange, sync and between phases"),
}

COLUMNS: dict[str, dict[str, tuple[str, str]]] = {
    "steps": {
        **RANK_AND_STEP,
        "start_ns": ("int64", "start of the step by the trace's clock"),
        "wall_ns": ("int64", "its duration = compute + exposed communication + preparation + idle + other"),
        **TIMES,
    },
    "phases": {
        **RANK_AND_STEP,
        "phase": ("string", "phase; of nested ones, the innermost; other is where none is annotated"),
        "calls": ("int64", "how many annotations of the phase start in the step"),
        "total_ns": ("int64", "time in the phase, without phases nested in it; over the phases, the step's wall time"),
        "compute_ns": TIMES["compute_ns"],
        "comm_ns": TIMES["comm_exposed_ns"],
        "comm_wait_ns": TIMES["comm_exposed_wait_ns"],
        "comm_transfer_ns": TIMES["comm_exposed_transfer_ns"],
        "comm_overlapped_ns": TIMES["comm_overlapped_ns"],
        "preparation_ns": TIMES["preparation_ns"],
        "idle_ns": TIMES["idle_ns"],
        "other_ns": TIMES["other_ns"],
    },
    "collectives": {
        "collective": ("int64", "index by first arrival; the ranks' rows of a matched one share it"),
        "group": ("string", "process group; `default` where the trace names none"),
        "sequence": ("int64", "sequence number within the group, where the trace has one"),
        "kind": ("string", "all_reduce, all_to_all, broadcast, all_gather, reduce_scatter, send_recv, barrier, other"),
        "phase": ("string", "phase in which it was launched"),
        **RANK_AND_STEP,
        "bytes": ("int64", "larger of the rank's input and output; missing where the trace has no sizes"),
        "group_size": ("int64", "ranks in the group"),
        "start_ns": ("int64", "arrival of the rank"),
        "end_ns": ("int64", "end on this rank"),
        "wait_ns": ("int64", "from the rank's arrival to the last arrival; missing where not matched"),
        "transfer_ns": ("int64", "the rest of its duration; missing where not matched"),
        "straggler": ("int32", "rank that arrived last; missing where not matched"),
        "matched": ("bool", "whether all ranks of the group have it"),
    },
    "operators": {
        **RANK_AND_STEP,
        "category": ("string", "sparse, sampling, dense, elementwise, reduction, copy, communication, unclassified"),
        "name": ("string", "name of the operator or GPU kernel"),
        "device": ("string", "cpu or cuda"),
        "calls": ("int64", "how often it started in the step"),
        "self_ns": ("int64", "time in it and not in operators that it calls, summed over calls"),
    },
    "intervals": {
        **RANK_AND_STEP,
        "start_ns": ("int64", "start"),
        "end_ns": ("int64", "end"),
        "category": ("string", "compute, communication, preparation, idle, other"),
        "phase": ("string", "phase that it belongs to"),
        "stream": ("string", "`rank`: the rank as a whole, without gap or overlap; else one GPU stream or CPU thread"),
    },
}

TYPES = {"int32": pa.int32(), "int64": pa.int64(), "string": pa.string(), "bool": pa.bool_()}


def schema_of(table: str) -> pa.Schema:
    """The Arrow schema of a table; every column may have missing values where its meaning says so."""
    return pa.schema([(name, TYPES[kind]) for name, (kind, _) in COLUMNS[table].items()])


def write_tables(folder: Path, tables: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """Write every table as Parquet and return what the manifest says about them; a table not given is empty."""
    described = {}
    for table, columns in COLUMNS.items():
        frame = tables.get(table, pd.DataFrame(columns=list(columns)))
        content = pa.Table.from_pandas(frame[list(columns)], schema=schema_of(table), preserve_index=False)
        pq.write_table(content.replace_schema_metadata(), folder / f"{table}.parquet")
        meanings = {name: meaning for name, (_, meaning) in columns.items()}
        described[table] = {"rows": len(frame), "columns": meanings}
    return described

"""`metis`: multilevel partitioning by METIS, through pymetis, in a process of its own.

Karypis & Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs", SIAM J. Sci. Comput.
20(1), 1998. With `objective: volume`, METIS lowers the communication volume instead of the cut, which only its k-way
scheme can. METIS may end the interpreter instead of raising an exception; in a process of its own that is a message.
The process opens the stored graph itself, so nothing is sent to it but a few options, and its memory is gone when it
ends.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anatomy.errors import StudyError
from anatomy.graphs.store import Graph
from anatomy.partitions.methods import _metis_process

log = logging.getLogger(__name__)

SUMMARY = "METIS: multilevel, few cut edges"
PACKAGES = ("pymetis",)
OPTIONS = {
    "properties": {
        "imbalance": {
            "type": "number",
            "minimum": 0.001,
            "maximum": 1,
            "default": 0.03,
            "description": "How far a part may exceed the mean number of nodes, as a share of it (ufactor / 1000).",
        },
        "balance_train": {
            "type": "boolean",
            "default": False,
            "description": "Balance training nodes and other nodes each to that imbalance; cuts more edges.",
        },
        "objective": {
            "type": "string",
            "enum": ["cut", "volume"],
            "default": "cut",
            "description": (
                "What METIS keeps low: edges between parts, or nodes that parts need from others, with edges taken as "
                "undirected."
            ),
        },
        "skew": {
            "type": "number",
            "minimum": 0,
            "exclusiveMaximum": 1,
            "description": "How unequal the parts are to be: their sizes fall evenly from (1 + skew) times the mean, "
            "part 0, to (1 - skew) times; 0.4 in two parts: 0.7 and 0.3 of the nodes. By default they are equal.",
        },
        "attempts": {
            "type": "integer",
            "minimum": 1,
            "maximum": 1000,
            "description": (
                "Seeds that METIS is run with, of which the best is kept; by default 8 million over the number "
                "of stored edges, at least 1 and at most 16."
            ),
        },
    },
    "required": [],
}
SCRIPTS = Path(__file__).parents[3]


def assign(graph: Graph, num_parts: int, options: Mapping[str, Any]) -> np.ndarray:
    """The part of each node, int32 [num_nodes]; no part is empty.

    Raises StudyError, naming graph and number of parts, where METIS does not end well.
    """
    if num_parts == 1:
        return np.zeros(graph.num_nodes, dtype=np.int32)
    return in_own_process(graph, num_parts, options)


def in_own_process(graph: Graph, num_parts: int, options: Mapping[str, Any]) -> np.ndarray:
    """What `_metis_process.best_assignment` returns for a graph with edges or without, and at least two parts."""
    with tempfile.TemporaryDirectory(prefix="metis-") as folder:
        job = {"graph": str(graph.path), "num_parts": num_parts, "out": folder, **options}
        process = subprocess.run(
            [sys.executable, "-P", "-m", _metis_process.__name__, json.dumps(job)],
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if process.returncode != 0:
            raise StudyError(_failure(graph, num_parts, process.returncode, process.stdout))
        log.info("metis: %s", process.stdout.strip().replace("\n", "; "))
        return np.load(Path(folder) / "assignment.npy", allow_pickle=False)


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(SCRIPTS), os.environ.get("PYTHONPATH")]))
    # METIS allocates and frees arrays of the graph's size on every level; memory that glibc keeps need not be cleared
    # by the kernel each time.
    keep_memory = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
    return os.environ | {"PYTHONPATH": path} | keep_memory


def _failure(graph: Graph, num_parts: int, status: int, said: str) -> str:
    """How METIS ended, for a person."""
    last = "; ".join(said.strip().splitlines()[-3:])
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    remedy = (
        "give it more memory" if status == -signal.SIGKILL else "try another seed, fewer parts or another partitioner"
    )
    return (
        f"{graph.path}: graph {graph.name}: METIS {how} while cutting it into {num_parts} parts, expected a partition"
        f"{f' (it said: {last})' if last else ''}; {remedy}"
    )

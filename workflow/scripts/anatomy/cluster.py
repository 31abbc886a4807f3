"""What a job asks SLURM for: from the run's specification, the graph's size and the cluster's settings.

The values are resources of Snakemake, in the words of its SLURM executor, which makes a call of sbatch of them. A run
on one host is one task, whose program starts the ranks; a run on several is one task per rank, started by srun.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from anatomy.site import Site

Resources = dict[str, int | str]

RUN_RESOURCES = (
    "nodes",
    "tasks",
    "tasks_per_node",
    "tasks_per_gpu",
    "cpus_per_task",
    "mpi",
    "gres",
    "mem_mb",
    "runtime",
    "slurm_account",
    "slurm_partition",
    "qos",
    "constraint",
    "slurm_extra",
)
"""Every resource that a run may have."""

GPUS_PER_RANK = 1
STARTING_MINUTES = 10
"""From a job's start to its first epoch, and from its last to its end: imports, reading a graph, writing results."""
JOB_MINUTES = 60
"""What a job without a time limit of its own (a graph, a partition, traces) gets at its first attempt."""
JOB_MEMORY_MB = 2000

_RANK_MB = {"cpu": 800, "cuda": 4000}
"""What a rank takes beside its graph. On CPUs the laptop study's ranks peak at 0.4 to 0.9 GB with theirs; the value for
CUDA is a guess."""
_HALO = 3
"""Nodes that a rank holds values of, in nodes of its part: its own and those that it gets from others."""
_COPIES = 3
"""Of each layer's values: the result, its gradient, and one on the way."""


def resources_of_run(
    specification: Mapping[str, Any], graph: Mapping[str, Any] | None, attempt: int, site: Site
) -> Resources:
    """The resources of a run, timed or profiled; one that is absent is not asked for.

    `specification` is the content of run.json and `graph` of graph.json, None before the graph is built; `attempt`
    counts from 1. Memory doubles with each attempt.
    """
    hosts, training = specification.get("hosts", 1), specification["training"]
    ranks = specification["ranks"] // hosts
    threads = training["threads_per_rank"]
    resources: Resources = {
        "nodes": hosts,
        "mem_mb": _limited(memory_of_run_mb(specification, graph) * 2 ** (attempt - 1), site.max_memory_mb),
        "runtime": _limited(math.ceil(training["timeout_s"] / 60) + STARTING_MINUTES, site.max_minutes),
    }
    if hosts == 1:
        resources |= {"cpus_per_task": ranks * threads}
    else:
        # As many ranks on each host: a number of tasks alone leaves it to SLURM how many go where.
        each = {"tasks_per_node": ranks} if ranks > 1 else {"tasks": hosts}
        resources |= {"mpi": "srun", "cpus_per_task": threads, **each}
    on_gpus = training["device"] == "cuda"
    if on_gpus:
        # Without tasks_per_gpu=0 the executor asks for tasks per GPU as well, which contradicts the tasks above.
        resources |= {"gres": f"{site.gpu.gres}:{ranks * GPUS_PER_RANK}", "tasks_per_gpu": 0}
    return resources | _where(site, on_gpus, exclusive=site.exclusive)


def default_resources(site: Site) -> dict[str, str]:
    """Resources of a job whose rule says nothing else, as expressions that Snakemake evaluates."""
    memory = f"max(4 * input.size_mb, {JOB_MEMORY_MB}) * 2 ** (attempt - 1)"
    minutes = f"{JOB_MINUTES} * attempt"
    limited = {
        "mem_mb": f"int(min({memory}, {site.max_memory_mb}))" if site.max_memory_mb else f"int({memory})",
        "runtime": f"min({minutes}, {site.max_minutes})" if site.max_minutes else minutes,
    }
    return limited | {name: repr(value) for name, value in _where(site, on_gpus=False, exclusive=False).items()}


def memory_of_run_mb(specification: Mapping[str, Any], graph: Mapping[str, Any] | None) -> int:
    """Memory of a run per host in MB, from above: the graph, which its ranks share, and what each rank makes of it."""
    ranks = specification["ranks"] // specification.get("hosts", 1)
    base = ranks * _RANK_MB[specification["training"]["device"]]
    if graph is None:
        return base
    model = specification["model"]
    widths = graph["num_features"] + _COPIES * model["num_layers"] * model["hidden"]
    nodes = min(_HALO * graph["num_nodes"] / specification["ranks"], graph["num_nodes"])
    edges = graph["num_edges"] / specification["ranks"]
    rank_bytes = 4 * nodes * widths + 4 * 8 * edges
    return math.ceil(base + (stored_bytes(graph) + ranks * rank_bytes) / 1e6)


def memory_of_partitioning_mb(graph: Mapping[str, Any] | None, attempt: int) -> int:
    """Memory of partitioning a graph in MB: METIS keeps it and coarser ones, with weights, at 64 bytes an edge."""
    if graph is None:
        return JOB_MEMORY_MB
    grown = 2 ** (attempt - 1)
    return grown * math.ceil(JOB_MEMORY_MB + (stored_bytes(graph) + 64 * graph["num_edges"]) / 1e6)


def stored_bytes(graph: Mapping[str, Any]) -> int:
    """Bytes of a graph's arrays, from its manifest."""
    return sum(
        np.dtype(array["dtype"]).itemsize * math.prod(array["shape"]) for array in graph.get("arrays", {}).values()
    )


def _where(site: Site, on_gpus: bool, exclusive: bool) -> Resources:
    """Where a job goes and who pays; what the cluster's settings leave open is absent."""
    special = site.gpu if on_gpus else site
    found = {
        "slurm_account": site.account,
        "slurm_partition": special.partition or site.partition,
        "qos": special.qos or site.qos,
        "constraint": special.constraint or site.constraint,
        # Whether a job is tried again is decided in one place, by Snakemake: else two would be at work on the same run.
        "slurm_extra": " ".join(
            filter(None, ["--no-requeue", "--exclusive" if exclusive else "", site.options.strip()])
        ),
    }
    return {name: value for name, value in found.items() if value}


def _limited(value: int, limit: int | None) -> int:
    return value if limit is None else min(value, limit)

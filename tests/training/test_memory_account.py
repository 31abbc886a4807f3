"""The account of a rank's memory against the tensors that strategies hold."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from training_cases import Job, job_for

from anatomy.files import read_json, write_json
from anatomy.graphs.store import open_graph
from anatomy.partitions.quality import measure
from anatomy.partitions.store import open_partition
from anatomy.tables.common.account import Model, account, parts_of
from anatomy.training import run
from anatomy.training.holdings import kept_bytes
from anatomy.training.options import LAYERS
from anatomy.training.strategies._fullgraph import FullGraphStrategy

STRATEGIES = {
    "fullgraph": ("fullgraph", {}),
    "decentralised": ("decentralised", {"topology": "complete"}),
    "bns-sent": ("bns", {"rate": 0.5, "first_layer": "sent"}),
    "bns-whole": ("bns", {"rate": 0.3, "first_layer": "whole"}),
    "pipegcn": ("pipegcn", {"variant": "gf", "decay": 0.9}),
    "pipegcn-exact": ("pipegcn", {"variant": "exact"}),
    "cached": ("cached", {"epsilon": 0.1, "quantise": "none"}),
    "cached-int8": ("cached", {"epsilon": 0.1, "quantise": "int8"}),
}
"""Methods and options by a name."""
OTHERS = ("broadcast", "chunked", "decoupled", "featuresplit", "pipeline")
"""Methods of which less is known."""


def tensors_in(holder: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """All tensors that an object holds, but those of its rank's part and transport."""
    if id(holder) in seen:
        return
    seen.add(id(holder))
    if isinstance(holder, torch.Tensor):
        yield holder
    elif isinstance(holder, dict):
        for name, value in holder.items():
            if name not in ("part", "communicator", "_communicator", "_exchange"):
                yield from tensors_in(value, seen)
    elif isinstance(holder, list | tuple):
        for value in holder:
            yield from tensors_in(value, seen)
    elif hasattr(holder, "__dict__"):
        yield from tensors_in(vars(holder), seen)


def taken(tensors: Iterable[torch.Tensor], known: set[int]) -> int:
    """Bytes of the tensors' memory, as far as it is not `known` already; from now on it is."""
    size = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in known:
            known.add(storage.data_ptr())
            size += storage.nbytes()
    return size


def write_what_is_held(strategy: FullGraphStrategy, out: Path, stage: Path | None) -> None:
    """Instead of a timed run: two epochs, each evaluated, and then the bytes that this rank holds, by owner."""
    saved: list[torch.Tensor] = []
    strategy.prepare()
    for epoch in range(2):
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda kept: saved.append(kept) or kept, lambda kept: kept):
            strategy.train_epoch(epoch)
        strategy.evaluate()
    context, evaluator, num_own = strategy.context, strategy._evaluator, strategy.part.num_own
    sample = getattr(strategy, "sample", strategy.part)
    moments = [context.optimizer.mean, context.optimizer.square]
    rows = [kept for kept in saved if kept.dim() > 1 and kept.shape[0] >= num_own and kept[:1].numel() > 1]
    # Where ranks exchange otherwise than by a boundary, there is one for evaluation alone.
    boundary = None if context.specification.strategy["method"] in OTHERS else strategy.boundary
    known: set[int] = set()
    sizes = {
        "parameters": taken([*context.model.parameters(), *moments], known)
        + 4 * context.gradients.parameters.gradients.numel(),
        "features": taken([strategy.features, getattr(strategy, "_sampled_features", strategy.features)], known),
        "structure": taken(tensors_in([strategy.block, sample.block], set()), known),
        "exchange": taken(tensors_in(boundary, set()), known),
        "evaluation": taken(tensors_in([evaluator.boundary, evaluator._first_aggregate], set()), known),
        "activations": taken(rows, known),
    }
    model = {"widths": context.model.widths, "num_parameters": context.model.num_parameters}
    kept = {"kept": kept_bytes(strategy), "state": sum(value.nbytes for value in strategy.state().values())}
    held = kept | {"sizes": sizes, "sample_edges": sample.block.num_edges, "model": model}
    write_json(out / f"held-{context.communicator.rank}.json", held)


def be_looked_at(rank: int, num_ranks: int, jobs: list[Job]) -> None:
    """Be one rank of each job, and write what it holds."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(num_ranks), "GLOO_SOCKET_IFNAME": "lo"}
    run.MODES["timed"] = write_what_is_held
    for job in jobs:
        inputs = run.open_inputs(job.spec, job.graph, job.partition)
        run.train(inputs, job.out, "timed", f"file://{jobs[0].out}.rendezvous")


def accounted(job: Job, rank: int, held: dict) -> dict[str, int]:
    """The account of a rank, with the edges that an epoch has drawn in place of those that are expected."""
    spec, graph = read_json(job.spec), open_graph(job.graph)
    partition = open_partition(job.partition, graph)
    manifest, _, _ = measure(graph, np.array(partition.assignment), partition.num_parts)
    part = parts_of(manifest)[rank]
    sample = replace(parts_of(manifest, spec["strategy"].get("rate", 1.0))[rank], edges=held["sample_edges"])
    return account(part, sample, Model(spec["model"]["layer"], **held["model"]), spec["strategy"])


CASES = [(name, "sage", ranks) for name in STRATEGIES for ranks in (2, 3)]
CASES += [("fullgraph", "sage", 1), ("bns-sent", "sage", 1)]
CASES += [(name, "sage", 2) for name in OTHERS]
CASES += [(name, layer, 3) for name in ("fullgraph", "bns-sent", "pipegcn") for layer in LAYERS if layer != "sage"]


@pytest.fixture(scope="module")
def jobs(small, run_ranks, tmp_path_factory) -> dict[tuple, Job]:
    """Every case, looked at."""
    folder = tmp_path_factory.mktemp("account")
    made = {}
    for name, layer, ranks in CASES:
        method, strategy = STRATEGIES.get(name, (name, {}))
        settings = {"method": method, "layer": layer, "ranks": ranks, "strategy": strategy}
        made[name, layer, ranks] = job_for(small, folder / f"{name}-{layer}-{ranks}", **settings)
    for ranks in (1, 2, 3):
        run_ranks(ranks, [job for case, job in made.items() if case[2] == ranks], be_looked_at)
    return made


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_a_rank_holds_what_it_is_accounted_for(jobs, case):
    """To the byte; where more is held, which the account does not know, at least so much."""
    name, layer, ranks = case
    at_least = {"activations"} if layer not in ("gcn", "sage") else set()
    at_least |= {"structure"} if layer == "gat" or name in OTHERS else set()  # edges to itself, or cut otherwise
    at_least |= {"exchange"} if name.startswith("cached") else set()  # which rows follow, a bit for each
    at_least |= {"parameters"} if name in ("decoupled", "pipeline") else set()
    for rank in range(ranks):
        held = read_json(jobs[case].out / f"held-{rank}.json")
        found, said = held["sizes"], accounted(jobs[case], rank, held)
        assert found.keys() - said.keys() == ({"activations", "exchange"} if name in OTHERS else set())
        for owner, size in said.items():
            assert found[owner] >= size if owner in at_least else found[owner] == size, owner


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_what_is_kept_beyond_the_account_is_found(jobs, case):
    """Nothing where the account is of all that is held; else at least what a checkpoint would hold."""
    name, _, ranks = case
    for rank in range(ranks):
        held = read_json(jobs[case].out / f"held-{rank}.json")
        if name in OTHERS:
            assert held["kept"] > 0
            assert held["kept"] >= held["state"] - 4 * held["model"]["num_parameters"] * 4
        elif name != "decentralised":
            assert held["kept"] == 0


class Example:
    """An object of the project, as far as its module's name says."""

    __module__ = "anatomy.example"
    accounted = ("known",)

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def test_shared_memory_counts_once_and_what_is_known_not_at_all():
    table, known = torch.zeros(10, 3), torch.zeros(7)
    graph = SimpleNamespace(**dict.fromkeys(("indptr", "indices", "features", "labels", "split"), np.zeros(5)))
    model = torch.nn.Linear(2, 2)
    context = SimpleNamespace(graph=graph, optimizer=Example(), gradients=Example(), model=model)
    history = Example(rows=[table, table[2:]], counts={"a": np.zeros(4, np.int64)}, known_too=known[1:])
    history.itself = history
    strategy = Example(context=context, known=known, history=history, mapped=torch.from_numpy(graph.features))
    assert kept_bytes(strategy) == 4 * 10 * 3 + 8 * 4

"""Small graphs, partitions and specifications for the training tests, and what a forked rank does with them."""

import copy
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch

from anatomy.files import read_json, save_array, staged, write_json
from anatomy.graphs.blocks import FeatureBlocks
from anatomy.graphs.raw import GraphData
from anatomy.graphs.store import Graph, open_graph, write_graph
from anatomy.training.options import STRATEGIES
from anatomy.training.run import open_inputs, train


@dataclass(frozen=True)
class Case:
    """A graph and its partitions, by number of parts: of nodes, or, as some strategies need them, of edges."""

    folder: Path

    @property
    def graph_path(self) -> Path:
        return self.folder / "graph"

    @property
    def graph(self) -> Graph:
        return open_graph(self.graph_path)

    def partition_path(self, num_parts: int, method: str = "fullgraph") -> Path:
        cut = STRATEGIES[method].constants.get("PARTITION") == "vertex_cut" and num_parts > 1
        return self.folder / f"{'edge-parts' if cut else 'parts'}-{num_parts}"


@dataclass(frozen=True)
class Job:
    """One run: its specification, its inputs, and where its results go."""

    spec: Path
    graph: Path
    partition: Path
    out: Path
    mode: str = "timed"

    def metrics(self) -> dict:
        return read_json(self.out / "metrics.json", "metrics")

    def weights(self, rank: int = 0) -> dict[str, torch.Tensor]:
        return torch.load(self.out / f"weights-{rank}.pt")


def be_rank(rank: int, num_ranks: int, jobs: list[Job]) -> None:
    """Train each job as one rank, all in one process group, and keep its weights."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(num_ranks), "GLOO_SOCKET_IFNAME": "lo"}
    for job in jobs:
        inputs = open_inputs(job.spec, job.graph, job.partition)
        model = train(inputs, job.out, job.mode, f"file://{jobs[0].out}.rendezvous")
        torch.save(model.state_dict(), job.out / f"weights-{rank}.pt")


def job_for(case: Case, out: Path, mode: str = "timed", partition: Path | None = None, **settings) -> Job:
    """Write a specification and make a job of it; see `specification` for the settings."""
    out.mkdir(parents=True, exist_ok=True)
    spec = specification(**settings)
    (out / "run.json").write_text(json.dumps(spec))
    return Job(
        out / "run.json",
        case.graph_path,
        partition or case.partition_path(spec["ranks"], spec["strategy"]["method"]),
        out,
        mode,
    )


def specification(
    method: str = "fullgraph",
    layer: str = "sage",
    ranks: int = 1,
    operators: str = "torch",
    seed: int = 0,
    strategy: dict | None = None,
    model: dict | None = None,
    training: dict | None = None,
    profile: dict | None = None,
    condition: dict | None = None,
) -> dict:
    """A whole specification; the dictionaries replace single options, `condition` is one with its name."""
    batched = "fanouts" in STRATEGIES[method].constants["OPTIONS"]["properties"]
    options = {"epochs": 4} | ({"fanouts": [3, 2, 2], "batch_size": 4} if batched else {})
    heads = 2 if layer == "gat" else 1
    return {
        "kind": "run",
        "run": f"small.test-{ranks}.{method}.{layer}.s{seed}",
        "graph": "small",
        "partitioner": "test",
        "num_parts": ranks,
        "strategy": {"name": method, "method": method} | options | (strategy or {}),
        "model": {"name": layer, "layer": layer, "num_layers": 3, "hidden": 8, "heads": heads} | (model or {}),
        "ranks": ranks,
        "seed": seed,
        "training": {"operators": operators, "timeout_s": 60} | (training or {}),
        "profile": {"wait": 1, "warmup": 1, "active": 2} | (profile or {}),
        **({"condition": condition} if condition else {}),
    }


def small_case(folder: Path, num_features: int = 5) -> Case:
    """See the fixture `small`."""
    rng = np.random.default_rng(7)
    num_nodes = 60
    linked = np.triu(rng.random((num_nodes, num_nodes)) < 0.08, 1)
    loners = np.arange(50, 60)
    linked[np.ix_(loners, loners)] = False  # the third part has no edge inside
    linked[:, 57:] = linked[57:] = False  # three isolated nodes
    split = rng.choice([0, 1, 2], num_nodes, p=[0.4, 0.3, 0.3]).astype(np.int8)
    split[loners] = rng.choice([1, 2], len(loners))
    write_small_graph(folder / "graph", linked | linked.T, split, rng, num_features)
    graph = open_graph(folder / "graph")
    write_partition(folder / "parts-1", graph, np.zeros(num_nodes, np.int64))
    write_partition(folder / "parts-2", graph, rng.integers(0, 2, num_nodes))
    write_partition(folder / "parts-3", graph, np.where(np.arange(num_nodes) < 50, rng.integers(0, 2, num_nodes), 2))
    quarters = np.where(np.arange(num_nodes) < 50, np.arange(num_nodes) % 7 % 3, 3)
    write_partition(folder / "parts-4", graph, quarters)
    for num_parts in (2, 3):
        roots = np.load(folder / f"parts-{num_parts}" / "assignment.npy")
        edges = rng.integers(0, num_parts, graph.num_edges)
        write_partition(folder / f"edge-parts-{num_parts}", graph, roots, edges)
    return Case(folder)


def write_small_graph(
    out: Path, linked: np.ndarray, split: np.ndarray, rng: np.random.Generator, num_features: int = 5
) -> None:
    """A graph of an adjacency matrix (row v marks the in-neighbours of v) with random features and 3 classes."""
    num_nodes = len(linked)
    indptr = np.concatenate([[0], np.cumsum(linked.sum(1))]).astype(np.int64)
    data = GraphData(
        indptr=indptr,
        indices=np.nonzero(linked)[1].astype(np.int64),
        features=FeatureBlocks.from_rows(rng.normal(size=(num_nodes, num_features)).astype(np.float32), "features"),
        labels=rng.integers(0, 3, num_nodes),
        split=split,
        num_classes=3,
        steps=[],
        made={},
        evaluator=None,
    )
    write_graph(out, "small", {}, data)


def write_partition(out: Path, graph: Graph, assignment: np.ndarray, edge_assignment: np.ndarray | None = None) -> None:
    """The folder that an assignment makes, with the lists of halo and mirrors from their definition."""
    num_parts = int(assignment.max()) + 1
    sources, targets = graph.indices, np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    halo = zip(assignment[sources], assignment[targets], sources, strict=True)
    arrays = {"assignment": assignment.astype(np.int32)} | lists_of("halo", halo, num_parts)
    if edge_assignment is not None:
        ends = np.concatenate([sources, targets])
        held = zip(assignment[ends], np.tile(edge_assignment, 2), ends, strict=True)
        arrays |= {"edge_assignment": edge_assignment.astype(np.int32)} | lists_of("mirror", held, num_parts)
    with staged(out, "partition.json") as stage:
        manifest = {
            "kind": "partition",
            "graph": graph.name,
            "graph_identity": graph.identity,
            "partitioner": "test",
            "num_parts": num_parts,
            "num_nodes": graph.num_nodes,
            "arrays": {name: save_array(stage, name, array) for name, array in arrays.items()},
        }
        write_json(stage / "partition.json", manifest)


def lists_of(name: str, entries: Iterable[tuple[int, int, int]], num_parts: int) -> dict[str, np.ndarray]:
    """The stored lists of the nodes that one part owns and another has too: entries are (owner, other, node)."""
    lists = {pair: set() for pair in product(range(num_parts), repeat=2)}
    for owner, other, node in entries:
        if owner != other:
            lists[owner, other].add(node)
    return {
        f"{name}_offsets": np.cumsum([0, *map(len, lists.values())]).astype(np.int64),
        f"{name}_nodes": np.array([node for nodes in lists.values() for node in sorted(nodes)], np.int64),
    }


def changed(spec: dict, place: str, value: object) -> dict:
    """A copy of a specification in which one value, at a dotted place, is another."""
    spec = copy.deepcopy(spec)
    *sections, key = place.split(".")
    target = spec
    for section in sections:
        target = target[section]
    target[key] = value
    return spec

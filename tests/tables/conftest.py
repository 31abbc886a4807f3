"""A results folder with what the stages before the tables write, small enough to check every number by hand."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anatomy.files import save_array, write_json
from anatomy.tables.common.inputs import SENT_COLUMNS, Study

MACHINE = {"cpu": "a processor", "cores": 2, "memory_bytes": 8 << 30, "system": "Linux"}


class Results:
    """Writes runs, partitions, graphs and traces under one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def study(self, *runs: str, partitions: Sequence[str] = ()) -> Study:
        """A study of runs, each `name` or `experiment:name`."""
        pairs = [tuple(run.split(":")) if ":" in run else ("", run) for run in runs]
        return Study.of(self.folder, pairs, partitions)

    def graph(self, name: str, in_neighbours: Sequence[Sequence[int]], num_features: int = 5) -> None:
        """A graph from each node's in-neighbours."""
        folder = self.folder / "graphs" / name
        folder.mkdir(parents=True)
        indices = np.array([node for nodes in in_neighbours for node in nodes], dtype=np.int64)
        manifest = {
            "kind": "graph",
            "name": name,
            "num_nodes": len(in_neighbours),
            "num_features": num_features,
            "identity": f"identity of {name}",
            "arrays": {"indices": save_array(folder, "indices", indices)},
        }
        write_json(folder / "graph.json", manifest)

    def partition(
        self,
        graph: str,
        name: str,
        assignment: Sequence[int],
        halo_matrix: Sequence[Sequence[int]],
        edges: Sequence[tuple[int, int]] = (),
    ) -> None:
        """A partition `{partitioner}-{num_parts}` of a graph; only what tables read of it is true to the graph.

        `edges`: of each part, all of its in-edges, and those of them that come from other parts.
        """
        folder = self.folder / "partitions" / graph / name
        folder.mkdir(parents=True)
        volume = int(np.sum(halo_matrix))
        total = {"edge_cut": 7, "cut_entries": 14, "communication_volume": volume}
        total |= {"replication_factor": (len(assignment) + volume) / len(assignment), "components": 3}
        total |= {"balance_nodes": 1.0, "balance_edges": 1.25, "balance_train": 1.5}
        manifest = {
            "kind": "partition",
            "graph": graph,
            "graph_identity": f"identity of {graph}",
            "partitioner": name.rsplit("-", 1)[0],
            "method": "metis",
            "num_parts": len(halo_matrix),
            "num_nodes": len(assignment),
            "parts": [
                {"part": part, "nodes": list(assignment).count(part), "edges": found, "cut_edges": cut}
                for part, (found, cut) in enumerate(edges)
            ],
            "total": total,
            "halo_matrix": [list(row) for row in halo_matrix],
            "seconds": 0.5,
            "peak_memory_bytes": 1 << 20,
            "arrays": {"assignment": save_array(folder, "assignment", np.array(assignment, dtype=np.int32))},
        }
        write_json(folder / "partition.json", manifest)

    def run(
        self,
        graph: str = "ring",
        partitioner: str = "metis",
        ranks: int = 2,
        method: str = "fullgraph",
        seed: int = 0,
        status: str = "completed",
        epochs: Sequence[Mapping[str, Any]] = (),
        accesses: Sequence[Mapping[str, int]] = (),
        link_mbit: int | None = None,
        condition: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        device: str = "cpu",
        **metrics: Any,
    ) -> str:
        """A timed run; rows of `epochs` and `accesses` are completed with zeros. Returns its name.

        With `link_mbit` each rank has a host of its own; `condition` has a name; `options` are further ones of the
        strategy.
        """
        spread = {} if link_mbit is None else {"hosts": ranks, "link_mbit": link_mbit}
        link = f".h{ranks}.l{link_mbit}" if spread else ""
        under = f".c-{condition['name']}" if condition else ""
        name = f"{graph}.{partitioner}-{ranks}.{method}.sage{link}{under}.s{seed}"
        folder = self.folder / "runs" / name
        spec = {
            "kind": "run",
            "run": name,
            "graph": graph,
            "partitioner": partitioner,
            "num_parts": ranks,
            "strategy": {"name": method, "method": method} | dict(options or {}),
            "model": {"name": "sage", "layer": "sage", "num_layers": 2},
            "ranks": ranks,
            "seed": seed,
            "training": {"device": device, "communication": "gloo", "threads_per_rank": 1},
        }
        write_json(folder / "run.json", spec | spread | ({"condition": condition} if condition else {}))
        content = {
            "kind": "metrics",
            "run": name,
            "status": status,
            "reason": None if status == "completed" else f"{status}: as planned",
            "model_parameters": 10,
            "layer_dims": [5, 3, 2],
            "kept_bytes": [0] * ranks,
            "predicted": {},
            "final": {"loss": 0.5, "val_accuracy": 0.75, "test_accuracy": 0.7},
            "machine": MACHINE,
        }
        write_json(folder / "timed" / "metrics.json", content | metrics)
        if status == "completed":
            _epochs(epochs).to_parquet(folder / "timed" / "epochs.parquet")
            columns = ["rank", "epoch", "node", "count"]
            frame = pd.DataFrame(list(accesses), columns=columns).astype("int64")
            frame.to_parquet(folder / "timed" / "accesses.parquet")
        return name

    def traces(
        self, run: str, status: str = "completed", facts: Mapping[str, Any] | None = None, **tables: pd.DataFrame
    ) -> None:
        """Trace tables of a run, or of a job that was recorded elsewhere and that `facts` tell about."""
        folder = self.folder / "traces" / run
        folder.mkdir(parents=True)
        for name, frame in tables.items():
            frame.to_parquet(folder / f"{name}.parquet")
        num_steps = len(tables["steps"]) if "steps" in tables else 0
        manifest = {"kind": "traces", "run": run, "status": status, "num_steps": num_steps}
        (folder / "traces.json").write_text(json.dumps(manifest | dict(facts or {})))


def _epochs(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    counted = {"steps": 1, "train_nodes": 0, **dict.fromkeys(SENT_COLUMNS.values(), 0), "peak_memory_bytes": 1000}
    counted |= dict.fromkeys(("remote_nodes", "cache_hits", "cache_bytes"), 0)
    accuracies = ("val_accuracy", "test_accuracy", "own_val_accuracy", "own_test_accuracy")
    measured = {"wall_s": 1.0, "blocked_s": 0.0, "loss": 1.0, **dict.fromkeys(accuracies)}
    frame = pd.DataFrame([{"rank": 0, "epoch": 0, "warmup": False} | counted | measured | row for row in rows])
    return frame.astype(dict.fromkeys(accuracies, "float64"))


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


@pytest.fixture
def built() -> Callable[..., pd.DataFrame]:
    """Builds a table and checks what every table promises: its columns, and rows that its key tells apart."""
    from anatomy.options import complete_options
    from anatomy.tables import TABLES

    def build(table: str, study: Study, **options: Any) -> pd.DataFrame:
        module = TABLES[table].load()
        frame = module.build(study, complete_options(options, module.OPTIONS, table))
        assert list(frame) == list(module.COLUMNS)
        assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == {
            name: column.dtype for name, column in module.COLUMNS.items()
        }
        assert not frame.duplicated(list(module.KEY)).any()
        return frame

    return build

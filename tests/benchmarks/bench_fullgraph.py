"""What an epoch of `fullgraph` costs on one rank beside a plain loop over the same model with DGL's own layers.

    python tests/benchmarks/bench_fullgraph.py

trains GraphSAGE 2 x 64 (mean aggregation, Adam) on the power-law graph of config/strategies.yaml and on coauthor-cs,
which is left out where the shared data are not there. Both train in one process with one thread and take turns, epoch
by epoch; seconds are the medians of `--epochs`, after two that do not count. Neither evaluates. The two start with
other weights, so their losses are alike and not the same.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import dgl  # before the library enters the package in its own way
import numpy as np
import torch
from dgl.nn import SAGEConv

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "workflow" / "scripts"
sys.path.insert(0, str(SCRIPTS))

from anatomy.graphs.splits import TRAIN  # noqa: E402
from anatomy.graphs.store import Graph  # noqa: E402
from anatomy.training import run  # noqa: E402

HIDDEN = 64
COAUTHOR = ROOT.parent / "shared" / "data" / "graphs" / "coauthor_cs.npz"
GRAPHS = {
    "powerlaw": [
        "--source", "powerlaw", "--num-nodes", "50000", "--mean-degree", "20", "--exponent", "2.5",
        "--num-classes", "64", "--num-features", "64", "--train-fraction", "0.1",
    ],
    "coauthor-cs": ["--source", "npz", "--path", str(COAUTHOR), "--train-fraction", "0.5"],
}  # fmt: skip
WARM_UP = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15, help="epochs of each that count")
    parser.add_argument("--graph", choices=GRAPHS, nargs="*", default=list(GRAPHS))
    arguments = parser.parse_args()
    print(f"{'graph':12} {'fullgraph s':>11} {'DGL s':>8} {'ratio':>6} {'losses':>15}")
    for name in arguments.graph:
        if name != "coauthor-cs" or COAUTHOR.exists():
            with tempfile.TemporaryDirectory() as folder:
                measure(Path(folder), name, arguments.epochs)


def measure(folder: Path, name: str, epochs: int) -> None:
    """Make the inputs, let both train by turns, and print a line."""
    program("build_graph.py", *GRAPHS[name], "--name", name, "--out", folder / "graph")
    program(
        "partition_graph.py", "--graph", folder / "graph", "--partitioner", "single", "--num-parts", 1,
        "--out", folder / "parts",
    )  # fmt: skip
    (folder / "run.json").write_text(json.dumps(specification(name)))

    def take_turns(strategy: Any, out: Path, stage: Path | None) -> None:
        strategy.prepare()
        steps = {"ours": lambda: strategy.train_epoch(0).loss, "theirs": plain_loop(strategy.context.graph)}
        seconds: dict[str, list[float]] = {who: [] for who in steps}
        losses = {}
        for _ in range(WARM_UP + epochs):
            for who, step in steps.items():
                start = time.perf_counter()
                losses[who] = step()
                seconds[who].append(time.perf_counter() - start)
        ours, theirs = (median(values[WARM_UP:]) for values in seconds.values())
        both = f"{losses['ours']:.3f}, {losses['theirs']:.3f}"
        print(f"{name:12} {ours:11.4f} {theirs:8.4f} {ours / theirs:6.3f} {both:>15}", flush=True)

    run.MODES["timed"] = take_turns
    run.train(run.open_inputs(folder / "run.json", folder / "graph", folder / "parts"), folder / "out", "timed", "")


def plain_loop(graph: Graph) -> Callable[[], float]:
    """What trains one epoch on the graph as DGL's users write it, and returns its loss."""
    torch.manual_seed(0)
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    whole = dgl.graph((torch.from_numpy(np.array(graph.indices)), torch.from_numpy(targets)), num_nodes=graph.num_nodes)
    features = torch.from_numpy(np.array(graph.features[:]))
    labels, training = torch.from_numpy(np.array(graph.labels)), torch.from_numpy(np.array(graph.split) == TRAIN)
    layers = torch.nn.ModuleList(
        [SAGEConv(graph.num_features, HIDDEN, "mean"), SAGEConv(HIDDEN, graph.num_classes, "mean")]
    )
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.01)

    def epoch() -> float:
        scores = layers[1](whole, torch.relu(layers[0](whole, features)))
        loss = torch.nn.functional.cross_entropy(scores[training], labels[training])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return epoch


def specification(graph: str) -> dict[str, Any]:
    """The run that `fullgraph` trains."""
    return {
        "kind": "run", "run": "benchmark", "graph": graph, "partitioner": "single", "seed": 0,
        "num_parts": 1, "ranks": 1,
        "strategy": {"name": "fullgraph", "method": "fullgraph", "epochs": 1},
        "model": {"name": "sage", "layer": "sage", "num_layers": 2, "hidden": HIDDEN},
        "training": {"operators": "dgl", "threads_per_rank": 1, "learning_rate": 0.01}, "profile": {},
    }  # fmt: skip


def program(script: str, *arguments: object) -> None:
    subprocess.run([sys.executable, str(SCRIPTS / script), *map(str, arguments)], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()

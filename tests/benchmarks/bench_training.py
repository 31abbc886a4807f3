"""How long an epoch of training takes, by strategy, backend and number of ranks.

    python tests/benchmarks/bench_training.py

makes a power-law block model of 100,000 nodes and about 1,000,000 undirected edges with 128 features and 10% training
nodes, partitions it with METIS, and trains GraphSAGE 2 x 64 on it: mini-batches (fan-out 10,10, 512 seed nodes a rank)
and the full graph, one thread a rank. Every case is a run of launch_run.py; the cases take turns for `--rounds` rounds.
Seconds are those of the slowest rank, the median over all epochs after the first of all rounds; run seconds are from
the start of the program to its end and tell what starting and evaluating cost.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import median

import pyarrow.parquet

SCRIPTS = Path(__file__).parents[2] / "workflow" / "scripts"
STRATEGIES = {"minibatch": {"fanouts": [10, 10], "batch_size": 512}, "fullgraph": {}}
GRAPH_OPTIONS = [
    "--source", "powerlaw", "--num-nodes", "100000", "--mean-degree", "20", "--num-features", "128",
    "--train-fraction", "0.1", "--name", "powerlaw",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6, help="epochs of a run, the first included")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each case")
    parser.add_argument(
        "--layer", default="sage", choices=["gat", "gcn", "gcnii", "ressage", "sage"], help="graph convolution"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), arguments.epochs, arguments.rounds, arguments.layer)


def measure(folder: Path, epochs: int, rounds: int, layer: str) -> None:
    """Make the inputs, run every case in turn, and print the table."""
    run("build_graph.py", *GRAPH_OPTIONS, "--out", folder / "graph")
    for ranks, method in ((1, "single"), (2, "metis")):
        options = ["--partitioner", method, "--num-parts", ranks, "--out", folder / f"parts-{ranks}"]
        run("partition_graph.py", "--graph", folder / "graph", *options)
    cases = list(product(STRATEGIES, ("dgl", "torch"), (1, 2)))
    epoch_s: dict[tuple[str, str, int], list[float]] = {case: [] for case in cases}
    run_s: dict[tuple[str, str, int], list[float]] = {case: [] for case in cases}
    for _, case in product(range(rounds), cases):
        took_s, slowest_s = train(folder, *case, epochs, layer)
        run_s[case].append(took_s)
        epoch_s[case] += slowest_s
    num_train_nodes = json.loads((folder / "graph" / "graph.json").read_text())["split"]["train"]
    print(f"{'strategy':10} {'operators':9} {'ranks':>5} {'epoch s':>8} {'train nodes/s':>13} {'run s':>6}")
    for strategy, operators, ranks in cases:
        seconds = median(epoch_s[strategy, operators, ranks])
        whole = median(run_s[strategy, operators, ranks])
        print(f"{strategy:10} {operators:9} {ranks:5} {seconds:8.3f} {num_train_nodes / seconds:13,.0f} {whole:6.1f}")


def train(
    folder: Path, strategy: str, operators: str, ranks: int, epochs: int, layer: str
) -> tuple[float, list[float]]:
    """Train one case; seconds of the whole run, and of each epoch after the first."""
    spec = {
        "kind": "run", "run": "benchmark", "graph": "powerlaw", "partitioner": "metis", "seed": 0,
        "num_parts": ranks, "ranks": ranks,
        "strategy": {"name": strategy, "method": strategy, "epochs": epochs, **STRATEGIES[strategy]},
        "model": {"name": layer, "layer": layer, "num_layers": 2, "hidden": 64},
        "training": {"operators": operators, "evaluate_every": 0}, "profile": {},
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(spec))
    inputs = ["--graph", folder / "graph", "--partition", folder / f"parts-{ranks}", "--out", folder / "timed"]
    start = time.perf_counter()
    run("launch_run.py", "--spec", folder / "run.json", *inputs)
    took_s = time.perf_counter() - start
    slowest: dict[int, float] = {}
    for row in pyarrow.parquet.read_table(folder / "timed" / "epochs.parquet").to_pylist():
        slowest[row["epoch"]] = max(slowest.get(row["epoch"], 0.0), row["wall_s"])
    return took_s, [seconds for epoch, seconds in slowest.items() if epoch > 0]


def run(script: str, *arguments: object) -> None:
    subprocess.run([sys.executable, str(SCRIPTS / script), *map(str, arguments)], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()

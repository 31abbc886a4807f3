"""How much slower a rank really is under a condition.

    python tests/benchmarks/bench_conditions.py

trains GraphSAGE 2 x 64 on two parts of a power-law block model of 20,000 nodes, by batches and on the whole graph,
under each condition in turn, for `--rounds` rounds. The time for which a rank does not wait for others is `wall_s -
blocked_s`; the table has it for rank 0, which is disturbed, over what it is without a condition: the median over all
epochs after the first. Under `slow-…` it should be the factor. Under `share-…` it is one over the share for a rank that
always computes: threads of the transport take of the share too, and a rank that waits takes nothing of it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from statistics import median

import pandas as pd

SCRIPTS = Path(__file__).parents[2] / "workflow" / "scripts"
STRATEGIES = {"minibatch": {"fanouts": [10, 10], "batch_size": 256}, "fullgraph": {}}
CONDITIONS = {
    "none": None,
    "slow-1.5x": {"slow": {"rank": 0, "factor": 1.5}},
    "slow-2x": {"slow": {"rank": 0, "factor": 2}},
    "slow-4x": {"slow": {"rank": 0, "factor": 4}},
    "share-0.5": {"cpu_share": {"rank": 0, "share": 0.5}},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8, help="epochs of a run, the first included")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each case")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), arguments.epochs, arguments.rounds)


def measure(folder: Path, epochs: int, rounds: int) -> None:
    """Make the inputs, train every case in turn, and print the table."""
    options = ["--source", "powerlaw", "--num-nodes", "20000", "--mean-degree", "20", "--train-fraction", "0.1"]
    run("build_graph.py", *options, "--name", "powerlaw", "--out", folder / "graph")
    parts = ["--partitioner", "metis", "--balance-train", "--num-parts", "2", "--out", folder / "parts"]
    run("partition_graph.py", "--graph", folder / "graph", *parts)
    computing_s: dict[tuple[str, str], list[float]] = {case: [] for case in product(STRATEGIES, CONDITIONS)}
    for _, case in product(range(rounds), computing_s):
        computing_s[case] += train(folder, *case, epochs)
    print(f"{'strategy':10} {'condition':10} {'not waiting, s':>15} {'over none':>10}")
    for (strategy, condition), seconds in computing_s.items():
        ratio = median(seconds) / median(computing_s[strategy, "none"])
        print(f"{strategy:10} {condition:10} {median(seconds):15.4f} {ratio:10.3f}")


def train(folder: Path, strategy: str, condition: str, epochs: int) -> list[float]:
    """Seconds in which rank 0 did not wait, of each epoch after the first."""
    disturbed = CONDITIONS[condition] and {"condition": {"name": condition.replace(".", "-"), **CONDITIONS[condition]}}
    spec = {
        "kind": "run", "run": "benchmark", "graph": "powerlaw", "partitioner": "metis", "seed": 0,
        "num_parts": 2, "ranks": 2,
        "strategy": {"name": strategy, "method": strategy, "epochs": epochs, **STRATEGIES[strategy]},
        "model": {"name": "sage", "layer": "sage", "num_layers": 2, "hidden": 64},
        "training": {"evaluate_every": 0}, "profile": {}, **(disturbed or {}),
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(spec))
    inputs = ["--graph", folder / "graph", "--partition", folder / "parts", "--out", folder / "timed"]
    run("launch_run.py", "--spec", folder / "run.json", *inputs)
    rows = pd.read_parquet(folder / "timed" / "epochs.parquet").query("rank == 0 and epoch > 0")
    return (rows["wall_s"] - rows["blocked_s"]).tolist()


def run(program: str, *options: object) -> None:
    subprocess.run([sys.executable, SCRIPTS / program, *map(str, options)], check=True, capture_output=True)


if __name__ == "__main__":
    main()

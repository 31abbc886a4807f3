"""Mini-batch training beside stock DGL: how many training nodes a second two ranks train.

    python tests/benchmarks/bench_minibatch.py     (root, since it makes two hosts of network namespaces)

makes a power-law block model of 100,000 nodes and 1,000,000 undirected edges with 128 features and 10% training nodes,
cuts it in two with METIS, and trains GraphSAGE 2 x 64 on it: fan-out 10,10, 512 seed nodes a rank. Two ranks, each on a
host and a processor of its own, with one thread. The cases take turns for `--rounds` rounds; training nodes per second
are from the epochs after the first of all rounds, the slowest rank's seconds: their median, and their quartiles.

distdgl (stock)   DistDGL with dgl.nn.SAGEConv, DistributedDataParallel and Gloo: stock_dgl.py
2 x dgl (stock)   two independent loops of DGL, each with the whole graph and half of the training nodes: no bytes sent
distdgl           the study's strategy: DistDGL samples and fetches, layers and gradients are ours
minibatch …       the study's own engine, with the options that the name says
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from statistics import quantiles

import pyarrow.parquet

HERE = Path(__file__).parent
SCRIPTS = HERE.parents[1] / "workflow" / "scripts"
sys.path.insert(0, str(HERE.parent / "training"))
import emulated_hosts  # noqa: E402

GRAPH_OPTIONS = [
    "--source", "powerlaw", "--num-nodes", "100000", "--mean-degree", "20", "--num-features", "128",
    "--train-fraction", "0.1", "--name", "powerlaw",
]  # fmt: skip
CACHE = {"policy": "reverse_reachability", "fraction": 0.2}
CASES = {
    "distdgl (stock)": ("stock", "distdgl", {}),
    "2 x dgl (stock)": ("stock", "alone", {}),
    "distdgl": ("ours", "distdgl", {}),
    "minibatch": ("ours", "minibatch", {}),
    "minibatch cache": ("ours", "minibatch", {"cache": CACHE}),
    "minibatch prefetch": ("ours", "minibatch", {"prefetch": 2}),
    "minibatch both": ("ours", "minibatch", {"cache": CACHE, "prefetch": 2}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6, help="epochs of a run, the first included")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each case")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--inputs", type=Path, help="folder that keeps graph and parts for the next time")
    parser.add_argument("--operators", default="torch", choices=["dgl", "torch"], help="of our own layers")
    arguments = parser.parse_args()
    if (missing := emulated_hosts.missing()) is not None:
        parser.error(f"two hosts cannot be made: they need {missing}")
    with tempfile.TemporaryDirectory() as folder, emulated_hosts.hosts(2) as hosts:
        inputs = (arguments.inputs or Path(folder)).resolve()  # a host begins in another folder
        make_inputs(inputs)
        rates, accuracies = {case: [] for case in arguments.cases}, {case: [] for case in arguments.cases}
        for number, case in product(range(arguments.rounds), arguments.cases):
            out = Path(folder) / f"{number}-{case}"
            seconds, accuracy = run(case, hosts, inputs, out, arguments.epochs, arguments.operators)
            rates[case] += [num_train_nodes(inputs) / slowest for slowest in seconds[1:]]
            accuracies[case].append(accuracy)
    report(rates, accuracies)


def make_inputs(folder: Path) -> None:
    """The graph and its two parts, unless they are there."""
    if (folder / "parts" / "partition.json").exists():
        return
    python("build_graph.py", *GRAPH_OPTIONS, "--out", folder / "graph")
    options = ["--partitioner", "metis", "--options", '{"balance_train": true}', "--num-parts", 2]
    python("partition_graph.py", "--graph", folder / "graph", *options, "--out", folder / "parts")


def run(case: str, hosts: list, inputs: Path, out: Path, epochs: int, operators: str) -> tuple[list[float], float]:
    """Train one case; the slowest rank's seconds of every epoch, and the validation accuracy after the last."""
    kind, method, options = CASES[case]
    out.mkdir()
    (out / "run.json").write_text(
        json.dumps(specification("minibatch" if method == "alone" else method, options, epochs, operators))
    )
    places = [out / "run.json", inputs / "graph", inputs / "parts"]
    processes = []
    for rank, host in enumerate(hosts):
        if kind == "stock":
            command = [HERE / "stock_dgl.py", method, *places, out / f"{rank}.json"]
        else:
            names = zip(("--spec", "--graph", "--partition"), places, strict=True)
            command = [SCRIPTS / "train_run.py", *(word for pair in names for word in pair), "--out", out]
        environment = os.environ | {
            "RANK": str(rank), "WORLD_SIZE": str(len(hosts)), "MASTER_ADDR": hosts[0].address, "MASTER_PORT": "29500",
            "GLOO_SOCKET_IFNAME": emulated_hosts.Host.INTERFACE, "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        pinned = [*host.inside(), "taskset", "--cpu-list", str(rank % os.cpu_count()), sys.executable]
        processes.append(subprocess.Popen([*pinned, *map(str, command)], env=environment, stderr=subprocess.PIPE))
    errors = [process.communicate()[1] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{case}:\n" + "\n".join(error.decode()[-2000:] for error in errors))
    return read_stock(out, len(hosts)) if kind == "stock" else read_ours(out)


def specification(method: str, options: dict, epochs: int, operators: str) -> dict:
    strategy = {"name": method, "method": method, "epochs": epochs, "fanouts": [10, 10], "batch_size": 512}
    return {
        "kind": "run", "run": "benchmark", "graph": "powerlaw", "partitioner": "metis", "seed": 0,
        "num_parts": 2, "ranks": 2, "strategy": strategy | options,
        "model": {"name": "sage", "layer": "sage", "num_layers": 2, "hidden": 64},
        "training": {"operators": operators, "evaluate_every": 0, "learning_rate": 0.01}, "profile": {},
    }  # fmt: skip


def read_stock(out: Path, ranks: int) -> tuple[list[float], float]:
    results = [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks)]
    seconds = [max(taken) for taken in zip(*(result["seconds"] for result in results), strict=True)]
    return seconds, sum(result["accuracies"]["val"] for result in results) / ranks


def read_ours(out: Path) -> tuple[list[float], float]:
    slowest: dict[int, float] = {}
    for row in pyarrow.parquet.read_table(out / "epochs.parquet").to_pylist():
        slowest[row["epoch"]] = max(slowest.get(row["epoch"], 0.0), row["wall_s"])
    accuracy = json.loads((out / "metrics.json").read_text())["final"]["val_accuracy"]
    return [slowest[epoch] for epoch in sorted(slowest)], accuracy


def num_train_nodes(inputs: Path) -> int:
    return json.loads((inputs / "graph" / "graph.json").read_text())["split"]["train"]


def report(rates: dict[str, list[float]], accuracies: dict[str, list[float]]) -> None:
    """The table; ratios are of medians."""
    middle = {case: quantiles(rate, n=4) for case, rate in rates.items()}
    print(f"{'case':20} {'train nodes/s':>13} {'quartiles':>17} {'x distdgl':>9} {'x 2 dgl':>8} {'val. accuracy':>13}")
    for case, (low, median, high) in middle.items():
        ratios = [
            f"{median / middle[other][1]:.2f}" if other in middle else ""
            for other in ("distdgl (stock)", "2 x dgl (stock)")
        ]
        accuracy = sum(accuracies[case]) / len(accuracies[case])
        between = f"{low:,.0f} – {high:,.0f}"
        print(f"{case:20} {median:13,.0f} {between:>17} {ratios[0]:>9} {ratios[1]:>8} {accuracy:13.4f}")


def python(script: str, *arguments: object) -> None:
    subprocess.run([sys.executable, str(SCRIPTS / script), *map(str, arguments)], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()

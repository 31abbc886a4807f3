"""Partitioning of this project beside DGL's own, on the same graph, one after the other.

    python tests/benchmarks/bench_partitions.py

makes a power-law block model of 1 million nodes and 10 million undirected edges (about half a minute), partitions it
into 4 with METIS by both, and prints seconds, peak memory and cut. Ours is the whole program, from the start of the
interpreter over halo lists and quality measures to the last byte written; DGL's seconds are those of
`dgl.distributed.partition_graph` alone, without imports and without loading the graph. Memory is that of all processes
together, the proportional set size sampled 20 times a second. CPU seconds are shown beside, since other work on the
machine stretches seconds. Exit status 1 if a limit is missed.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil

SCRIPTS = Path(__file__).parents[2] / "workflow" / "scripts"
MAX_SECONDS_RATIO = 0.6
MAX_MEMORY_RATIO = 0.7

DGL_PROGRAM = """
import json, sys, time
import numpy, torch, dgl
graph_path, num_parts, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
indptr, indices = (torch.from_numpy(numpy.load(f"{graph_path}/{name}.npy")) for name in ("indptr", "indices"))
graph = dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=torch.int64))))
start, start_cpu = time.perf_counter(), time.process_time()
dgl.distributed.partition_graph(graph, "graph", num_parts, out, part_method="metis")
took = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - start_cpu}
with open(f"{out}/took.json", "w") as file:
    json.dump(took, file)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-nodes", type=int, default=1_000_000)
    parser.add_argument("--mean-degree", type=float, default=20, help="20 gives 10 undirected edges per node")
    parser.add_argument("--num-parts", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=1, help="times that each is measured, in turns")
    parser.add_argument("--graph", type=Path, help="partition this stored graph instead of making one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-partitions-") as folder:
        graph = arguments.graph or make_graph(Path(folder) / "graph", arguments.num_nodes, arguments.mean_degree)
        rows = []
        for number in range(arguments.repeat):
            rows.append(measure_ours(graph, arguments.num_parts, Path(folder) / f"ours-{number}"))
            rows.append(measure_dgl(graph, arguments.num_parts, Path(folder) / f"dgl-{number}"))
    raise SystemExit(report(rows))


def make_graph(out: Path, num_nodes: int, mean_degree: float) -> Path:
    command = [sys.executable, str(SCRIPTS / "build_graph.py"), "--source", "powerlaw", "--out", str(out)]
    options = {"--num-nodes": num_nodes, "--mean-degree": mean_degree, "--num-features": 16, "--seed": 0}
    subprocess.run([*command, *(str(word) for pair in options.items() for word in pair)], check=True)
    return out


def measure_ours(graph: Path, num_parts: int, out: Path) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPTS / "partition_graph.py"), "--graph", str(graph), "--partitioner", "metis"]
    found, _ = watched([*command, "--num-parts", str(num_parts), "--seed", "0", "--out", str(out)])
    manifest = json.loads((out / "partition.json").read_text())
    return {"program": "ours", **found, "cut": manifest["total"]["edge_cut"]}


def measure_dgl(graph: Path, num_parts: int, out: Path) -> dict[str, Any]:
    out.mkdir()
    found, said = watched([sys.executable, "-c", DGL_PROGRAM, str(graph), str(num_parts), str(out)])
    cut = re.search(r"get (\d+) edge cuts", said)
    return {"program": "dgl", **found, **json.loads((out / "took.json").read_text()), "cut": cut[1] if cut else "?"}


def watched(command: list[str]) -> tuple[dict[str, float], str]:
    """Run a command; returns seconds, CPU seconds and peak memory of it and all that it starts, and what it said."""
    environment = os.environ | {"DGLBACKEND": "pytorch"}
    before, start = cpu_seconds_of_children(), time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        root, peak = psutil.Process(process.pid), 0
        while process.poll() is None:
            peak = max(peak, memory_of_tree(root))
            time.sleep(0.05)
        seconds = time.perf_counter() - start
        output.seek(0)
        said = output.read()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command[:2])} ended with status {process.returncode}: {said[-2000:]}")
    return {"seconds": seconds, "cpu_seconds": cpu_seconds_of_children() - before, "peak_gb": peak / 1e9}, said


def cpu_seconds_of_children() -> float:
    """User and system time of all ended processes that this one or its children started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def memory_of_tree(root: psutil.Process) -> int:
    total = 0
    try:
        for process in [root, *root.children(recursive=True)]:
            total += process.memory_full_info().pss
    except psutil.NoSuchProcess:
        pass
    return total


def report(rows: list[dict[str, Any]]) -> int:
    """Print every measurement and the ratios of the medians; returns the exit status."""
    columns = {"seconds": ".1f", "cpu_seconds": ".1f", "peak_gb": ".2f", "cut": ""}
    print("program ", *(f"{name:>12}" for name in columns))
    for row in rows:
        print(f"{row['program']:8}", *(f"{format(row[name], style):>12}" for name, style in columns.items()))
    missed = False
    for key, limit in (("seconds", MAX_SECONDS_RATIO), ("peak_gb", MAX_MEMORY_RATIO)):
        ours, dgl = (median(row[key] for row in rows if row["program"] == program) for program in ("ours", "dgl"))
        missed |= ours > limit * dgl
        print(f"{key}: ours / dgl = {ours / dgl:.2f}, at most {limit}")
    return int(missed)


if __name__ == "__main__":
    main()

"""Time and memory of building the powerlaw graph of 1 million nodes and 10 million undirected edges.

The study promises less than 60 s and less than 4 GB; the exit status is 1 where that does not hold. Run it by hand on
a quiet machine:

  python tests/benchmarks/bench_graphs.py [--num-nodes 1000000] [--mean-degree 20]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "workflow" / "scripts" / "build_graph.py"
MAX_SECONDS = 60
MAX_BYTES = 4e9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-nodes", type=int, default=1_000_000)
    parser.add_argument("--mean-degree", type=float, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--num-nodes", str(arguments.num_nodes), "--mean-degree", str(arguments.mean_degree)]
        subprocess.run(
            [sys.executable, str(SCRIPT), "--source", "powerlaw", *options, "--out", folder], check=True, timeout=600
        )
        manifest = json.loads((Path(folder) / "graph.json").read_text())
    seconds, peak_bytes = manifest["seconds"], manifest["peak_memory_bytes"]
    print(
        f"{manifest['num_nodes']} nodes, {manifest['num_edges'] // 2} undirected edges: "
        f"{seconds:.1f} s (limit {MAX_SECONDS}), {peak_bytes / 1e9:.2f} GB (limit {MAX_BYTES / 1e9:.0f})"
    )
    return int(seconds >= MAX_SECONDS or peak_bytes >= MAX_BYTES)


if __name__ == "__main__":
    raise SystemExit(main())

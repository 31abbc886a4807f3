"""Build a graph in the study's canonical store, from a source.

The folder OUT gets the arrays indptr, indices, features, labels, split (.npy) and graph.json, which says what was
done. Nothing is fetched here: a source that names an address is fetched first by fetch_source.py, whose folder is
given as --fetched.

Examples:
  build_graph.py --source metis --path F.graph --out DIR
  build_graph.py --source powerlaw --num-nodes 10000 --seed 1 --out DIR
  build_graph.py --source npz --path F.npz --option split_index=3 --out DIR
  build_graph.py --source ogb --dataset ogbn-arxiv --archive arxiv.zip --out DIR
  build_graph.py --spec options.json --name powerlaw --fetched SOURCE_DIR --out DIR
"""

import argparse
from pathlib import Path

from anatomy.graphs.build import build_graph
from anatomy.graphs.command_line import add_source_arguments, options_from
from anatomy.program import parser_for, run_program


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the graph")
    parser.add_argument("--name", default=argparse.SUPPRESS, help="the graph's name (default: the folder's)")
    parser.add_argument(
        "--fetched",
        type=Path,
        default=argparse.SUPPRESS,
        help="folder of fetch_source.py, for a source with an address",
    )
    add_source_arguments(parser)
    arguments = parser.parse_args()
    options, where = options_from(arguments)
    build_graph(options, arguments.out, getattr(arguments, "name", None), getattr(arguments, "fetched", None), where)


if __name__ == "__main__":
    run_program(main)

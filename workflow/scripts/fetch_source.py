"""Fetch the files of a graph that its source names by an address, ready for build_graph.py --fetched OUT.

Takes the same options as build_graph.py. A download that was cut off is continued; a file that is empty, cut off or an
HTML page is fetched again; one that lies there whole is left as it is. Nothing is ever asked on the terminal.

Examples:
  fetch_source.py --source ogb --dataset ogbn-arxiv --out DIR
  fetch_source.py --source ogb --dataset ogbn-products --mirror https://mirror.example/ogb --out DIR
  fetch_source.py --source npz --url https://example.org/F.npz --sha256 HEX --out DIR
  fetch_source.py --spec options.json --out DIR
"""

from pathlib import Path

from anatomy.graphs.command_line import add_source_arguments, options_from
from anatomy.graphs.download import Patience
from anatomy.graphs.fetch import fetch_source
from anatomy.program import parser_for, run_program


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the files and source.json")
    parser.add_argument(
        "--timeout-s", type=float, default=Patience.timeout_s, help="longest silence of a server, in seconds"
    )
    parser.add_argument("--attempts", type=int, default=Patience.attempts, help="tries in a row that bring nothing new")
    parser.add_argument(
        "--backoff-s", type=float, default=Patience.backoff_s, help="first wait between tries, which doubles"
    )
    add_source_arguments(parser)
    arguments = parser.parse_args()
    options, where = options_from(arguments)
    patience = Patience(timeout_s=arguments.timeout_s, attempts=arguments.attempts, backoff_s=arguments.backoff_s)
    fetch_source(options, arguments.out, patience, where)


if __name__ == "__main__":
    run_program(main)

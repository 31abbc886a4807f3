"""Turn the Kineto traces of one job into trace tables: where each step of each rank went.

Reads every *.json and *.json.gz of a folder, one trace per rank, as torch.profiler exports them on CPUs with Gloo or on
GPUs with NCCL. The rank is read from the trace or from a name such as rank0.json.gz. Writes steps, phases, collectives,
operators and intervals as Parquet, and traces.json, which says what the columns mean and what could not be known. Needs
neither torch nor a GPU.

Example:
  python workflow/scripts/parse_traces.py --traces results/runs/R/profiled --out results/traces/R
"""

import logging
from pathlib import Path

from anatomy.program import parser_for, run_program
from anatomy.traces.parsing import parse_traces


def main() -> None:
    """Parse the command line and the traces."""
    parser = parser_for(__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="folder with one trace per rank, or one trace")
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")
    parser.add_argument("--run", help="name to write into traces.json; that of a run of this study is known without it")
    parser.add_argument(
        "--expected-ranks",
        type=int,
        metavar="N",
        help="refuse to go on unless the traces of ranks 0 to N-1 are all there; without it, missing ones are reported",
    )
    arguments = parser.parse_args()
    manifest = parse_traces(arguments.traces, arguments.out, arguments.run, arguments.expected_ranks)
    for note in manifest["notes"]:
        logging.info("note: %s", note)
    logging.info(
        "%s: %d ranks, %d steps in %.1f s",
        arguments.out,
        len(manifest["ranks"]),
        manifest["num_steps"],
        manifest["seconds"],
    )


if __name__ == "__main__":
    run_program(main)

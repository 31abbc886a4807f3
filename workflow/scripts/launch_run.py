"""Train one run with one process per rank, on this host or on those of this job of SLURM's; measure or profile it.

  launch_run.py --spec run.json --graph DIR --partition DIR --out results/runs/R/timed
  launch_run.py --spec run.json --graph DIR --partition DIR --out results/runs/R/profiled --mode profiled
  salloc --nodes=2 --ntasks-per-node=4 launch_run.py --spec run.json ...

A run whose specification says `hosts` needs a job of SLURM's with as many, in which this program starts the ranks.
Ends with status 0 when --out holds a result. That may say that the run had no memory or no time left, where its
specification sets keep_failures; any other failure is printed, first error first, and ends with status 1.
"""

import os
from pathlib import Path

from anatomy.program import parser_for, run_program
from anatomy.site import EXAMPLE, VARIABLE
from anatomy.training.launch import run_launcher


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--spec", type=Path, required=True, help="the run's specification, run.json")
    parser.add_argument("--graph", type=Path, required=True, help="folder of the graph")
    parser.add_argument("--partition", type=Path, required=True, help="folder of its partition, with one part per rank")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument(
        "--mode", choices=["timed", "profiled"], default="timed", help="measure all epochs, or trace some steps"
    )
    parser.add_argument(
        "--site",
        type=Path,
        default=os.environ.get(VARIABLE),
        help=f"the cluster's settings, a copy of {EXAMPLE}; ${VARIABLE} names them too",
    )
    arguments = parser.parse_args()
    run_launcher(arguments.spec, arguments.graph, arguments.partition, arguments.out, arguments.mode, arguments.site)


if __name__ == "__main__":
    run_program(main)

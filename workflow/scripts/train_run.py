"""Be one rank of a run. Started by torchrun, once per rank:

  torchrun --nproc-per-node 2 train_run.py --spec run.json --graph DIR --partition DIR --out DIR

A run of one rank may also be started without torchrun. launch_run.py starts all ranks of a run by itself, sets a time
limit and keeps runs that fail for want of memory or time as data.
"""

import os
import time
import traceback
from pathlib import Path

from anatomy.errors import StudyError
from anatomy.program import parser_for, run_program

RANK_0_SPEAKS_S = 3
"""How long other ranks wait with an error that all have, so that torchrun does not end rank 0 before it speaks."""


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--spec", type=Path, required=True, help="the run's specification, run.json")
    parser.add_argument("--graph", type=Path, required=True, help="folder of the graph")
    parser.add_argument("--partition", type=Path, required=True, help="folder of its partition, with one part per rank")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results, which rank 0 writes")
    parser.add_argument(
        "--mode", choices=["timed", "profiled"], default="timed", help="measure all epochs, or trace some steps"
    )
    arguments = parser.parse_args()

    from anatomy.training.failures import culprits_first, leave_process
    from anatomy.training.run import open_inputs, train

    try:
        inputs = open_inputs(arguments.spec, arguments.graph, arguments.partition)
        inputs.check_ranks()
    except StudyError:
        if os.environ.get("RANK", "0") != "0":
            time.sleep(RANK_0_SPEAKS_S)
            raise SystemExit(1) from None
        raise
    try:
        with culprits_first():
            train(inputs, arguments.out, arguments.mode, init_method="env://")
    except BaseException:
        traceback.print_exc()
        leave_process(1)
    leave_process(0)


if __name__ == "__main__":
    run_program(main)

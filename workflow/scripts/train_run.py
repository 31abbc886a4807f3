"""Be one rank of a run. Started once per rank, by launch_run.py on several hosts, or by torchrun:

  torchrun --nproc-per-node 2 train_run.py --spec run.json --graph DIR --partition DIR --out DIR

A run of one rank may also be started without torchrun. launch_run.py starts all ranks of a run by itself, sets a time
limit and keeps runs that fail for want of memory or time as data. With training.checkpoint_every, a rank that is sent
SIGTERM ends after its epoch, with a checkpoint and status 75; started again, the run goes on from there.
"""

import argparse
import os
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from anatomy.errors import StudyError
from anatomy.program import parser_for, run_program

if TYPE_CHECKING:
    from anatomy.training.membership import Membership

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
    parser.add_argument("--stage", type=Path, help="folder in --out of the attempt that launch_run.py has begun")
    arguments = parser.parse_args()

    from anatomy.training.membership import Membership, started_by_launcher

    if started_by_launcher():
        be_member(Membership(), arguments)
    from anatomy.training.failures import Interrupted, culprits_first, leave_process
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
            train(inputs, arguments.out, arguments.mode, "env://", arguments.stage)
    except Interrupted as end:
        leave_process(end.code)
    except BaseException:
        traceback.print_exc()
        leave_process(1)
    leave_process(0)


def be_member(membership: "Membership", arguments: argparse.Namespace) -> NoReturn:
    """Be a rank on one of several hosts: the launcher is told how it ends, and tells it to others."""
    with membership.told():
        from anatomy.training.failures import culprits_first
        from anatomy.training.run import open_inputs, train

        inputs = open_inputs(arguments.spec, arguments.graph, arguments.partition)
        inputs.check_ranks()
        with culprits_first():
            train(inputs, arguments.out, arguments.mode, membership.store, arguments.stage)
    raise AssertionError("the process has ended")


if __name__ == "__main__":
    run_program(main)

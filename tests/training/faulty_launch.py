"""launch_run.py's launcher with a fault planted in one rank's third step, or with slow steps; the tests run it as a
program.

faulty_launch.py FAULT SPEC GRAPH PARTITION OUT
"""

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "workflow" / "scripts"))

from anatomy.program import run_program
from anatomy.training import launch


def plant(fault: str) -> None:
    """Replace the step's update; the ranks are forked from this process and inherit it."""
    from anatomy.training.strategies._base import Context

    update, steps = Context.update, []

    def faulty_update(context: Context, *arguments: object) -> object:
        steps.append(fault)
        if fault == "slow":
            time.sleep(0.1)
        if len(steps) == 3 and context.communicator.rank == 1:
            match fault:
                case "raise":
                    raise ArithmeticError("planted in step 2")
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "hang":
                    time.sleep(600)
                case "memory":
                    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return update(context, *arguments)

    Context.update = faulty_update
    if fault == "lose part":
        lose_part()


def lose_part() -> None:
    """Have the graph server of rank 1's host find nothing to serve."""
    from anatomy.training.distdgl import client

    write_part = client.write_part

    def write_and_lose(folder: Path, graph: object, numbering: object, part: int, name: str) -> None:
        write_part(folder, graph, numbering, part, name)
        if part == 1:
            (folder / "parts.json").unlink()

    client.write_part = write_and_lose


def main() -> None:
    fault, spec, graph, partition, out = sys.argv[1:]
    prepare = launch._prepare_environment

    def prepare_and_plant(threads: int) -> None:
        prepare(threads)
        plant(fault)

    launch._prepare_environment = prepare_and_plant
    launch.run_launcher(Path(spec), Path(graph), Path(partition), Path(out), "timed")


if __name__ == "__main__":
    run_program(main)

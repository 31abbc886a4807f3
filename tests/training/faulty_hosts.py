"""launch_run.py's launcher on several hosts, with a fault in one rank's third step; the tests run it as a program.

faulty_hosts.py FAULT SPEC GRAPH PARTITION OUT [SITE]

The ranks are this program again, with the options of train_run.py.
"""

import importlib.util
import os
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "workflow" / "scripts"
sys.path[:0] = [str(SCRIPTS), str(Path(__file__).parent)]

FAULT = "PLANTED_FAULT"


def main() -> None:
    from faulty_launch import plant

    from anatomy.training import launch, several_hosts

    if fault := os.environ.get(FAULT):
        specification = importlib.util.spec_from_file_location("train_run", SCRIPTS / "train_run.py")
        train_run = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(train_run)
        plant(fault)
        train_run.main()
        return
    fault, *files = sys.argv[1:]
    os.environ[FAULT] = fault
    several_hosts.PROGRAM = Path(__file__).resolve()
    spec, graph, partition, out, *site = map(Path, files)
    launch.run_launcher(spec, graph, partition, out, "timed", *site)


if __name__ == "__main__":
    from anatomy.program import run_program

    run_program(main)

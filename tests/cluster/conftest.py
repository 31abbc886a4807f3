"""An emulated SLURM cluster for the tests, which are skipped where there can be none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can import what lies here

from emulated_cluster import FOLDER, EmulatedCluster


@pytest.fixture(scope="session")
def can_emulate():
    """Skips where there is no root or where packages are missing, with the reason that emulate.py gives."""
    check = subprocess.run([sys.executable, str(FOLDER / "emulate.py"), "check"], capture_output=True, text=True)
    if check.returncode:
        pytest.skip(check.stderr.strip().removeprefix("error: "))


@pytest.fixture(scope="session")
def cluster(can_emulate):
    """Two hosts with two fake GPUs each, links unshaped, processors unlimited. Who changes it puts it back."""
    started = EmulatedCluster(f"tests-{os.getpid()}")
    started.start("--hosts", "2", "--gpus", "a100:2")
    yield started
    started.stop()


@pytest.fixture
def new_cluster(can_emulate):
    """Makes clusters that a test starts and may break; they are stopped after it."""
    made = []

    def make(*arguments: str, start: bool = True) -> EmulatedCluster:
        made.append(EmulatedCluster(f"tests-{os.getpid()}-{len(made)}"))
        if start:
            made[-1].start(*arguments)
        return made[-1]

    yield make
    for one in made:
        one.stop()

"""An emulated SLURM cluster for the tests, which are skipped where there can be none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))  # so that tests can import emulation

COMMAND_TIMEOUT_S = 90


class EmulatedCluster:
    """A cluster by name, used as a person does: through emulate.py and SLURM's commands."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = Path("/run/emulated-clusters") / name
        self.environment = {"SLURM_CONF": str(self.folder / "slurm" / "slurm.conf"), "EMULATED_CLUSTER": name}

    def emulate(self, *arguments: str) -> str:
        """What a subcommand of emulate.py printed; CalledProcessError if it failed, with its message."""
        return self.run([sys.executable, str(FOLDER / "emulate.py"), *arguments])

    def start(self, *arguments: str) -> None:
        """Start it; it ends with the tests, even if they are killed."""
        self.emulate("start", "--owner", str(os.getpid()), *arguments)

    def stop(self) -> None:
        if self.folder.exists():
            self.emulate("stop")

    def status(self) -> dict:
        return json.loads(self.emulate("status", "--json"))

    def run(self, command: list[str], timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """What a command printed that was given in a shell of the machine, set up for this cluster."""
        done = subprocess.run(
            command,
            env=os.environ | self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, f"{command}: {done.stderr}", done.stdout, done.stderr)
        return done.stdout

    def srun(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> list[str]:
        """Lines that the tasks printed; in the order of ranks if labelled."""
        return sorted(self.run(["srun", "--immediate=60", *arguments], timeout_s).splitlines())

    def host_state(self, host: str) -> str:
        return self.run(["sinfo", "-hN", "-n", host, "-o", "%T"]).strip()


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

"""An emulated cluster, used as a person does."""

import json
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
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

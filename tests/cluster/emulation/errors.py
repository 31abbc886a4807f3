"""The one exception that is meant for a person, and how commands of the system are run."""

import subprocess


class EmulationError(Exception):
    """One sentence about what is in the way and what to do; the program prints it without a traceback."""


def call(command: list[str], text: str | None = None) -> str:
    """Run a command of the system with `text` on its standard input; returns what it printed.

    Raises EmulationError with the command and its first complaint.
    """
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        complaint = (done.stderr or done.stdout).strip().partition("\n")[0]
        raise EmulationError(f"`{' '.join(command)}` failed with status {done.returncode}: {complaint}")
    return done.stdout

"""munge, slurmctld and slurmd on the hosts of a cluster."""

import secrets
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from emulation.errors import EmulationError, call
from emulation.hosts import Host, daemon_environment, inside

READY_TIMEOUT_S = 30


def make_folders(folder: Path) -> None:
    for name in ("munge", "logs", "spool", "state"):
        (folder / name).mkdir()
    # Everybody may use the socket; only root reads the key.
    key = folder / "munge" / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))


def start_munge(controller: Host, folder: Path) -> None:
    """One for all hosts: its socket is a file, which they share."""
    munge = folder / "munge"
    paths = {
        "key-file": munge / "key",
        "socket": munge / "socket",
        "pid-file": munge / "pid",
        "seed-file": munge / "seed",
    }
    paths["log-file"] = folder / "logs" / "munged.log"
    call(inside(controller.pid, ["munged", "--num-threads=4", *(f"--{key}={path}" for key, path in paths.items())]))


def start_slurmctld(controller: Host, folder: Path) -> None:
    """Returns when it answers."""
    call(inside(controller.pid, ["slurmctld"]))
    _wait_until(lambda: _client(folder, "scontrol", "ping").returncode == 0, f"slurmctld: see {folder}/logs")


def start_slurmd(host: Host) -> None:
    """Returns when it is there; it makes itself known to slurmctld afterwards."""
    call(inside(host.pid, ["slurmd"], host.group))


def wait_for_hosts(names: Iterable[str], folder: Path) -> None:
    """Return when SLURM counts them as up."""
    wanted = set(names)
    _wait_until(lambda: wanted <= _hosts_up(folder), f"slurmd on {', '.join(sorted(wanted))}: see {folder}/logs")


def kill_daemon(host: Host, folder: Path) -> None:
    """SIGKILL to slurmctld on the controller, slurmd elsewhere; what it started lives on."""
    if not _signal(host, folder, 9):
        raise EmulationError(f"{host.name}: its daemon does not run")


def runs(host: Host, folder: Path) -> bool:
    """Whether a host's daemon, slurmctld or slurmd, runs."""
    return _signal(host, folder, 0)


def _signal(host: Host, folder: Path, number: int) -> bool:
    """Send a signal to a host's daemon; whether there was one. Its number holds on that host, where it is looked up."""
    send = ["sh", "-c", f"kill -{number} $(cat {folder}/{host.name}.pid)"]
    return subprocess.run(inside(host.pid, send), capture_output=True).returncode == 0


def client_environment(folder: Path) -> dict[str, str]:
    """What SLURM's commands need outside of the hosts; inside, the files are where the commands look for them."""
    return {"SLURM_CONF": str(folder / "slurm" / "slurm.conf")}


def _hosts_up(folder: Path) -> set[str]:
    """A star after the state means that the host does not answer."""
    states = dict(line.split() for line in _client(folder, "sinfo", "-hN", "-o", "%N %T").stdout.splitlines())
    return {name for name, state in states.items() if not state.startswith(("down", "unk")) and not state.endswith("*")}


def _client(folder: Path, *command: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        command, capture_output=True, text=True, env=daemon_environment() | client_environment(folder), timeout=30
    )


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + READY_TIMEOUT_S
    while not condition():
        if time.monotonic() > end:
            raise EmulationError(f"not ready within {READY_TIMEOUT_S} s: {what}")
        time.sleep(0.05)

"""Starting a cluster's supervisor, asking it for something, and stopping it."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from emulation import packages, state
from emulation.configuration import Cluster
from emulation.errors import EmulationError
from emulation.hosts import daemon_environment

PROGRAM = Path(__file__).parents[1] / "emulate.py"
STOP_TIMEOUT_S = 30
ANSWER_TIMEOUT_S = 60


def start(cluster: Cluster, owner: int | None) -> None:
    """Start a cluster; returns when SLURM has all its hosts. With an owner, it ends when that process does."""
    packages.check_machine()
    command = [sys.executable, str(PROGRAM), "supervise", json.dumps(cluster.as_json())]
    supervisor = subprocess.Popen(
        command if owner is None else [*command, "--owner", str(owner)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=daemon_environment(),
        cwd="/",
        text=True,
    )
    assert supervisor.stdout is not None
    assert supervisor.stderr is not None
    if supervisor.stdout.readline():
        # It lives on; this says so to Popen, which would warn of a child left alone.
        supervisor.returncode = 0
        return
    complaint = supervisor.stderr.read().strip().removeprefix("error: ")
    supervisor.wait()
    raise EmulationError(complaint or "the cluster's supervisor was killed while it started")


def ask(name: str, request: str, **arguments: Any) -> Any:
    """Let a cluster's supervisor do something; raises EmulationError with what is in the way."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(STOP_TIMEOUT_S if request == "stop" else ANSWER_TIMEOUT_S)
        try:
            connection.connect(str(state.folder_of(name) / state.CONTROL))
        except (FileNotFoundError, ConnectionRefusedError):
            raise EmulationError(f"no cluster {name!r} runs here") from None
        except PermissionError:
            packages.check_root()
            raise
        connection.sendall(json.dumps({"request": request, **arguments}).encode() + b"\n")
        line = connection.makefile().readline()
    if not line:
        raise EmulationError(f"cluster {name!r} ended before it answered")
    answer = json.loads(line)
    if "error" in answer:
        raise EmulationError(answer["error"])
    return answer["result"]


def stop(name: str) -> None:
    """Stop a cluster and remove everything of it, also when it died or does not answer."""
    folder = state.folder_of(name)
    if not folder.is_dir():
        raise EmulationError(f"no cluster {name!r} runs here")
    packages.check_root()
    if state.is_alive(folder):
        try:
            ask(name, "stop")
        except (OSError, EmulationError):
            _kill_supervisor(folder)
    with state.lock_clusters():
        state.clean_dead()
    if folder.exists():
        raise EmulationError(f"cluster {name!r} did not stop; its files are in {folder}")


def stop_all() -> None:
    """Stop every cluster of this machine and remove what dead ones left."""
    packages.check_root()
    for folder in state.all_folders():
        stop(folder.name)


def _kill_supervisor(folder: Path) -> None:
    """The kernel kills the whole cluster with it."""
    pid = state.description(folder).get("supervisor")
    if pid is None or not state.is_alive(folder):
        return
    descriptor = os.pidfd_open(pid)
    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    # Readable when the process has ended.
    select.select([descriptor], [], [], STOP_TIMEOUT_S)
    os.close(descriptor)

"""A host: namespaces of its own, which live and die with one process."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from emulation.errors import EmulationError

# Each process of the chain dies when the one before it does: a host never outlives its supervisor, however that ends.
UNSHARED = ("--pid", "--mount", "--uts", "--ipc", "--net", "--mount-proc")
NEW_NAMESPACES = ("setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child", *UNSHARED)
FIRST_PROCESS = Path(__file__).with_name("first_process.sh")
ENTERED = '[ -z "$1" ] || echo 0 > "$1/cgroup.procs"; cd "$2" || exit; shift 2; exec "$@"'


class Host:
    """A started host; `pid` is its first process, seen from outside."""

    def __init__(self, name: str, folder: Path, group: Path | None) -> None:
        self.name = name
        self.group = group
        self._keeper = subprocess.Popen(
            [*NEW_NAMESPACES, "sh", str(FIRST_PROCESS), name, str(folder), str(group or "")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=daemon_environment(),
            cwd="/",
        )
        self.pid = 0

    def wait_until_ready(self) -> None:
        assert self._keeper.stdout is not None
        assert self._keeper.stderr is not None
        if self._keeper.stdout.readline() != "ready\n":
            self._keeper.kill()
            raise EmulationError(f"host {self.name} did not start: {self._keeper.stderr.read().strip()}")
        children = Path(f"/proc/{self._keeper.pid}/task/{self._keeper.pid}/children").read_text()
        self.pid = int(children)

    @property
    def alive(self) -> bool:
        return self._keeper.poll() is None

    def kill(self) -> None:
        """Kill every process of the host; returns when they are gone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid or self._keeper.pid, signal.SIGKILL)
        self._keeper.wait()


def daemon_environment() -> dict[str, str]:
    """What daemons and first processes get; nothing of the caller's, which jobs would inherit."""
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


def inside(pid: int, command: list[str], group: Path | str | None = None, folder: str = "/") -> list[str]:
    """The command line that runs `command` on the host whose first process is `pid`, slowed as the host is."""
    enter = ["nsenter", "--target", str(pid), "--mount", "--uts", "--ipc", "--net", "--pid"]
    return [*enter, "sh", "-c", ENTERED, "sh", str(group or ""), folder, *command]


def in_network(pid: int, command: list[str]) -> list[str]:
    """The command line that runs `command` with the machine's files in the network of a host."""
    return ["nsenter", "--target", str(pid), "--net", *command]

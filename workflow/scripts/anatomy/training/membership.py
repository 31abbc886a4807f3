"""A rank's side of a run on several hosts: who it is, by what it talks, and its connection to the launcher.

srun tells each rank its number; `meeting` how to find the others. The connection is watched: a rank whose launcher is
gone ends at once, wherever it runs, so that nothing outlives a job that SLURM has given up.
"""

import contextlib
import json
import os
import platform
import socket
import threading
import traceback
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import psutil

from anatomy.errors import StudyError
from anatomy.training import meeting
from anatomy.training.failures import Interrupted, leave_process, told_of_failures

INTERFACE = "ANATOMY_INTERFACE"
"""Environment variable with the interface that the cluster's settings name."""
_JOIN_S = 60
_LAUNCHER_GONE = 76


def started_by_launcher() -> bool:
    """Whether this process is a rank that the launcher started on one of several hosts."""
    return meeting.ADDRESS in os.environ


class Membership:
    """This rank's place among the others. Use as a context: leaving it tells the launcher how the rank ended."""

    def __init__(self) -> None:
        environment = os.environ
        self.rank, self.size = int(environment["SLURM_PROCID"]), int(environment["SLURM_NTASKS"])
        address, _, port = environment[meeting.ADDRESS].rpartition(":")
        self._token = environment[meeting.TOKEN]
        _take_place(environment, address)
        self._connection = socket.create_connection((address, int(port)), timeout=_JOIN_S)
        self._connection.settimeout(None)
        meeting.watch_peer(self._connection)
        self._lines = self._connection.makefile("r", encoding="utf-8")
        meeting.say(self._connection, token=self._token, rank=self.rank, host=platform.node())

    def store(self, limit: timedelta) -> Any:
        """Where this run's process group meets: a server of torch's at rank 0, under a name that no other run has."""
        from torch.distributed import PrefixStore, TCPStore

        if self.rank == 0:
            own = self._connection.getsockname()[0]
            store = TCPStore(own, 0, None, True, limit, wait_for_workers=False)
            meeting.say(self._connection, store=store.port)
        else:
            address, port = self._hear("store")
            store = TCPStore(address, port, None, False, limit)
        threading.Thread(target=self._watch, daemon=True).start()
        return PrefixStore(self._token, store)

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Tell the launcher how the block ended, and end this process."""
        try:
            with told_of_failures(self._tell_failure):
                yield
        except Interrupted as end:
            self._tell("interrupted", end.message)
            leave_process(int(end.code))
        except StudyError as error:
            self._tell("failed", str(error))
            leave_process(1)
        except BaseException as error:
            self._tell_failure(error)
            leave_process(1)
        self._tell("done")
        leave_process(0)

    def _tell_failure(self, error: BaseException) -> None:
        details = "".join(traceback.format_exception(error)) if error.__traceback__ else ""
        self._tell("failed", f"rank {self.rank}: {type(error).__name__}: {error}", details)

    def _tell(self, how: str, message: str = "", details: str = "") -> None:
        with contextlib.suppress(OSError):
            meeting.say(self._connection, end=how, message=message, details=details)

    def _hear(self, key: str) -> Any:
        answer = self._lines.readline()
        if not answer:
            os._exit(_LAUNCHER_GONE)
        return json.loads(answer)[key]

    def _watch(self) -> None:
        """The launcher says nothing more; when its connection ends, so does this process."""
        with contextlib.suppress(OSError):
            self._lines.readline()
        os._exit(_LAUNCHER_GONE)


def _take_place(environment: Any, launcher: str) -> None:
    """Say in torch's words what srun says in its own, and keep what is left of SLURM's from all libraries."""
    places = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}
    environment |= {name: environment[source] for name, source in places.items()} | {"MASTER_ADDR": launcher}
    interface = interface_towards(launcher, environment)
    environment |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    for name in [name for name in environment if name.startswith(("SLURM_", "PMI_", "PMIX_"))]:
        del environment[name]


def interface_towards(address: str, environment: Mapping[str, str]) -> str:
    """The network interface to talk by: the one that the cluster's settings name, else the one that leads there.

    Raises StudyError where the named one does not exist on this host.
    """
    interfaces = psutil.net_if_addrs()
    if named := environment.get(INTERFACE):
        if named not in interfaces:
            raise StudyError(
                f"interface: found {named!r}, which host {platform.node()} does not have; there are: "
                f"{', '.join(interfaces)}; name one of these in the cluster's settings"
            )
        return named
    own = address_towards(address)
    return next(name for name, entries in interfaces.items() if any(entry.address == own for entry in entries))


def address_towards(address: str) -> str:
    """This host's own IPv4 address on the way to another."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 1))  # sends nothing: only chooses the way
        return probe.getsockname()[0]

"""The process that holds a cluster: it makes it, changes it on request, and takes it away."""

import contextlib
import fcntl
import json
import os
import selectors
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from emulation import daemons, network, state
from emulation.configuration import CONTROLLER, Cluster, write_configuration
from emulation.cpu import Groups
from emulation.errors import EmulationError
from emulation.hosts import Host


class Supervisor:
    """One cluster. All its processes are descendants that the kernel kills with this one."""

    def __init__(self, cluster: Cluster) -> None:
        with state.lock_clusters():
            state.clean_dead()
            self.folder = state.folder_of(cluster.name)
            try:
                self.folder.mkdir(mode=0o755)
            except FileExistsError:
                raise EmulationError(
                    f"a cluster {cluster.name!r} runs already; stop it or choose another name"
                ) from None
            self._lock = state.lock(self.folder, fcntl.LOCK_EX)
            used = network.used_networks() | {state.description(folder).get("index") for folder in state.all_folders()}
            self.cluster = replace(cluster, index=next(index for index in range(256) if index not in used))
            state.describe(self.folder, self.cluster)
        self.groups = Groups(cluster.name)
        self.hosts: dict[str, Host] = {}
        self.links: dict[str, float | str | None] = {}
        self.shares: dict[str, float | None] = {}

    def start(self) -> None:
        write_configuration(self.cluster, self.folder)
        daemons.make_folders(self.folder)
        names = self.cluster.host_names
        self.hosts = {name: self._new_host(name) for name in [CONTROLLER, *names]}
        for host in self.hosts.values():
            host.wait_until_ready()
        network.make_switch(self.cluster, self._controller)
        daemons.start_munge(self._controller, self.folder)
        daemons.start_slurmctld(self._controller, self.folder)
        for name in names:
            self.links[name], self.shares[name] = self.cluster.link_mbit, self.cluster.cpu_share
            self._set_up(name)
            daemons.start_slurmd(self.hosts[name])
        daemons.wait_for_hosts(names, self.folder)

    def stop(self) -> None:
        """Kill and remove everything."""
        for host in self.hosts.values():
            host.kill()
        with state.lock_clusters():
            state.clean(self.folder)

    def status(self) -> dict[str, Any]:
        """What `emulate.py status` shows; rates in Mbit/s, shares in processors, None for no limit."""
        hosts = {
            name: {
                "address": self.cluster.address(name),
                "alive": host.alive,
                "pid": host.pid,
                "group": str(host.group or ""),
                "link_mbit": self.links.get(name),
                "cpu_share": self.shares.get(name),
            }
            for name, host in self.hosts.items()
        }
        return {"name": self.cluster.name, "folder": str(self.folder), "hosts": hosts}

    def set_link(self, host: str, rate: str) -> None:
        machine, rate_mbit = self._living(host), network.parse_rate(rate)
        network.switch_port(self._controller, host, up=rate_mbit != network.DOWN)
        if not isinstance(rate_mbit, str):
            network.shape(self._controller, machine, rate_mbit)
        self.links[host] = rate_mbit

    def set_cpu(self, host: str, share: float | None) -> None:
        self._living(host)
        self.groups.limit(host, share)
        self.shares[host] = share

    def kill_host(self, host: str) -> None:
        """As if its power failed: first the cable, so that nobody is told, then every process."""
        machine = self._living(host)
        network.switch_port(self._controller, host, up=False)
        machine.kill()

    def kill_daemon(self, host: str) -> None:
        machine = self._controller if host == CONTROLLER else self._living(host)
        daemons.kill_daemon(machine, self.folder)

    def restore(self, host: str) -> None:
        """Bring back a killed host or daemon, and a pulled cable; returns when SLURM counts it as up."""
        if host == CONTROLLER:
            if not daemons.runs(self._controller, self.folder):
                daemons.start_slurmctld(self._controller, self.folder)
            return
        if self.links.get(host) == network.DOWN:
            self.links[host] = self.cluster.link_mbit
        if self._known(host).alive:
            network.switch_port(self._controller, host, up=True)
            self._shape(host)
        else:
            self.hosts[host] = self._new_host(host)
            self.hosts[host].wait_until_ready()
            self._set_up(host)
        if not daemons.runs(self.hosts[host], self.folder):
            daemons.start_slurmd(self.hosts[host])
        daemons.wait_for_hosts([host], self.folder)

    @property
    def _controller(self) -> Host:
        return self.hosts[CONTROLLER]

    def _new_host(self, name: str) -> Host:
        group = None if name == CONTROLLER else self.groups.make(name)
        return Host(name, self.folder, group)

    def _set_up(self, name: str) -> None:
        network.connect(self.cluster, self._controller, self.hosts[name])
        self._shape(name)
        self.groups.limit(name, self.shares[name])

    def _shape(self, name: str) -> None:
        rate_mbit = self.links[name]
        if not isinstance(rate_mbit, str):
            network.shape(self._controller, self.hosts[name], rate_mbit)

    def _known(self, host: str) -> Host:
        if host not in self.cluster.host_names:
            raise EmulationError(f"no host {host!r}; there are {', '.join(self.cluster.host_names)}")
        return self.hosts[host]

    def _living(self, host: str) -> Host:
        if not self._known(host).alive:
            raise EmulationError(f"host {host} is dead; restore it first")
        return self.hosts[host]


REQUESTS = ("status", "set_link", "set_cpu", "kill_host", "kill_daemon", "restore")


def supervise(cluster: Cluster, owner: int | None) -> None:
    """Start a cluster, say so in a line of JSON on standard output, hold it until told to stop or its owner ends."""
    wake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # The socket of munge and the configuration are for everybody, whatever the caller's mask.
    os.umask(0o022)
    watched = [wake.fileno()]
    if owner is not None:
        watched.append(os.pidfd_open(owner))
    supervisor = Supervisor(cluster)
    listener = socket.socket(socket.AF_UNIX)
    try:
        supervisor.start()
        listener.bind(str(supervisor.folder / state.CONTROL))
        listener.listen()
        print(json.dumps({"result": supervisor.status()}), flush=True)
        _leave_caller(supervisor.folder / "logs" / "supervisor.log")
        asked = _serve(supervisor, listener, watched)
    except BaseException:
        supervisor.stop()
        raise
    supervisor.stop()
    if asked is not None:
        _answer(asked, {"result": None})


def _serve(supervisor: Supervisor, listener: socket.socket, watched: list[int]) -> socket.socket | None:
    """Answer requests until one asks to stop, whose connection is returned, or one of `watched` becomes readable."""
    with selectors.DefaultSelector() as selector:
        for descriptor in [listener, *watched]:
            selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if any(key.fileobj is not listener for key, _ in selector.select()):
                return None
            connection, _ = listener.accept()
            connection.settimeout(10)
            try:
                request = json.loads(connection.makefile().readline())
                if request["request"] == "stop":
                    return connection
                answer = {"result": _obey(supervisor, **request)}
            except EmulationError as error:
                answer = {"error": str(error)}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            _answer(connection, answer)


def _obey(supervisor: Supervisor, request: str, **arguments: Any) -> Any:
    if request not in REQUESTS:
        raise EmulationError(f"unknown request {request!r}")
    return getattr(supervisor, request)(**arguments)


def _answer(connection: socket.socket, answer: dict[str, Any]) -> None:
    with contextlib.suppress(OSError), connection:
        connection.sendall(json.dumps(answer).encode() + b"\n")


def _leave_caller(log: Path) -> None:
    """Let go of the pipes to the process that started this one, which waits for their end."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())
    os.close(descriptor)

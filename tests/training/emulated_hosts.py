"""Hosts on one machine, each a network namespace with its own address and /dev/shm; they end with the process that made
them, since nothing but their own processes keeps them.
"""

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

_HOLD = "mount -t tmpfs tmpfs /dev/shm && ip link set lo up && echo up && exec cat"
"""What a host's first process does: it ends when its standard input does."""


def missing() -> str | None:
    """What this machine lacks to make hosts, None where nothing is."""
    if os.geteuid() != 0:
        return "root"
    if shutil.which("unshare") and subprocess.run(["unshare", "--net", "--mount", "true"], check=False).returncode:
        return "the right to make namespaces"
    absent = [program for program in ("ip", "unshare", "nsenter", "mount") if shutil.which(program) is None]
    return f"the programs {', '.join(absent)}" if absent else None


@dataclass(frozen=True)
class Host:
    """One host: the process that holds it, and its address on `INTERFACE`."""

    holder: int
    address: str

    INTERFACE = "eth0"

    def inside(self) -> list[str]:
        """What a command line begins with that runs on this host."""
        return ["nsenter", "--target", str(self.holder), "--net", "--mount"]


@contextmanager
def hosts(count: int):
    """Some hosts, joined by a bridge that stands in a namespace of its own."""
    with ExitStack() as stack:
        holders = [stack.enter_context(_holder()) for _ in range(count + 1)]
        switch, *rest = (process.pid for process in holders)
        _in(switch, "ip link add bridge type bridge && ip link set bridge up")
        made = []
        for number, pid in enumerate(rest, start=1):
            address = f"10.77.0.{number}"
            _in(switch, f"ip link add to{number} type veth peer name {Host.INTERFACE} netns {pid}")
            _in(switch, f"ip link set to{number} master bridge up")
            _in(pid, f"ip address add {address}/24 dev {Host.INTERFACE} && ip link set {Host.INTERFACE} up")
            made.append(Host(pid, address))
        yield made


@contextmanager
def _holder():
    process = subprocess.Popen(
        ["unshare", "--net", "--mount", "sh", "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        if process.stdout.readline() != b"up\n":
            raise RuntimeError(f"a namespace could not be made; status {process.wait()}")
        yield process
    finally:
        process.stdin.close()
        process.wait(timeout=10)


def _in(pid: int, line: str) -> None:
    subprocess.run(["nsenter", "--target", str(pid), "--net", "sh", "-c", line], check=True)


def start_ranks(hosts: list[Host], script: Path, job, *options: str) -> list[subprocess.Popen]:
    """One rank per host, started as srun would; all outputs are pipes."""
    inputs = ["--spec", job.spec, "--graph", job.graph, "--partition", job.partition, "--out", job.out]
    command = [*map(str, [sys.executable, script, *inputs, "--mode", job.mode]), *options]
    processes = []
    for rank, host in enumerate(hosts):
        environment = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(hosts)),
            "MASTER_ADDR": hosts[0].address,
            "MASTER_PORT": "29500",
            "GLOO_SOCKET_IFNAME": Host.INTERFACE,
            "OMP_NUM_THREADS": "1",
        }
        processes.append(
            subprocess.Popen([*host.inside(), *command], env=environment, stderr=subprocess.PIPE, text=True)
        )
    return processes

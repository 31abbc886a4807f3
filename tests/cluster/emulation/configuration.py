"""What a cluster consists of, and the files that SLURM reads about it."""

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from emulation.errors import EmulationError

CONTROLLER = "ctl"
# Of the network 10.213.{index}.0/24.
CONTROLLER_PLACE, FIRST_HOST_PLACE, OUTSIDE_PLACE = 1, 11, 254
MAX_HOSTS = 200


@dataclass(frozen=True)
class Cluster:
    """A cluster as asked for.

    `link_mbit` is the bandwidth of each host's link, None for unshaped; `cpu_share` how many processors' time each host
    gets, None for all it can take; `gpus` the fake GPUs per host by type, "" for untyped; `processors` and `memory_mb`
    what SLURM hands out per host (not what there is); `settings` lines of slurm.conf that replace or add to ours.
    """

    name: str
    hosts: int
    processors: int
    memory_mb: int
    link_mbit: float | None = None
    cpu_share: float | None = None
    gpus: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    index: int = 0

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,30}", self.name):
            raise EmulationError(f"{self.name!r}: a name has lower-case letters, digits and hyphens, 31 at most")
        if not 1 <= self.hosts <= MAX_HOSTS:
            raise EmulationError(f"{self.hosts} hosts asked for; a cluster has 1 to {MAX_HOSTS}")
        if self.processors < 1 or self.memory_mb < 1:
            raise EmulationError("a host has at least one processor and 1 MB of memory")

    @property
    def host_names(self) -> list[str]:
        return [f"n{number}" for number in range(1, self.hosts + 1)]

    @property
    def outside_link(self) -> str:
        """The only link in the machine's own network."""
        return f"emulated{self.index}"

    def address(self, name: str) -> str:
        """Of a host, the controller, or `outside`, the machine itself."""
        fixed = {CONTROLLER: CONTROLLER_PLACE, "outside": OUTSIDE_PLACE}
        place = fixed[name] if name in fixed else FIRST_HOST_PLACE + self.host_names.index(name)
        return f"10.213.{self.index}.{place}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_gpus(text: str) -> dict[str, int]:
    """`2`, `a100:2` or `a100:2,h100:1` to GPUs by type; `0` is none."""
    found: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"(?:([a-z][a-z0-9_]*):)?(\d+)", part)
        if not match:
            raise EmulationError(f"GPUs {text!r}: expected a number, or type:number, or several of these with commas")
        if int(match[2]):
            found[match[1] or ""] = found.get(match[1] or "", 0) + int(match[2])
    return found


def machine_memory_mb() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024**2


def write_configuration(cluster: Cluster, folder: Path) -> None:
    """slurm.conf, gres.conf and cgroup.conf in `slurm/`, the hosts file, and the fake GPUs."""
    slurm = folder / "slurm"
    slurm.mkdir()
    (slurm / "slurm.conf").write_text(slurm_conf(cluster, folder))
    # 22.05 has no way to do without; a place that does not exist keeps it from touching the machine's groups.
    (slurm / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={folder}/no-cgroups\n")
    (slurm / "gres.conf").write_text(gres_conf(cluster, folder))
    gpus = folder / "gpus"
    gpus.mkdir()
    for number in range(sum(cluster.gpus.values())):
        (gpus / f"gpu{number}").symlink_to("/dev/null")
    (folder / "hosts").write_text(hosts_file(cluster))


def hosts_file(cluster: Cluster) -> str:
    """Every host's name to its address in the cluster's network, its own included: rendezvous by name works."""
    names = {name: name for name in [CONTROLLER, *cluster.host_names]} | {"outside": os.uname().nodename}
    lines = [f"{cluster.address(place)} {name}" for place, name in names.items()]
    return "\n".join(["127.0.0.1 localhost", *lines]) + "\n"


def gres_conf(cluster: Cluster, folder: Path) -> str:
    lines, first = [], 0
    for kind, number in cluster.gpus.items():
        last = first + number - 1
        files = f"gpu{first}" if number == 1 else f"gpu[{first}-{last}]"
        lines.append(f"Name=gpu {f'Type={kind} ' if kind else ''}File={folder}/gpus/{files}")
        first = last + 1
    return "".join(f"{line}\n" for line in lines)


def slurm_conf(cluster: Cluster, folder: Path) -> str:
    """Everything below `folder`; no accounting, no cgroups of SLURM's own, quick to notice what happens."""
    settings = {
        "ClusterName": cluster.name,
        "SlurmctldHost": f"{CONTROLLER}({cluster.address(CONTROLLER)})",
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge/socket",
        "CredType": "cred/munge",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "SlurmctldPidFile": f"{folder}/{CONTROLLER}.pid",
        "SlurmdPidFile": f"{folder}/%n.pid",
        "SlurmctldLogFile": f"{folder}/logs/{CONTROLLER}.log",
        "SlurmdLogFile": f"{folder}/logs/%n.log",
        "MailProg": "/bin/true",
        "MpiDefault": "none",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": str(max(1, cluster.memory_mb // cluster.processors)),
        "SchedulerParameters": "bf_interval=5,sched_min_interval=100000,batch_sched_delay=0",
        # More processors and memory per host than the machine has are handed out as if they were there.
        "SlurmdParameters": "config_overrides",
        # What no host has is refused at once; it would wait for ever otherwise.
        "EnforcePartLimits": "ALL",
        "ReturnToService": "2",
        "SlurmdTimeout": "20",
        "KillOnBadExit": "1",
        "KillWait": "5",
        "JobRequeue": "0",
        "MinJobAge": "600",
        "GresTypes": "gpu",
    } | dict(cluster.settings)
    lines = [f"{key}={value}" for key, value in settings.items()]
    gres = ",".join(f"gpu:{kind}:{number}" if kind else f"gpu:{number}" for kind, number in cluster.gpus.items())
    size = f"Sockets=1 CoresPerSocket={cluster.processors} ThreadsPerCore=1 RealMemory={cluster.memory_mb}"
    for name in cluster.host_names:
        node = f"NodeName={name} NodeAddr={cluster.address(name)} {size}"
        lines.append(f"{node} Gres={gres}" if gres else node)
    lines.append("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"

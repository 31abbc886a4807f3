#!/usr/bin/env python3
"""A SLURM cluster on this machine: hosts are network namespaces, with links and processors as slow as you like.

    python3 tests/cluster/emulate.py install
    python3 tests/cluster/emulate.py run --hosts 2 --link 1gbit --gpus 2 -- srun -N2 hostname

    eval "$(python3 tests/cluster/emulate.py start --hosts 4)"     # sets SLURM_CONF for this shell
    sbatch job.sh; sinfo; snakemake --profile profiles/emulated
    python3 tests/cluster/emulate.py set-link n2 100
    python3 tests/cluster/emulate.py kill-host n2
    python3 tests/cluster/emulate.py restore n2
    python3 tests/cluster/emulate.py stop

Hosts are called n1, n2, …; the controller ctl. Needs root and Debian's packages of SLURM; using a started cluster needs
neither. See docs/emulated-cluster.md.
"""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from emulation import network, packages
from emulation.client import ask, start, stop, stop_all
from emulation.configuration import Cluster, machine_memory_mb, parse_gpus
from emulation.daemons import client_environment
from emulation.errors import EmulationError
from emulation.hosts import inside
from emulation.state import all_folders, folder_of, is_alive
from emulation.supervisor import supervise

NAME_VARIABLE = "EMULATED_CLUSTER"
HOSTS_CONFIGURATION = Path("/etc/slurm/slurm.conf")
"""Where a host finds its cluster's."""


def cluster_of_this_host() -> str | None:
    """On a host, also in a job, its cluster's name, which nobody has to be told; None elsewhere."""
    try:
        name = re.search(r"^ClusterName=(\S+)$", HOSTS_CONFIGURATION.read_text(), re.MULTILINE)
    except OSError:
        return None
    return name[1] if name and folder_of(name[1]).is_dir() else None


def environment(name: str) -> dict[str, str]:
    """What a shell or program needs to use a cluster."""
    return client_environment(folder_of(name)) | {NAME_VARIABLE: name}


def asked_cluster(arguments: argparse.Namespace) -> Cluster:
    rate_mbit = network.parse_rate(arguments.link)
    if isinstance(rate_mbit, str):
        raise EmulationError("a cluster starts with its links up")
    return Cluster(
        name=arguments.name,
        hosts=arguments.hosts,
        processors=arguments.processors,
        memory_mb=arguments.memory_mb or machine_memory_mb() // arguments.hosts,
        link_mbit=rate_mbit,
        cpu_share=parse_share(arguments.cpu_share),
        gpus=parse_gpus(arguments.gpus),
        settings=dict(map(parse_setting, arguments.set)),
    )


def parse_setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not (key and separator):
        raise EmulationError(f"--set {text!r}: expected KEY=VALUE")
    return key, value


def parse_share(text: str) -> float | None:
    """`0.5` to half of one processor's time, `all` to None."""
    if text == "all":
        return None
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0.01 <= share <= 1024:
        raise EmulationError(f"processor share {text!r}: expected how many processors' time, 0.01 or more, or all")
    return share


def run_start(arguments: argparse.Namespace) -> int:
    start(asked_cluster(arguments), arguments.owner)
    for key, value in environment(arguments.name).items():
        print(f"export {key}={shlex.quote(value)}")
    return 0


def run_run(arguments: argparse.Namespace) -> int:
    """Start, run a command, always stop; the command's exit status."""
    if not arguments.command:
        raise EmulationError("run: no command given; write it after --")
    start(asked_cluster(arguments), os.getpid())
    try:
        process = subprocess.Popen(arguments.command, env=os.environ | environment(arguments.name))
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        while True:
            try:
                status = process.wait()
                return status if status >= 0 else 128 - status
            except KeyboardInterrupt:
                continue
    finally:
        stop(arguments.name)


def run_exec(arguments: argparse.Namespace) -> int:
    """Run a command on a host; does not return."""
    hosts = ask(arguments.name, "status")["hosts"]
    if arguments.host not in hosts or not hosts[arguments.host]["alive"]:
        raise EmulationError(f"no living host {arguments.host!r}; there are {', '.join(hosts)}")
    host = hosts[arguments.host]
    command = inside(host["pid"], arguments.command, host["group"], str(Path.cwd()))
    os.execvp(command[0], command)


def run_stop(arguments: argparse.Namespace) -> int:
    if arguments.all:
        stop_all()
    else:
        stop(arguments.name)
    return 0


def run_status(arguments: argparse.Namespace) -> int:
    """A table of all clusters on this machine, or one as JSON."""
    if arguments.json:
        print(json.dumps(ask(arguments.name, "status"), indent=1))
        return 0
    for folder in all_folders():
        if not is_alive(folder):
            print(f"{folder.name}: dead; the next start or `stop --all` removes what it left")
            continue
        for name, host in ask(folder.name, "status")["hosts"].items():
            link, share = host["link_mbit"], host["cpu_share"]
            state = "up" if host["alive"] else "dead"
            print(f"{folder.name:16} {name:5} {state:5} {host['address']:15}", end=" ")
            print(f"link {network.UNSHAPED if link is None else link}  processors {'all' if share is None else share}")
    return 0


def run_install(arguments: argparse.Namespace) -> int:
    installed = packages.install()
    print(f"installed {', '.join(installed)}" if installed else "everything needed is there")
    return 0


def run_check(arguments: argparse.Namespace) -> int:
    packages.check_machine()
    return 0


def run_supervise(arguments: argparse.Namespace) -> int:
    request = json.loads(arguments.cluster)
    supervise(Cluster(**request), arguments.owner)
    return 0


def request(name: str, *keys: str) -> Any:
    """A subcommand that hands its arguments to the cluster's supervisor."""

    def run(arguments: argparse.Namespace) -> int:
        values = {key: getattr(arguments, key) for key in keys}
        if "share" in values:
            values["share"] = parse_share(values["share"])
        ask(arguments.name, name, **values)
        return 0

    return run


def main() -> int:
    arguments = parser().parse_args()
    try:
        return arguments.run(arguments)
    except EmulationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    here = cluster_of_this_host()

    def add(name: str, run: Any, text: str, default_name: str = "emulated") -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        default = here or os.environ.get(NAME_VARIABLE, default_name)
        command.add_argument(
            "--name",
            default=default,
            help=f"of the cluster (default: on a host its own, else ${NAME_VARIABLE} or {default_name})",
        )
        command.set_defaults(run=run)
        return command

    add("install", run_install, "install what is missing of Debian's packages, without starting their services")
    add("check", run_check, "say in one line what is in the way of a cluster here, if anything is")
    begin = add("start", run_start, "start a cluster; prints the variables that a shell needs to use it")
    begin.add_argument("--owner", type=int, metavar="PID", help="process with whose end the cluster ends, too")
    whole = add("run", run_run, "start a cluster, run a command, stop the cluster", f"run-{os.getpid()}")
    for command in (begin, whole):
        add_size(command)
    whole.add_argument("command", nargs="*", help="what to run, after --")
    end = add("stop", run_stop, "stop a cluster and remove everything of it")
    end.add_argument("--all", action="store_true", help="every cluster on this machine, and what dead ones left")
    show = add("status", run_status, "the clusters on this machine and their hosts")
    show.add_argument("--json", action="store_true", help="the cluster --name, for programs")
    link = add("set-link", request("set_link", "host", "rate"), "shape a host's link anew, or pull its cable")
    cpu = add("set-cpu", request("set_cpu", "host", "share"), "give a host another share of the processors")
    kill = add("kill-host", request("kill_host", "host"), "pull a host's cable and kill all of its processes")
    daemon = add(
        "kill-daemon", request("kill_daemon", "host"), "kill slurmd on a host, or slurmctld on ctl; jobs live on"
    )
    back = add("restore", request("restore", "host"), "bring back a killed host or daemon, or a pulled cable")
    inner = add("exec", run_exec, "run a command on a host")
    for command in (link, cpu, kill, daemon, back, inner):
        command.add_argument("host", help="n1, n2, …")
    link.add_argument("rate", help="Mbit/s, or 1gbit, unshaped, down")
    cpu.add_argument("share", help="how many processors' time, or all")
    inner.add_argument("command", nargs="+", help="what to run, after --")
    hidden = commands.add_parser("supervise")
    hidden.add_argument("cluster")
    hidden.add_argument("--owner", type=int)
    hidden.set_defaults(run=run_supervise)
    return top


def add_size(command: argparse.ArgumentParser) -> None:
    command.add_argument("--hosts", type=int, default=2, help="how many (default: 2)")
    command.add_argument("--link", default=network.UNSHAPED, help="of each host: Mbit/s, or 1gbit (default: unshaped)")
    command.add_argument("--cpu-share", default="all", help="of each host: 0.5 is half of one processor (default: all)")
    command.add_argument("--gpus", default="0", help="fake GPUs per host: 2, a100:2, a100:2,h100:1 (default: none)")
    command.add_argument("--processors", type=int, default=8, help="that SLURM hands out per host (default: 8)")
    command.add_argument(
        "--memory-mb", type=int, help="the same of memory (default: the machine's, divided by the hosts)"
    )
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another line of slurm.conf")


if __name__ == "__main__":
    raise SystemExit(main())

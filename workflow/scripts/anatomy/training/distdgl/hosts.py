"""Where the graph servers listen: one address for each host, and a port that is free there."""

import os
import socket
from pathlib import Path

import psutil

from anatomy.errors import StudyError
from anatomy.training.membership import address_towards

HOSTS_FILE = "hosts.txt"
"""DGL's list of servers."""


def own_address() -> str:
    """The IPv4 address by which other hosts reach this one.

    It is that of the interface that Gloo was told to use, else of the one that leads to the rendezvous, else
    loopback's.

    Raises StudyError where the interface does not exist or has no such address.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        addresses = psutil.net_if_addrs().get(interface, [])
        for entry in addresses:
            if entry.family == socket.AF_INET:
                return entry.address
        raise StudyError(
            f"GLOO_SOCKET_IFNAME: found {interface!r}, which has no IPv4 address here; there are: "
            f"{', '.join(psutil.net_if_addrs())}; name the interface that leads to the other hosts"
        )
    if "MASTER_ADDR" not in os.environ:
        return "127.0.0.1"
    return address_towards(os.environ["MASTER_ADDR"])


def free_port(address: str) -> int:
    """A port on which nobody listens at an address of this host."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def check_one_rank_per_host(addresses: list[str], spec: Path) -> None:
    """Raise StudyError where two ranks have one address: `addresses` are those of all ranks in their order."""
    for address in addresses:
        sharing = [rank for rank, other in enumerate(addresses) if other == address]
        if len(sharing) > 1:
            raise StudyError(
                f"{spec}: strategy.method: found 'distdgl' with ranks {', '.join(map(str, sharing))} on one address, "
                f"{address}; DGL serves one part per address and a rank trains one part, so start one rank per host, "
                "each with an address of its own (for instance on the emulated cluster), or use method 'minibatch'"
            )


def write_hosts(folder: Path, servers: list[tuple[str, int]]) -> None:
    """Write the list of servers: address and port of each, one a line, in the order of the parts."""
    (folder / HOSTS_FILE).write_text("".join(f"{address} {port}\n" for address, port in servers), encoding="utf-8")

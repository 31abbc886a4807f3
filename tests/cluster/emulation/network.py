"""The links between the hosts: a switch in the controller's network, one link per host, each shaped both ways."""

import json
import re
import time
from pathlib import Path

from emulation.configuration import CONTROLLER, Cluster
from emulation.errors import EmulationError, call
from emulation.hosts import Host, in_network

SWITCH = "switch"
HOST_LINK = "eth0"
UNSHAPED, DOWN = "unshaped", "down"


def parse_rate(text: str) -> float | str | None:
    """`100`, `100mbit` or `1gbit` to Mbit/s; `unshaped` to None; `down` as it is."""
    if text == DOWN:
        return DOWN
    if text == UNSHAPED:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(mbit|gbit)?", text)
    rate_mbit = float(match[1]) * (1000 if match[2] == "gbit" else 1) if match else 0
    if not 1 <= rate_mbit <= 100_000:
        raise EmulationError(f"link {text!r}: expected Mbit/s (1 to 100000), or 1gbit, {UNSHAPED} or {DOWN}")
    return rate_mbit


def used_networks() -> set[int]:
    """Indices of 10.213.{index}.0/24 of which this machine has an address or a route."""
    known = call(["ip", "-4", "address"]) + call(["ip", "-4", "route"])
    return {int(index) for index in re.findall(r"\b10\.213\.(\d+)\.", known)}


def make_switch(cluster: Cluster, controller: Host) -> None:
    """The switch with the controller's address, and a link to the machine's own network, where commands are typed."""
    _ip(
        controller,
        f"link add {SWITCH} type bridge",
        f"address add {cluster.address(CONTROLLER)}/24 dev {SWITCH}",
        f"link set {SWITCH} up",
    )
    outside = cluster.outside_link
    call(["ip", "link", "add", outside, "type", "veth", "peer", "name", "outside", "netns", str(controller.pid)])
    _ip(controller, f"link set outside master {SWITCH}", "link set outside up")
    call(["ip", "address", "add", f"{cluster.address('outside')}/24", "dev", outside])
    call(["ip", "link", "set", outside, "up"])


def connect(cluster: Cluster, controller: Host, host: Host) -> None:
    """Plug a host into the switch; a port of that name left by a dead host goes first."""
    if host.name in _ports(controller):
        _ip(controller, f"link delete {host.name}")
    _ip(
        controller,
        f"link add {host.name} type veth peer name {HOST_LINK} netns {host.pid}",
        f"link set {host.name} master {SWITCH}",
        f"link set {host.name} up",
    )
    _ip(host, f"address add {cluster.address(host.name)}/24 dev {HOST_LINK}", f"link set {HOST_LINK} up")


def shape(controller: Host, host: Host, rate_mbit: float | None) -> None:
    """Limit what a host sends and what it receives; None lifts the limit."""
    for end, link in ((host, HOST_LINK), (controller, host.name)):
        if _is_shaped(end, link):
            _tc(end, f"qdisc delete dev {link} root")
        if rate_mbit is None:
            continue
        # 64 kB per Gbit/s, as many as pass in half a millisecond: fewer, and the kernel's timer cannot keep up; many
        # more, and small messages would pass unshaped. One packet of segmented TCP must fit, and is at most 64 kB.
        burst_bytes = max(16_000, round(64 * rate_mbit))
        # A switch's buffer: 64 full packets, or 20 ms of the rate, wait while several hosts send to one.
        queue_bytes = max(64 * 64_000, round(rate_mbit * 1e6 / 8 * 0.020))
        rate = f"rate {rate_mbit}mbit ceil {rate_mbit}mbit burst {burst_bytes} cburst {burst_bytes} quantum 60000"
        _tc(
            end,
            f"qdisc add dev {link} root handle 1: htb default 1",
            f"class add dev {link} parent 1: classid 1:1 htb {rate}",
            f"qdisc add dev {link} parent 1:1 bfifo limit {queue_bytes}",
        )


def switch_port(controller: Host, host: str, up: bool) -> None:
    """Pull a host's cable, or plug it in again."""
    _ip(controller, f"link set {host} {'up' if up else 'down'}")


def wait_until_gone(link: str, timeout_s: float = 10) -> None:
    """The kernel removes the links of a dead host a moment later."""
    end = time.monotonic() + timeout_s
    while Path("/sys/class/net", link).exists():
        if time.monotonic() > end:
            raise EmulationError(f"link {link} is still there {timeout_s:.0f} s after its cluster's end")
        time.sleep(0.01)


def _ports(host: Host) -> set[str]:
    return {link["ifname"] for link in json.loads(call(in_network(host.pid, ["ip", "-json", "link"])))}


def _is_shaped(host: Host, link: str) -> bool:
    return " htb " in call(in_network(host.pid, ["tc", "qdisc", "show", "dev", link]))


def _ip(host: Host, *commands: str) -> None:
    call(in_network(host.pid, ["ip", "-batch", "-"]), "\n".join(commands))


def _tc(host: Host, *commands: str) -> None:
    call(in_network(host.pid, ["tc", "-batch", "-"]), "\n".join(commands))

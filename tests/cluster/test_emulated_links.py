"""Links are as slow as asked for, in both directions, and may change or break."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("measure_allreduce.py")
NUM_BITS = 16_000_000 * 8


@pytest.fixture
def links(cluster):
    """Sets the rate of both links; lifts it afterwards."""

    def set_to(rate):
        for host in ("n1", "n2"):
            cluster.emulate("set-link", host, rate)

    yield set_to
    set_to("unshaped")


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "rate_mbit", "repetitions"), [("100", 100, 3), ("1gbit", 1000, 10)])
def test_all_reduce_has_the_links_bandwidth(cluster, links, rate, rate_mbit, repetitions):
    """Over two hosts each sends as many bytes as the tensor has; headers take 1 - 1448 / 1514 = 4.4% of the link."""
    links(rate)
    (seconds,) = cluster.srun("-N2", "-n2", sys.executable, str(PROGRAM), str(repetitions))
    bandwidth_mbit = NUM_BITS / float(seconds) / 1e6
    assert 0.9 * rate_mbit < bandwidth_mbit < rate_mbit


@pytest.mark.slow
def test_unshaped_links_are_faster_than_any_shaped(cluster, links):
    links("100")
    links("unshaped")
    (seconds,) = cluster.srun("-N2", "-n2", sys.executable, str(PROGRAM), "5")
    assert NUM_BITS / float(seconds) / 1e6 > 1100


def test_pulled_cable_lets_nothing_through_and_comes_back(cluster):
    hosts = cluster.status()["hosts"]
    reach = [
        "exec",
        "n1",
        "--",
        "python3",
        "-c",
        f"import socket; socket.create_connection(({hosts['n2']['address']!r}, 6818), 2)",
    ]
    cluster.emulate(*reach)
    cluster.emulate("set-link", "n2", "down")
    try:
        with pytest.raises(subprocess.CalledProcessError, match=r"No route to host|timed out"):
            cluster.emulate(*reach)
    finally:
        cluster.emulate("restore", "n2")
    cluster.emulate(*reach)
    assert cluster.status()["hosts"]["n2"]["link_mbit"] is None

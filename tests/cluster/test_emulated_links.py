"""Links are as slow as asked for, in both directions, and may change or break."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("measure_transport.py")
PARSER = ROOT / "workflow" / "scripts" / "parse_traces.py"
EMULATE = Path(__file__).with_name("emulate.py")


@pytest.fixture
def links(cluster):
    """Sets the rate of both links; lifts it afterwards."""

    def set_to(rate):
        for host in ("n1", "n2"):
            cluster.emulate("set-link", host, rate)

    yield set_to
    set_to("unshaped")


@pytest.fixture
def bandwidths(cluster, tmp_path, monkeypatch):
    """Bus bandwidths in Mbit/s of the collectives of two hosts, by kind, as the trace tables have them."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "workflow" / "scripts"))

    def measure(repetitions, num_bytes):
        traces, tables = tmp_path / "traces", tmp_path / "tables"
        traces.mkdir()
        cluster.srun("-N2", "-n2", sys.executable, str(PROGRAM), str(repetitions), str(num_bytes), str(traces))
        command = [sys.executable, str(PARSER), "--traces", str(traces), "--out", str(tables)]
        subprocess.run(command, check=True, capture_output=True, env=os.environ)
        rows = pd.read_parquet(tables / "collectives.parquet")
        rows = rows[rows["kind"].isin(["all_reduce", "all_to_all_v"]) & (rows["bytes"] == num_bytes)]
        assert rows["bandwidth_of"].eq("transfer").all()
        assert len(rows) == 2 * 2 * repetitions
        return rows.assign(mbit=rows["bus_bandwidth"] * 8 / 1e6).groupby("kind")["mbit"]

    return measure


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "rate_mbit", "repetitions", "num_bytes"), [("100", 100, 2, 8_000_000), ("1gbit", 1000, 8, 16_000_000)]
)
def test_transport_has_the_links_bandwidth_and_the_trace_tables_see_it(
    links, bandwidths, rate, rate_mbit, repetitions, num_bytes
):
    """Headers take 1 - 1448 / 1514 = 4.4% of the link; whatever else the machine does only adds time, so the best
    counts. An exchange sends both ways at once though a rank is late: in turns it would have half of the link at most.
    """
    links(rate)
    best = bandwidths(repetitions, num_bytes).max()
    assert 0.9 * rate_mbit < best["all_reduce"] < rate_mbit
    assert 0.6 * rate_mbit < best["all_to_all_v"] < rate_mbit


@pytest.mark.slow
def test_unshaped_links_are_faster_than_any_shaped(links, bandwidths):
    links("100")
    links("unshaped")
    assert bandwidths(5, 16_000_000).max()["all_reduce"] > 1100


def test_a_job_may_set_links_of_its_own_cluster_whatever_its_environment_says(cluster, links):
    set_link = [sys.executable, str(EMULATE), "set-link", "n2", "100"]
    cluster.srun("-N1", "-n1", "-w", "n1", "env", "EMULATED_CLUSTER=another", *set_link)
    rates = {name: host["link_mbit"] for name, host in cluster.status()["hosts"].items()}
    assert rates == {"ctl": None, "n1": None, "n2": 100}


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

"""Hosts and daemons die and come back, and SLURM notices."""

import subprocess
import time

import pytest

DOWN_WITHIN_S = 45
"""The time-out of 5 s, and what slurmctld takes to give up a call to a host: up to twice its MessageTimeout of 10 s."""


@pytest.fixture
def mortal(new_cluster):
    """Its slurmctld misses a host after 5 s."""
    return new_cluster("--hosts", "2", "--set", "SlurmdTimeout=5")


def wait_for_state(cluster, host, states, within_s):
    start = time.monotonic()
    while not cluster.host_state(host).startswith(states):
        assert time.monotonic() - start < within_s, f"{host} is {cluster.host_state(host)}"
        time.sleep(0.2)
    return time.monotonic() - start


def test_killed_host_takes_its_processes_along_is_down_and_comes_back(mortal):
    job = mortal.run(["sbatch", "--parsable", "-o", "/dev/null", "-w", "n2", "--wrap", "srun sleep 300"]).strip()
    wait_for_job(mortal, job, "RUNNING", 10)
    mortal.emulate("kill-host", "n2")
    assert not mortal.status()["hosts"]["n2"]["alive"]
    with pytest.raises(subprocess.CalledProcessError, match="no living host"):
        mortal.emulate("exec", "n2", "--", "true")
    wait_for_state(mortal, "n2", "down", within_s=DOWN_WITHIN_S)
    wait_for_job(mortal, job, "NODE_FAIL", 10)
    assert mortal.srun("-N1", "hostname") == ["n1"]
    mortal.emulate("restore", "n2")
    assert mortal.srun("-N2", "hostname") == ["n1", "n2"]


def wait_for_job(cluster, job, state, within_s):
    end = time.monotonic() + within_s
    while (found := cluster.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]).strip()) != state:
        assert time.monotonic() < end, f"job is {found}, not {state}"
        time.sleep(0.2)


def test_killed_slurmd_leaves_its_job_an_orphan(mortal, tmp_path):
    """As on real hosts, and unlike a killed host: what was started lives on and may write late."""
    begun, go, late = (tmp_path / name for name in ("begun", "go", "late"))
    script = f"touch {begun}; while [ ! -e {go} ]; do sleep 0.1; done; touch {late}"
    job = mortal.run(["sbatch", "--parsable", "-o", "/dev/null", "-w", "n2", "--wrap", script]).strip()
    wait_for_file(begun, 10)
    mortal.emulate("kill-daemon", "n2")
    wait_for_state(mortal, "n2", "down", within_s=DOWN_WITHIN_S)
    wait_for_job(mortal, job, "NODE_FAIL", 10)
    assert not late.exists()
    go.touch()
    wait_for_file(late, 5)
    mortal.emulate("restore", "n2")
    assert mortal.srun("-N2", "hostname") == ["n1", "n2"]


def wait_for_file(path, within_s):
    end = time.monotonic() + within_s
    while not path.exists():
        assert time.monotonic() < end, f"no {path}"
        time.sleep(0.05)


def test_slurmctld_comes_back_and_knows_its_jobs(mortal):
    job = mortal.run(["sbatch", "--parsable", "-o", "/dev/null", "-N2", "--wrap", "srun sleep 300"]).strip()
    wait_for_job(mortal, job, "RUNNING", 10)
    time.sleep(6)  # it writes its state down every 5 s
    mortal.emulate("kill-daemon", "ctl")
    with pytest.raises(subprocess.CalledProcessError):
        mortal.run(["scontrol", "ping"])
    mortal.emulate("restore", "ctl")
    wait_for_job(mortal, job, "RUNNING", 10)
    mortal.run(["scancel", job])
    wait_for_job(mortal, job, "CANCELLED", 20)

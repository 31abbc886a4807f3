"""Clusters live side by side and leave nothing behind, however they end."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("emulate.py")
GONE_WITHIN_S = 15


class Traces:
    """What a running cluster shows outside of it: processes by their namespaces, links, mounts, groups, files."""

    def __init__(self, cluster):
        self.name = cluster.name
        description = json.loads((cluster.folder / "cluster.json").read_text())
        self.supervisor = description["supervisor"]
        self.link = Path("/sys/class/net") / f"emulated{description['index']}"
        pids = [host["pid"] for host in cluster.status()["hosts"].values()]
        # Held open, so that no later namespace gets the same number; the kernel kills the processes in it all the same.
        self.held = [os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY) for pid in pids]
        self.namespaces = {namespace(pid) for pid in pids}
        assert len(self.namespaces - {namespace(os.getpid())}) == len(pids)
        assert self.left() >= {"processes", "link", "folder"}

    def left(self):
        """Kinds of what is still there."""
        found = {
            "supervisor": Path(f"/proc/{self.supervisor}/exe").exists(),
            "processes": any(namespace(pid) in self.namespaces for pid in all_pids()),
            "link": self.link.exists(),
            "mounts": self.name in Path("/proc/self/mountinfo").read_text(),
            "groups": any(Path("/sys/fs/cgroup").glob(f"**/emulated-{self.name}")),
            "folder": Path("/run/emulated-clusters", self.name).exists(),
        }
        return {kind for kind, there in found.items() if there}

    def wait_until_gone(self, but=frozenset()):
        end = time.monotonic() + GONE_WITHIN_S
        while left := self.left() - but:
            assert time.monotonic() < end, f"still there: {left}"
            time.sleep(0.05)


def all_pids():
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def namespace(pid):
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None


def machine():
    """What the machine itself has of SLURM, which clusters do not touch."""
    folders = [Path("/var/log"), Path("/var/spool"), Path("/run"), Path("/etc/slurm"), Path("/dev/shm")]
    return {str(path) for folder in folders if folder.is_dir() for path in folder.glob("*[sm]*u*")}


def test_clusters_live_side_by_side(cluster, new_cluster):
    other = new_cluster("--hosts", "3", "--link", "500")
    listen = "import socket, time; s = socket.create_server(('', 29500)); print(socket.gethostname()); time.sleep(1)"
    commands = [["srun", "-N", hosts, "python3", "-c", listen] for hosts in ("2", "3")]
    both = [
        subprocess.Popen(command, env=os.environ | one.environment, stdout=subprocess.PIPE, text=True)
        for one, command in zip((cluster, other), commands, strict=True)
    ]
    said = [sorted(process.communicate(timeout=60)[0].split()) for process in both]
    assert said == [["n1", "n2"], ["n1", "n2", "n3"]]
    networks = [one.status()["hosts"]["n1"]["address"].rpartition(".")[0] for one in (cluster, other)]
    assert networks[0] != networks[1]
    other.stop()
    assert len(cluster.srun("-N2", "hostname")) == 2


def test_name_in_use_is_refused(cluster):
    with pytest.raises(subprocess.CalledProcessError, match="runs already"):
        cluster.start()


def test_stop_leaves_nothing(new_cluster):
    before = machine()
    cluster = new_cluster("--hosts", "2", "--gpus", "1", "--link", "100", "--cpu-share", "0.9")
    traces = Traces(cluster)
    cluster.run(["sbatch", "-o", "/dev/null", "-N2", "--wrap", "srun sleep 300"])
    cluster.emulate("exec", "n2", "--", "sh", "-c", "setsid sleep 300 > /dev/null 2>&1 &")
    cluster.stop()
    assert traces.left() <= {"supervisor"}
    traces.wait_until_gone()
    assert machine() <= before


def test_run_passes_the_status_on_and_leaves_nothing(new_cluster):
    cluster = new_cluster(start=False)
    command = ["run", "--name", cluster.name, "--hosts", "1", "--", "sh", "-c", "srun hostname; exit 7"]
    done = subprocess.run([sys.executable, PROGRAM, *command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (7, "n1\n")
    assert not cluster.folder.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_starter_killed_leaves_nothing(new_cluster, number):
    cluster = new_cluster(start=False)
    command = ["run", "--name", cluster.name, "--cpu-share", "0.9", "--", "sleep", "60"]
    starter = subprocess.Popen([sys.executable, PROGRAM, *command], start_new_session=True)
    try:
        wait_for(cluster)
        traces = Traces(cluster)
        os.killpg(starter.pid, number)
        traces.wait_until_gone()
    finally:
        starter.kill()
        starter.wait()


def wait_for(cluster):
    end = time.monotonic() + 30
    while not (cluster.folder / "control").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    time.sleep(0.2)


@pytest.mark.parametrize("delay_s", [0.1, 0.25, 0.4, 0.6])
def test_starter_killed_while_it_starts_leaves_nothing(new_cluster, delay_s):
    cluster = new_cluster(start=False)
    command = [sys.executable, str(PROGRAM), "run", "--name", cluster.name, "--", "sleep", "60"]
    starter = subprocess.Popen(command, start_new_session=True)
    time.sleep(delay_s)
    os.killpg(starter.pid, signal.SIGKILL)
    starter.wait()
    # It may not have come to make anything, now or within the time that a start takes.
    end = time.monotonic() + GONE_WITHIN_S
    quiet = 0
    while quiet < 10:
        quiet = 0 if cluster.folder.exists() or supervisors(cluster.name) else quiet + 1
        assert time.monotonic() < end
        time.sleep(0.1)


def supervisors(name):
    found = []
    for pid in all_pids():
        try:
            text = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue
        if re.search(rf'emulate\.py\0supervise\0.*"name": "{name}"', text):
            found.append(pid)
    return found


def test_supervisor_killed_leaves_no_process_and_the_next_start_removes_the_rest(new_cluster):
    cluster = new_cluster("--cpu-share", "0.9")
    traces = Traces(cluster)
    os.kill(traces.supervisor, signal.SIGKILL)
    traces.wait_until_gone(but={"groups", "folder"})
    assert "dead" in cluster.emulate("status")
    successor = new_cluster("--hosts", "1")
    assert not cluster.folder.exists()
    traces.wait_until_gone(but={"link"})  # the successor's may have its name
    assert successor.srun("-N1", "hostname") == ["n1"]


def test_slurmctld_killed_leaves_nothing_at_the_end(new_cluster):
    cluster = new_cluster()
    traces = Traces(cluster)
    cluster.emulate("kill-daemon", "ctl")
    cluster.stop()
    traces.wait_until_gone()


def test_stop_of_one_that_does_not_answer_kills_it(new_cluster):
    cluster = new_cluster("--hosts", "1")
    traces = Traces(cluster)
    (cluster.folder / "control").unlink()
    cluster.stop()
    traces.wait_until_gone()

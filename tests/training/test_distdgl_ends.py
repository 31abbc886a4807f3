"""How runs of `distdgl` end when one of their processes does, through the launcher of a job of two emulated hosts."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import emulated_hosts
import psutil
import pytest
from training_cases import Case, job_for

from fake_slurm import Fake

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(emulated_hosts.missing() is not None, reason=f"emulated hosts need {emulated_hosts.missing()}"),
]
PEER_TIMEOUT_S = 15


class Started:
    """A launcher at work on the first of two hosts, and the processes that it started."""

    def __init__(self, hosts: list[emulated_hosts.Host], process: subprocess.Popen, out: Path) -> None:
        self._hosts, self._process, self.out = hosts, process, out
        self._seen: set[psutil.Process] = set()

    def wait_for_epoch(self, epoch: int) -> None:
        read = ""
        for line in self._process.stderr:
            read += line
            if f"epoch {epoch}/" in line:
                self._seen.update(psutil.Process(self._process.pid).children(recursive=True))
                return
        raise AssertionError(read)

    def rank(self, number: int) -> psutil.Process:
        return next(
            process
            for process in self._seen
            if "--spec" in process.cmdline() and process.environ().get("SLURM_PROCID") == str(number)
        )

    def server(self, number: int) -> psutil.Process:
        """The graph server beside a rank."""
        (server,) = self.rank(number).children()
        assert "anatomy.training.distdgl.server" in server.cmdline()
        return server

    def errors(self) -> list[str]:
        """The launcher's errors, once it has ended: with status 1, and with nothing left behind."""
        said = self._process.communicate(timeout=240)[1]
        assert self._process.returncode == 1, said
        assert psutil.wait_procs(self._seen, timeout=10)[1] == []
        for host in self._hosts:
            assert subprocess.check_output([*host.inside(), "ls", "/dev/shm"], text=True) == ""
        assert not (self.out / "metrics.json").exists()
        return [line for line in said.splitlines() if line.startswith("error: ")]


@contextmanager
def started(case: Case, folder: Path, fault: str) -> Iterator[Started]:
    training = {"evaluate_every": 0, "timeout_s": 300, "peer_timeout_s": PEER_TIMEOUT_S}
    strategy = {"fanouts": [3, 2, 2], "batch_size": 4, "epochs": 100_000}
    job = job_for(case, folder / "run", method="distdgl", ranks=2, strategy=strategy, training=training)
    job.spec.write_text(json.dumps(json.loads(job.spec.read_text()) | {"hosts": 2}))
    (folder / "site.yaml").write_text(f"interface: {emulated_hosts.Host.INTERFACE}\n")
    script = Path(__file__).parent / "faulty_hosts.py"
    line = [sys.executable, script, fault, job.spec, job.graph, job.partition, job.out, folder / "site.yaml"]
    with emulated_hosts.hosts(2) as hosts:
        environment = os.environ | Fake(folder / "slurm").environment | {"OMP_NUM_THREADS": "1"}
        environment |= {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-2]"}
        environment |= {"FAKE_SLURM_HOSTS": json.dumps([host.inside() for host in hosts])}
        command = [*hosts[0].inside(), *map(str, line)]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        try:
            yield Started(hosts, process, job.out)
        finally:
            process.kill()


def test_a_server_that_is_killed_is_the_first_error(small, tmp_path):
    with started(small, tmp_path, "none") as run:
        run.wait_for_epoch(2)
        run.server(1).kill()
        errors = run.errors()
    assert errors == ["error: rank 1: ServerLost: the graph server of this host ended with status -9"]


def test_a_rank_that_is_killed_is_the_first_error(small, tmp_path):
    """Its server leaves with it; that the other rank's DGL then finds no server is no news."""
    with started(small, tmp_path, "none") as run:
        run.wait_for_epoch(2)
        run.rank(1).kill()
        (error,) = run.errors()
    assert error.startswith("error: rank 1 on ")
    assert "SIGKILL" in error


def test_a_server_that_cannot_start_says_why(small, tmp_path):
    with started(small, tmp_path, "lose part") as run:
        (error,) = run.errors()
    assert error.startswith(
        "error: rank 1: ServerLost: the graph server of this host ended with status 1: FileNotFoundError: "
    )
    assert "parts.json" in error


def test_a_server_that_is_stopped_ends_the_run_within_the_time_out(small, tmp_path):
    """Both ranks ask it, or wait for the one that does, as long as they may."""
    with started(small, tmp_path, "none") as run:
        run.wait_for_epoch(2)
        run.server(1).suspend()
        (error,) = run.errors()
    assert error == f"error: rank 0: ServerLost: the graph servers did not answer within {PEER_TIMEOUT_S} s"

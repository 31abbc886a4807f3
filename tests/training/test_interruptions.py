"""The programs, sent signals as by a batch system or by accident: each ends in good time and loses nothing."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from interruptions import numbers, pieces
from training_cases import Case, Job, job_for

from anatomy.training.checkpoint_files import FOLDER, kept_epochs
from anatomy.training.failures import INTERRUPTED_STATUS, STRAGGLER_S

pytestmark = pytest.mark.slow

TRAIN_SLOWLY = """
import runpy, sys, time
from anatomy.training.strategies._base import Context
update = Context.update
Context.update = lambda *arguments: (time.sleep(0.1), update(*arguments))[1]
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
"""train_run.py with steps of 0.1 s."""


def job_of(case: Case, out: Path, ranks: int, every: int = 1, **training) -> Job:
    """Thirty epochs of one step each, with dropout."""
    return job_for(
        case,
        out,
        ranks=ranks,
        model={"dropout": 0.5},
        strategy={"epochs": 30},
        training={"checkpoint_every": every, "evaluate_every": 5, **training},
    )


def launched(job: Job, fault: str = "slow") -> subprocess.Popen:
    """The launcher with slow steps."""
    script = Path(__file__).parent / "faulty_launch.py"
    line = [sys.executable, script, fault, job.spec, job.graph, job.partition, job.out]
    return subprocess.Popen(list(map(str, line)), stderr=subprocess.PIPE, text=True)


def wait_for_epoch(process: subprocess.Popen, epoch: int) -> str:
    """Read what a program prints until an epoch is over."""
    read = ""
    for line in process.stderr:
        read += line
        if f"epoch {epoch}/30" in line:
            return read
    raise AssertionError(read)


def ranks_of(process: subprocess.Popen, number: int) -> list[psutil.Process]:
    """The launcher's ranks: its youngest children, in order."""
    return sorted(psutil.Process(process.pid).children(), key=lambda child: child.pid)[-number:]


@pytest.fixture(scope="module")
def expected(small, tmp_path_factory) -> dict:
    """The numbers of two ranks that nothing interrupts."""
    job = job_of(small, tmp_path_factory.mktemp("expected") / "run", ranks=2, every=0)
    process = launched(job, "none")
    assert process.wait(60) == 0
    return numbers(job)


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_that_are_sent_sigterm_end_after_their_epoch_with_a_status_of_their_own(small, scripts, tmp_path, ranks):
    """All ranks end although one alone is sent the signal."""
    job = job_of(small, tmp_path / "run", ranks)
    inputs = ["--spec", job.spec, "--graph", job.graph, "--partition", job.partition, "--out", job.out]
    line = list(map(str, [sys.executable, "-c", TRAIN_SLOWLY, scripts / "train_run.py", *inputs]))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    environment = os.environ | rendezvous | {"PYTHONPATH": str(scripts), "OMP_NUM_THREADS": "1"}
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(ranks)}
    processes = [
        subprocess.Popen(line, env=environment | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    wait_for_epoch(processes[0], 3)
    processes[-1].send_signal(signal.SIGTERM)
    errors = [process.communicate(timeout=20)[1] for process in processes]
    assert [process.returncode for process in processes] == [INTERRUPTED_STATUS] * ranks, errors
    kept = kept_epochs(job.out)
    assert kept >= 3
    assert f"asked to end (SIGTERM), and ended after epoch {kept}; the next attempt goes on after {kept}" in errors[0]
    assert "Traceback" not in "".join(errors)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_launcher_that_is_ended_goes_on_when_started_again(small, tmp_path, expected, end):
    job = job_of(small, tmp_path / "run", ranks=2)
    process = launched(job)
    wait_for_epoch(process, 4)
    process.send_signal(end)
    process.communicate(timeout=20)
    assert process.returncode == {signal.SIGTERM: INTERRUPTED_STATUS, signal.SIGKILL: -signal.SIGKILL}[end]
    assert not (job.out / "metrics.json").exists()
    again = launched(job, "none")
    errors = again.communicate(timeout=60)[1]
    assert again.returncode == 0, errors
    (resumed_at,) = job.metrics()["resumed_at"]
    assert 3 <= resumed_at <= 6
    assert f"goes on after {resumed_at} epochs" in errors
    assert pieces(job, 1) == [0] * resumed_at + [1] * (30 - resumed_at)
    assert numbers(job) == expected
    assert not (job.out / FOLDER).exists()


def test_a_run_that_lost_a_rank_goes_on_when_started_again(small, tmp_path, expected):
    job = job_of(small, tmp_path / "run", ranks=2)
    process = launched(job)
    wait_for_epoch(process, 4)
    ranks_of(process, 2)[1].kill()
    errors = process.communicate(timeout=30)[1]
    assert process.returncode == 1
    assert "rank 1: ended by signal SIGKILL" in errors
    again = launched(job, "none")
    assert again.wait(60) == 0
    assert job.metrics()["resumed_at"][0] >= 3
    assert numbers(job) == expected


def test_a_run_of_which_a_rank_is_stopped_fails_within_the_time_out(small, tmp_path):
    """The others wait for it as long as they may, and the launcher does not wait for it to end."""
    job = job_of(small, tmp_path / "run", ranks=2, peer_timeout_s=4, timeout_s=300)
    process = launched(job)
    wait_for_epoch(process, 4)
    stopped = ranks_of(process, 2)[1]
    stopped.send_signal(signal.SIGSTOP)
    start = time.monotonic()
    try:
        errors = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert time.monotonic() - start < 4 + 3 + STRAGGLER_S + 3
    assert process.returncode == 1
    first = next(line for line in errors.splitlines() if "rror" in line)
    assert first.startswith("error: rank 0: PeerTimeout: waited for the other ranks as long as training.peer_timeout_s")
    assert not stopped.is_running() or stopped.status() == psutil.STATUS_ZOMBIE
    assert not (job.out / "metrics.json").exists()
    again = launched(job, "none")
    assert again.wait(60) == 0


def test_a_stopped_process_does_not_outlive_the_others_for_long(scripts):
    """In a process of its own, since every child of it is taken for a rank."""
    environment = os.environ | {"PYTHONPATH": str(scripts)}
    process = subprocess.run([sys.executable, "-c", STOP_A_CHILD], env=environment, timeout=60)
    assert process.returncode == 0


STOP_A_CHILD = """
import signal, subprocess, time
from anatomy.training.failures import stragglers_end

with stragglers_end(grace_s=0.5):
    stopped, other = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    stopped.send_signal(signal.SIGSTOP)
    time.sleep(1)
    assert stopped.poll() is None  # as long as none has ended
    other.kill()
    other.wait()
    start = time.monotonic()
    assert stopped.wait(timeout=20) == -signal.SIGKILL
assert time.monotonic() - start >= 0.2
"""

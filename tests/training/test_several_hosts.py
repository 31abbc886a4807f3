"""Runs on several hosts, whose hosts are one here: started by srun, met through the launcher, ended as a whole."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
from training_cases import job_for, specification

from anatomy.errors import StudyError
from anatomy.site import read_site
from anatomy.training import membership
from anatomy.training.meeting import Meeting, say
from anatomy.training.several_hosts import hosts_of_job, run_ranks, srun_command
from anatomy.training.specification import read_specification
from fake_slurm import Fake

PLAIN = "none"


@pytest.fixture
def slurm(tmp_path):
    return Fake(tmp_path / "slurm")


class Launcher:
    """Starts the launcher as a job of two hosts would."""

    def __init__(self, case, slurm, tmp_path):
        self.case, self.slurm, self.folder = case, slurm, tmp_path

    def start(self, fault: str, name: str, hosts: int = 2, method: str = "fullgraph", **training) -> subprocess.Popen:
        job = job_for(self.case, self.folder / name, method=method, ranks=2, training=training)
        spec = json.loads(job.spec.read_text())
        job.spec.write_text(json.dumps(spec | ({"hosts": hosts} if hosts > 1 else {})))
        script = Path(__file__).parent / "faulty_hosts.py"
        line = [sys.executable, script, fault, job.spec, job.graph, job.partition, job.out]
        inside = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-2]", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            list(map(str, line)),
            env=os.environ | self.slurm.environment | inside,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def losses(self, name: str) -> list[float]:
        return pd.read_parquet(self.folder / name / "epochs.parquet").loss.tolist()


@pytest.fixture
def launcher(small, slurm, tmp_path):
    return Launcher(small, slurm, tmp_path)


@pytest.mark.slow
def test_two_hosts_train_as_one_and_two_runs_at_once_do_not_meet(launcher):
    started = {
        name: launcher.start(PLAIN, name, hosts, "minibatch")
        for name, hosts in [("here", 1), ("first", 2), ("second", 2)]
    }
    for name, process in started.items():
        said = process.communicate(timeout=120)[1]
        assert process.returncode == 0, f"{name}: {said}"
    assert launcher.losses("first") == launcher.losses("second") == launcher.losses("here")
    [call, _] = launcher.slurm.calls("srun")
    assert call[:5] == ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--distribution=block"]


@pytest.mark.slow
def test_a_run_on_one_host_goes_into_the_container_as_a_whole(small, scripts, tmp_path):
    container, site = tmp_path / "container", tmp_path / "site.yaml"
    container.write_text('#!/bin/sh\necho "inside: $2 $3" >&2\nshift\nexec "$@"\n')
    container.chmod(0o755)
    site.write_text(f"container: {container} exec\n")
    job = job_for(small, tmp_path / "out")
    line = [sys.executable, scripts / "launch_run.py", "--spec", job.spec, "--graph", job.graph]
    line += ["--partition", job.partition, "--out", job.out, "--site", site]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(list(map(str, line)), env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"inside: python {scripts / 'launch_run.py'}\n")
    assert done.stderr.count("inside") == 1
    assert job.metrics()["status"] == "completed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "first_line"),
    [
        ("raise", "error: rank 1: ArithmeticError: planted in step 2"),
        ("kill", "error: rank 1 on "),
    ],
)
def test_a_failing_rank_ends_all_with_its_error_first(launcher, fault, first_line):
    process = launcher.start(fault, "run")
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert errors[0].startswith(first_line), said
    assert fault != "kill" or "SIGKILL" in errors[0], "srun says how it ended"
    assert "Connection closed" not in said
    assert [path.name for path in (launcher.folder / "run").iterdir()] == ["run.json"]
    assert no_ranks_left(process.pid)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "status"), [("memory", "out of memory"), ("hang", "time limit")])
def test_a_run_without_memory_or_time_is_kept_as_data(launcher, fault, status):
    process = launcher.start(fault, "run", timeout_s=20)
    said = process.communicate(timeout=90)[1]
    assert process.returncode == 0, said
    assert json.loads((launcher.folder / "run" / "metrics.json").read_text())["status"] == status
    assert no_ranks_left(process.pid)


@pytest.mark.slow
def test_ranks_end_with_their_launcher_even_if_it_is_killed(launcher):
    process = launcher.start("hang", "run")
    for line in process.stderr:
        if "epoch 2/4" in line:
            break
    assert len(ranks_of(process.pid)) == 2
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    assert no_ranks_left(process.pid)
    assert not (launcher.folder / "run" / "metrics.json").exists()


def ranks_of(session: int) -> list[psutil.Process]:
    """The ranks of a launcher, which leads a session of its own."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            words = process.cmdline()[1:]
            program = Path(words[0]).name if words else ""
            if os.getsid(process.pid) == session and program == "faulty_hosts.py" and "--spec" in words:
                found.append(process)
    return found


def no_ranks_left(session: int) -> bool:
    return psutil.wait_procs(ranks_of(session), timeout=10)[1] == []


def spec_file(tmp_path, **changes):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(specification(ranks=4) | {"hosts": 2} | changes))
    return path


def test_srun_starts_as_many_ranks_on_each_host(tmp_path):
    (tmp_path / "site.yaml").write_text("container: apptainer exec --nv 'the image.sif'\n")
    spec = read_specification(spec_file(tmp_path))
    plain = srun_command(spec, ["--mode", "timed"], None)
    assert plain[:4] == ["srun", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2"]
    assert "--kill-on-bad-exit=1" in plain
    assert plain[-4] == sys.executable
    contained = srun_command(spec, ["--mode", "timed"], read_site(tmp_path / "site.yaml"))
    assert contained[-8:-3] == ["apptainer", "exec", "--nv", "the image.sif", "python"]


def test_hosts_are_a_divisor_of_the_ranks(tmp_path):
    with pytest.raises(StudyError, match="found 3 hosts for 4 ranks"):
        read_specification(spec_file(tmp_path, hosts=3))


@pytest.mark.parametrize(("job", "found"), [(None, "this job has 0"), ("1", "this job has 3")])
def test_another_number_of_hosts_is_refused(tmp_path, slurm, monkeypatch, job, found):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("PATH", slurm.environment["PATH"])
    monkeypatch.setenv("FAKE_SLURM", slurm.environment["FAKE_SLURM"])
    if job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
        monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-3]")
    with pytest.raises(StudyError, match=rf"hosts: found 2, but {found}.*salloc --nodes=2 --ntasks-per-node=2"):
        run_ranks(read_specification(spec_file(tmp_path)), [], None)


def test_slurm_that_does_not_answer_is_one_message(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StudyError, match="`scontrol show hostnames n1` failed"):
        hosts_of_job()


def test_an_interface_that_a_host_lacks_is_named():
    with pytest.raises(StudyError, match=r"interface: found 'ib7'.*there are: .*\blo\b"):
        membership.interface_towards("127.0.0.1", {membership.INTERFACE: "ib7"})
    assert membership.interface_towards("127.0.0.1", {}) == "lo"


# The meeting itself


def joined(meeting: Meeting, **hello):
    place = meeting.environment()
    address, _, port = place["ANATOMY_MEETING"].rpartition(":")
    connection = socket.create_connection((address, int(port)), timeout=10)
    say(connection, **({"token": place["ANATOMY_MEETING_TOKEN"], "host": "n1"} | hello))
    return connection, connection.makefile("r")


def test_ranks_learn_where_rank_0_keeps_its_store_and_tell_how_they_end():
    meeting = Meeting("127.0.0.1", 2)
    later, hears = joined(meeting, rank=1)
    first, _ = joined(meeting, rank=0)
    say(first, store=4321)
    assert json.loads(hears.readline()) == {"store": ["127.0.0.1", 4321]}
    say(later, end="failed", message="rank 1: OSError: gone", details="Traceback")
    end = meeting.ends.get(timeout=10)
    assert (end.rank, end.host, end.how, end.message) == (1, "n1", "failed", "rank 1: OSError: gone")
    first.close()
    meeting.close()


def test_a_connection_that_ends_without_a_word_is_a_lost_rank():
    meeting = Meeting("127.0.0.1", 2)
    first, lines = joined(meeting, rank=0)
    say(first, store=1)
    lines.close()
    first.close()
    end = meeting.ends.get(timeout=10)
    assert (end.rank, end.how) == (0, "lost")
    meeting.close()


@pytest.mark.parametrize("hello", [{"token": "another study's", "rank": 1}, {"rank": 2}, {"rank": -1}, {}])
def test_nobody_else_gets_in(hello):
    meeting = Meeting("127.0.0.1", 2)
    _, lines = joined(meeting, **hello)
    assert lines.readline() == ""
    assert meeting.ends.empty()
    assert not meeting.joined
    meeting.close()


def test_the_end_of_the_launcher_is_seen_by_every_rank():
    meeting = Meeting("127.0.0.1", 2)
    waiting, lines = joined(meeting, rank=1)
    heard = []
    listener = threading.Thread(target=lambda: heard.append(lines.readline()))
    listener.start()
    deadline = time.monotonic() + 10
    while not meeting.joined and time.monotonic() < deadline:
        time.sleep(0.01)
    meeting.close()
    listener.join(10)
    assert not listener.is_alive()
    waiting.close()

"""One study in a folder at a time; no job outlives the study that started it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from anatomy import session
from anatomy.errors import StudyError


def child(code, scripts, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(scripts)} | environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def has_ended(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_second_study_is_refused_until_the_first_is_gone_however_it_went(tmp_path, scripts):
    code = f"""
import time
from pathlib import Path
from anatomy import session
session.hold(Path({str(tmp_path)!r}))
print("held", flush=True)
time.sleep(60)
"""
    first = child(code, scripts)
    assert first.stdout.readline() == "held\n"
    with pytest.raises(StudyError, match=rf"another study \(process {first.pid}\)"):
        session.hold(tmp_path)
    first.send_signal(signal.SIGKILL)
    first.wait()
    session.hold(tmp_path)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "results").write_text("a file in the folder's place")
    with pytest.raises(StudyError, match="results: cannot be written"):
        session.hold(tmp_path / "results")


def test_job_and_its_children_end_when_the_owner_is_killed(tmp_path, scripts):
    job = tmp_path / "job.py"
    job.write_text("""
import subprocess, sys, time
from anatomy.program import run_program
def main():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    print(child.pid, flush=True)
    time.sleep(120)
run_program(main)
""")
    # As Snakemake does it: the job's parent is a shell, which survives its own parent.
    owner = child(
        f"""
import os, subprocess, sys
from anatomy import session
session.end_with(os.getpid())
job = subprocess.Popen(["bash", "-c", f"{{sys.executable}} {str(job)!r}; true"])
print(job.pid, flush=True)
job.wait()
""",
        scripts,
    )
    shell, grandchild = int(owner.stdout.readline()), int(owner.stdout.readline())
    assert not has_ended(shell)
    owner.kill()
    wait_until(lambda: has_ended(shell) and has_ended(grandchild))


def test_by_hand_nothing_is_watched(monkeypatch):
    monkeypatch.delenv("ANATOMY_OWNER", raising=False)
    before = threading.active_count()
    session.watch_owner()
    assert threading.active_count() == before


def test_wrong_folder_is_refused_in_one_line(tmp_path):
    with pytest.raises(StudyError, match="expected the project's root"):
        session.check_folder(tmp_path)


def test_rounds_of_the_scheduler_do_not_multiply(monkeypatch):
    """However often it asks to be woken, one timer is there, and after it another one may be."""
    from snakemake.scheduling.job_scheduler import JobScheduler

    monkeypatch.setattr(JobScheduler, "_schedule_reevalutation", None)
    session.look_again_once()
    scheduler = object.__new__(JobScheduler)
    scheduler._open_jobs = threading.Semaphore(0)
    before = threading.active_count()
    for expected in (1, 2):
        for _ in range(50):
            scheduler._schedule_reevalutation(0.05)
        assert threading.active_count() <= before + 1
        assert scheduler._open_jobs.acquire(timeout=10)
        assert not scheduler._open_jobs.acquire(timeout=0.2), f"woken more than {expected} times"


def test_runs_of_a_seed_go_before_those_of_the_next(monkeypatch):
    """Whatever their inputs; what is no run goes first; and seeds have orders of their own."""
    from snakemake.iocontainers import Wildcards
    from snakemake.scheduling.greedy import Scheduler

    monkeypatch.setattr(Scheduler, "job_reward", None)
    seeds = {f"{strategy}.s{seed}": seed for strategy in "abcdefgh" for seed in (-1, 2, 10)}
    session.measure_in_rounds(seeds.get)
    runs = [SimpleNamespace(priority=0, wildcards=Wildcards(fromdict={"run": name})) for name in seeds]
    table = SimpleNamespace(priority=0, wildcards=Wildcards(fromdict={"table": "runs"}))
    scheduler = object.__new__(Scheduler)
    order = sorted([*runs, table], key=lambda job: scheduler.job_reward(job, {}), reverse=True)
    assert order.pop(0) is table
    names = [job.wildcards.run for job in order]
    assert [seeds[name] for name in names] == [-1] * 8 + [2] * 8 + [10] * 8
    orders = {tuple(name[0] for name in names[start : start + 8]) for start in (0, 8, 16)}
    assert len(orders) == 3

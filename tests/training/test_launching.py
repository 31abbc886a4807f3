"""The programs as a person or a rule starts them: whole runs, failing runs, and several at once.

All programs run at the same time: that parallel jobs do not meet is tested by all the rest.
"""

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from training_cases import Case, job_for

from anatomy.phases import Phase

pytestmark = pytest.mark.slow

SLURM = {
    "SLURM_PROCID": "7",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "7",
    "SLURM_JOB_NODELIST": "node[1-8]",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "1",
    "RANK": "7",
    "WORLD_SIZE": "8",
}


@dataclass
class Ended:
    """A program that ended: status, what it printed, its folder of results, and seconds from the fault on."""

    status: int
    stderr: str
    out: Path


def command(case: Case, script: Path, out: Path, *options: str, leading: tuple[str, ...] = (), **settings) -> list[str]:
    job = job_for(case, out, ranks=2, **settings)
    inputs = ["--spec", job.spec, "--graph", job.graph, "--partition", job.partition, "--out", out]
    return [*map(str, [sys.executable, *leading, script, *inputs]), *options]


def faulty(case: Case, fault: str, out: Path, **training) -> list[str]:
    job = job_for(case, out, ranks=2, training=training)
    script = Path(__file__).parent / "faulty_launch.py"
    return list(map(str, [sys.executable, script, fault, job.spec, job.graph, job.partition, out]))


def torchrun() -> tuple[str, ...]:
    """How two ranks are started by hand, here on a port that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port))


@pytest.fixture(scope="module")
def programs(small, scripts, tmp_path_factory) -> dict[str, Ended]:
    """Every program that the tests look at, by name."""
    folder = tmp_path_factory.mktemp("programs")
    launch, train = scripts / "launch_run.py", scripts / "train_run.py"
    commands = {
        "first": command(small, launch, folder / "first", method="minibatch"),
        "slurm": command(small, launch, folder / "slurm", method="minibatch"),
        "torchrun": command(small, train, folder / "torchrun", method="minibatch", leading=torchrun()),
        "profiled": command(small, launch, folder / "profiled", "--mode", "profiled", strategy={"epochs": 1}),
        "profiled batches": command(small, launch, folder / "batches", "--mode", "profiled", method="minibatch"),
        "raise": faulty(small, "raise", folder / "raise"),
        "kill": faulty(small, "kill", folder / "kill"),
        "memory": faulty(small, "memory", folder / "memory"),
        "memory refused": faulty(small, "memory", folder / "refused", keep_failures=False),
        "hang": faulty(small, "hang", folder / "hang", timeout_s=20),
    }
    outs = {name: Path(line[-1] if "faulty_launch" in line[1] else line[line.index("--out") + 1])
            for name, line in commands.items()}  # fmt: skip
    running = {}
    for name, line in commands.items():
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | (SLURM if name == "slurm" else {})
        running[name] = subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True)
    ended = {}
    for name, process in running.items():
        stderr = process.communicate(timeout=150)[1]
        ended[name] = Ended(process.returncode, stderr, outs[name])
    return ended


def losses(ended: Ended) -> list[float]:
    return pd.read_parquet(ended.out / "epochs.parquet").loss.tolist()


@pytest.mark.parametrize("name", ["first", "slurm", "torchrun"])
def test_a_run_leaves_its_result_and_says_how_far_it_is(programs, name):
    ended = programs[name]
    assert ended.status == 0, ended.stderr
    metrics = json.loads((ended.out / "metrics.json").read_text())
    assert (metrics["kind"], metrics["status"], metrics["ranks"]) == ("metrics", "completed", 2)
    assert "epoch 4/4: loss" in ended.stderr
    assert not list(ended.out.glob(".*partial*"))


def test_neither_launcher_nor_slurm_nor_parallel_jobs_change_a_run(programs):
    assert losses(programs["first"]) == losses(programs["slurm"]) == losses(programs["torchrun"])


@pytest.mark.parametrize(("name", "steps"), [("profiled", [2, 3]), ("profiled batches", [2, 3])])
def test_a_profiled_run_traces_its_window_of_steps(programs, name, steps):
    ended = programs[name]
    assert ended.status == 0, ended.stderr
    manifest = json.loads((ended.out / "manifest.json").read_text())
    assert (manifest["kind"], manifest["first_step"]) == ("profile", 2)
    assert [len(wall_s) for wall_s in manifest["wall_s"]] == [2, 2]
    for rank in range(2):
        with gzip.open(ended.out / f"rank{rank}.json.gz") as file:
            trace = json.load(file)
        assert trace["distributedInfo"]["rank"] == rank
        names = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
        assert [name for name in names if name.startswith("ProfilerStep")] == [f"ProfilerStep#{step}" for step in steps]
        expected = {"aggregate", "combine", "loss", "backward", "exchange", "sync", "optimize", "evaluate"}
        expected |= {"sample", "fetch", "gather", "copy"} if name == "profiled batches" else set()
        assert {name[len("phase:") :] for name in names if name.startswith("phase:")} == expected
        assert expected <= set(Phase)


@pytest.mark.parametrize(
    ("name", "first_line"),
    [
        ("raise", "error: rank 1: ArithmeticError: planted in step 2"),
        ("kill", "error: rank 1: ended by signal SIGKILL"),
        ("memory refused", "error: rank 1: RuntimeError: DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_a_failing_rank_ends_the_run_with_the_first_error_first(programs, name, first_line):
    ended = programs[name]
    assert ended.status == 1
    errors = [line for line in ended.stderr.splitlines() if "rror" in line]
    assert errors[0].startswith(first_line), ended.stderr
    assert "Connection closed" not in ended.stderr
    assert sorted(path.name for path in ended.out.iterdir()) == ["run.json"]


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [("memory", "out of memory", "rank 1: RuntimeError: DefaultCPU"), ("hang", "time limit", "time limit of 20 s")],
)
def test_a_run_without_memory_or_time_is_kept_as_data(programs, name, status, reason):
    ended = programs[name]
    assert ended.status == 0, ended.stderr
    metrics = json.loads((ended.out / "metrics.json").read_text())
    assert metrics["status"] == status
    assert reason in metrics["reason"]
    assert len(pd.read_parquet(ended.out / "epochs.parquet")) == 0


@pytest.mark.parametrize("fault", ["raise", "kill"])
def test_a_failing_rank_ends_the_run_within_15_seconds(small, tmp_path, fault):
    """Alone on the machine, from the start on, imports included."""
    start = time.monotonic()
    process = subprocess.run(faulty(small, fault, tmp_path / "out"), capture_output=True, timeout=60)
    assert process.returncode == 1
    assert time.monotonic() - start < 15


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_launcher_that_is_ended_takes_its_ranks_along(small, tmp_path, end):
    process = subprocess.Popen(faulty(small, "hang", tmp_path / "out"), stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "epoch 2/4" in line:
            break
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) >= 2
    process.send_signal(end)
    assert process.wait(timeout=10) != 0
    deadline = time.monotonic() + 10
    while any(is_running(child) for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(is_running(child) for child in children)
    assert not (tmp_path / "out" / "metrics.json").exists()


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_wrong_input_is_one_message_and_no_training(small, scripts, tmp_path):
    line = command(small, scripts / "launch_run.py", tmp_path / "run")
    line[line.index("--partition") + 1] = str(small.partition_path(3))
    process = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert process.returncode == 1
    assert process.stderr.startswith("error: ")
    assert process.stderr.count("\n") == 1
    assert "has 3 parts" in process.stderr


def test_a_wrong_input_is_said_once_under_torchrun(small, scripts, tmp_path):
    line = command(small, scripts / "train_run.py", tmp_path / "run", leading=torchrun())
    line[line.index("--partition") + 1] = str(small.partition_path(3))
    process = subprocess.run(line, capture_output=True, text=True, timeout=90)
    assert process.returncode != 0
    assert process.stderr.count("error: ") == 1
    assert process.stderr.index("has 3 parts") < process.stderr.index("Traceback")

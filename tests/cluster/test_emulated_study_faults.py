"""Faults in mid-study, on a real SLURM: each is reported, and the same call or the next one completes the study.

All of them are suffered side by side; each test looks at what came of one.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import yaml
from emulated_cluster import EmulatedCluster
from study_on_slurm import PEER_TIMEOUT_S, Study, configuration, losses
from suffering import (
    CANCELLED,
    FAR,
    KILLED,
    LIMITED,
    NEAR,
    RAISED,
    STOPPED,
    end_snakemake,
    fill_disk,
    lose_controller,
    lose_hosts,
    lose_ranks,
)

from checkout import Checkout

pytestmark = pytest.mark.slow

AT_ONCE = 5
"""Studies; they mostly wait, but each start of a job takes some seconds of a processor."""
ENDS = {"Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL}


@pytest.fixture(scope="module")
def finished(can_emulate, tmp_path_factory) -> Checkout:
    """The study without SLURM."""
    checkout = Checkout(tmp_path_factory.mktemp("finished") / "study")
    (checkout.root / "config" / "faults.yaml").write_text(yaml.safe_dump(configuration("results/faults")))
    result = checkout.snakemake("runs", "--configfile", "config/faults.yaml")
    assert result.returncode == 0, result.stdout
    return checkout


@pytest.fixture(scope="module")
def outcomes(finished, tmp_path_factory) -> Iterator[dict[str, Future]]:
    """What came of each fault, by name. Clusters end when all have been suffered."""
    shared, lossy, headless = (EmulatedCluster(f"faults-{os.getpid()}-{name}") for name in ("a", "b", "c"))
    studies: dict[str, Study] = {}
    folders = {name: tmp_path_factory.mktemp(name) for name in ("ranks", "hosts", "controller", "disk", *ENDS)}
    disk = folders["disk"] / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=True)  # seen by hosts started later
    try:
        shared.start("--hosts", "3", "--processors", "32", "--memory-mb", "100000")
        lossy.start("--hosts", "5", "--set", "SlurmdTimeout=5", "--set", "JobRequeue=1", "--memory-mb", "20000")
        headless.start("--hosts", "1", "--memory-mb", "20000")
        studies |= {
            "hosts": Study(finished, folders["hosts"], lossy, exclusive=True),
            "ranks": Study(finished, folders["ranks"], shared, checkpoint_every=20),
            "disk": Study(finished, folders["disk"], shared),
            "controller": Study(finished, folders["controller"], headless),
            **{name: Study(finished, folders[name], shared) for name in ENDS},
        }
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield {
                "ranks": pool.submit(lose_ranks, studies["ranks"]),
                "hosts": pool.submit(lose_hosts, studies["hosts"]),
                "controller": pool.submit(lose_controller, studies["controller"]),
                **{name: pool.submit(end_snakemake, studies[name], end) for name, end in ENDS.items()},
                "disk": pool.submit(fill_disk, studies["disk"], disk),
            }
    finally:
        for study in studies.values():
            study.stop()
        for cluster in (shared, lossy, headless):
            cluster.stop()
        subprocess.run(["umount", disk], check=True)


# Ranks and jobs


@pytest.mark.parametrize(
    ("run", "error"),
    [
        (RAISED, "error: rank 1: ArithmeticError: planted in step 2"),
        (KILLED, "error: rank 1 on n"),
        (STOPPED, "error: rank 0: PeerTimeout: waited for the other ranks as long as training.peer_timeout_s"),
    ],
    ids=["raises", "is killed", "is stopped"],
)
def test_a_run_of_which_a_rank_fails_shows_its_first_error_and_is_run_again(outcomes, finished, run, error):
    outcome = outcomes["ranks"].result()
    assert f".timed.log: {error}" in outcome[run]["said"]
    assert not outcome[run]["left"]
    assert outcome[run]["reported_s"] < PEER_TIMEOUT_S + 100  # SLURM and Snakemake, on a machine that has other work
    assert_complete(outcome["study"], finished, run)


@pytest.mark.parametrize(
    ("run", "error"),
    [(CANCELLED, "CANCELLED, it was cancelled"), (LIMITED, "TIMEOUT, its time limit was reached")],
    ids=["scancel", "time limit"],
)
def test_a_job_that_slurm_ends_is_reported_as_such_and_goes_on_from_its_checkpoint(outcomes, finished, run, error):
    outcome = outcomes["ranks"].result()
    words = f"error: SLURM job {outcome[run]['job']}: {error}"
    assert words in outcome[run]["said"]
    assert outcome[run]["log"].startswith(words)
    assert not outcome[run]["left"]
    assert_complete(outcome["study"], finished, run)
    (resumed_at,) = outcome["study"].metrics(run)["resumed_at"]
    assert resumed_at >= 20


def test_a_study_that_lost_five_jobs_is_complete_at_the_end_of_the_same_call(outcomes):
    outcome = outcomes["ranks"].result()
    assert outcome["status"] == 0, outcome["study"].said()


def assert_complete(study: Study, finished: Checkout, run: str) -> None:
    """A run's numbers are those of the study without SLURM, and nothing is left of what failed."""
    assert study.metrics(run)["status"] == "completed"
    assert losses(study.results, run) == losses(finished.root / "results" / "faults", run.replace(".h2.", "."))
    assert not study.kept_log(run).exists()
    assert not list(study.metrics_path(run).parent.glob(".*"))


# Hosts


def test_a_run_whose_host_disappears_is_run_again_elsewhere(outcomes, finished):
    outcome = outcomes["hosts"].result()
    assert outcome["status"] == 0, outcome["study"].said()
    assert outcome[FAR[0]]["reported_s"] < 120
    assert "NODE_FAIL, its host failed" in outcome[FAR[0]]["said"]
    assert_complete(outcome["study"], finished, FAR[0])


def test_an_orphan_that_ends_while_the_next_attempt_trains_leaves_nothing(outcomes, finished):
    outcome = outcomes["hosts"].result()
    assert "NODE_FAIL, its host failed" in outcome[NEAR[0]]["said"]
    assert not outcome["left by the first"]
    assert_complete(outcome["study"], finished, NEAR[0])


def test_an_orphan_that_ends_after_the_study_spoils_nothing(outcomes, finished):
    outcome = outcomes["hosts"].result()
    assert not outcome["spoiled by the second"]
    assert "Nothing to be done" in outcome["said again"]
    assert_complete(outcome["study"], finished, NEAR[1])


# SLURM itself


def test_a_study_goes_on_when_slurm_does(outcomes, finished):
    outcome = outcomes["controller"].result()
    assert outcome["status"] == 0, outcome["study"].said()
    assert "FAILED" not in outcome["study"].said()
    for run in NEAR[:2]:
        assert_complete(outcome["study"], finished, run)


# Snakemake


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_snakemake_that_is_told_to_end_cancels_its_jobs_and_the_next_call_completes_the_study(outcomes, finished, how):
    outcome = outcomes[how].result()
    assert outcome["status"] != 0
    assert "Traceback" not in outcome["said"]
    assert outcome["ended_s"] < 60
    assert outcome["jobs"] == []
    assert_complete(outcome["study"], finished, FAR[0])


def test_jobs_of_a_killed_snakemake_are_named_and_cancelled_by_the_next_call(outcomes, finished):
    outcome = outcomes["SIGKILL"].result()
    assert outcome["jobs"] == [outcome["job"]]
    assert f"jobs that an earlier call left behind, cancelled: {outcome['job']}" in outcome["said again"]
    assert_complete(outcome["study"], finished, FAR[0])


def test_studies_on_the_same_hosts_at_once_train_as_alone(outcomes, finished):
    """Up to three at a time, each with a run of the same name on two hosts, which no job has to itself."""
    for name in ("ranks", *ENDS):
        outcome = outcomes[name].result()
        assert_complete(outcome["study"], finished, FAR[0])


# The disk


def test_a_full_disk_is_named_nothing_is_taken_for_whole_and_the_next_call_goes_on(outcomes, finished):
    outcome = outcomes["disk"].result()
    assert outcome["status"] == 1
    assert "error: results/faults/logs/runs: no space left on device" in outcome["said"]
    assert not outcome["left"]
    assert_complete(outcome["study"], finished, NEAR[2])


def test_a_read_only_results_folder_is_one_message(outcomes):
    outcome = outcomes["disk"].result()
    assert outcome["status read-only"] == 1
    *_, message = outcome["said read-only"].splitlines()
    assert message.startswith("error: results/faults: cannot be written (Read-only file system)")
    assert "Traceback" not in outcome["said read-only"]

"""`snakemake --profile slurm` in the project's root, against SLURM's commands as `fake_slurm` plays them."""

import re
import shutil
import signal
import subprocess
import time

import pandas as pd
import psutil
import pytest

from fake_slurm import Fake, option

PROFILE = ("--profile", "slurm", "--configfile", "config/test.yaml", "--slurm-init-seconds-before-status-checks", "1")
SITE = "profiles/slurm/site.yaml"
ONE_HOST, TWO_HOSTS = "tiny.metis-2.minibatch.sage.s0", "tiny.metis-2.minibatch.sage.h2.s0"

pytestmark = pytest.mark.slow


def metrics(run):
    return f"results/test/runs/{run}/timed/metrics.json"


class Study:
    """The finished test study in a folder of its own, at a login node; its timed runs can be taken away."""

    def __init__(self, finished, folder):
        self.checkout = finished.copied_to(folder / "study")
        self.root = self.checkout.root
        (self.root / "slurm").symlink_to("profiles/slurm")
        shutil.copy(self.root / "profiles" / "slurm" / "site.example.yaml", self.root / SITE)
        self.slurm = Fake(folder / "slurm")

    def without(self, run):
        shutil.rmtree(self.root / "results" / "test" / "runs" / run / "timed", ignore_errors=True)

    def snakemake(self, *arguments):
        return self.checkout.snakemake(*arguments, **self.slurm.environment)

    def start(self, *arguments):
        """Start Snakemake and wait until SLURM has a job of it that runs; returns both."""
        process = subprocess.Popen(
            self.checkout.command(*arguments),
            cwd=self.root,
            env={**psutil.Process().environ(), **self.slurm.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        wait_until(lambda: any(job.get("group") for job in self.slurm.jobs().values()), 60)
        return process, next(iter(self.slurm.jobs()))

    def losses(self, run):
        return pd.read_parquet((self.root / metrics(run)).with_name("epochs.parquet")).loss.tolist()


@pytest.fixture
def study(finished, tmp_path):
    return Study(finished[0], tmp_path)


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def test_runs_on_one_and_two_hosts_are_submitted_and_train_as_on_this_machine(study):
    here = study.losses(ONE_HOST)
    study.without(ONE_HOST)
    result = study.snakemake(metrics(ONE_HOST), metrics(TWO_HOSTS), *PROFILE)
    assert result.returncode == 0, result.stdout
    assert study.losses(ONE_HOST) == study.losses(TWO_HOSTS) == here
    calls = {option(call, "--nodes"): call for call in study.slurm.calls("sbatch")}
    assert calls.keys() == {"1", "2"}
    for hosts, tasks, processors in (("1", "1", "2"), ("2", "2", "1")):
        options = {name: option(calls[hosts], name) for name in ("-p", "-t", "--ntasks", "--cpus-per-task")}
        # 120 s of the run, and ten minutes around it.
        assert options == {"-p": "main", "-t": "12", "--ntasks": tasks, "--cpus-per-task": processors}
        assert "--exclusive" in calls[hosts]
    lines = re.findall(r"^\d\d:\d\d:\d\d .* done   (.*)$", result.stdout, re.MULTILINE)
    assert {f"train {ONE_HOST}", f"train {TWO_HOSTS}"} <= set(lines)
    assert not list((study.root / "results" / "test" / "logs" / "slurm").rglob("*.log")), "nothing failed"


def test_a_failed_run_names_the_kept_log_and_its_first_error_and_is_tried_again(study):
    features = study.root / "results" / "test" / "graphs" / "tiny" / "features.npy"
    features.write_bytes(features.read_bytes()[:-4])
    study.without(ONE_HOST)
    result = study.snakemake(metrics(ONE_HOST), *PROFILE)
    assert result.returncode == 1
    kept = f"results/test/logs/failed/{ONE_HOST}.timed.log"
    said = f"FAILED: train {ONE_HOST}\n{kept}: error: results/test/graphs/tiny/features.npy: damaged"
    assert result.stdout.count(said) == 2
    assert "rule_train_run" in (study.root / kept).read_text(), "SLURM's log of the job as well"
    once, again = study.slurm.calls("sbatch")
    assert int(option(again, "--mem")) == 2 * int(option(once, "--mem"))


def test_snakemake_that_is_told_to_end_cancels_its_jobs_and_goes_on_later(study):
    study.without(ONE_HOST)
    process, job = study.start(metrics(ONE_HOST), *PROFILE)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=30)[0]
    assert process.returncode != 0
    assert "Traceback" not in said
    assert study.slurm.jobs()[job]["state"] == "CANCELLED"
    assert study.snakemake(metrics(ONE_HOST), *PROFILE).returncode == 0


def test_jobs_of_a_killed_snakemake_are_cancelled_by_the_next_call(study):
    study.without(ONE_HOST)
    process, job = study.start(metrics(ONE_HOST), *PROFILE)
    process.kill()
    process.communicate(timeout=30)
    result = study.snakemake(metrics(ONE_HOST), *PROFILE)
    assert result.returncode == 0, result.stdout
    assert f"left behind, cancelled: {job}" in result.stdout or study.slurm.jobs()[job]["state"] == "COMPLETED"


def test_without_the_clusters_settings_nothing_starts(study):
    (study.root / SITE).unlink()
    result = study.snakemake(*PROFILE)
    assert result.returncode == 1
    assert f"error: {SITE}: not found" in result.stdout
    assert f"cp profiles/slurm/site.example.yaml {SITE}" in result.stdout
    study.without(ONE_HOST)
    alone = study.snakemake(metrics(ONE_HOST), "--executor", "slurm", "--jobs", "2", "--configfile", "config/test.yaml")
    assert alone.returncode == 1
    assert "use `--profile slurm`" in alone.stdout
    assert study.slurm.calls("sbatch") == []


def test_what_needs_two_hosts_is_part_of_the_study_only_on_a_cluster(study):
    here = study.checkout.snakemake("--dry-run", "--forceall", "--configfile", "config/test.yaml")
    there = study.snakemake("--dry-run", "--forceall", *PROFILE)
    assert TWO_HOSTS not in here.stdout
    assert f"train {TWO_HOSTS}" in there.stdout
    again = study.checkout.snakemake("--configfile", "config/test.yaml")
    assert re.search(rf"not measurable here, for want of a second host: .*{re.escape(TWO_HOSTS)}", again.stdout)

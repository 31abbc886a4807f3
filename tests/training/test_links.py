"""Links between the hosts of a run: set before its ranks start, by the site's command, and lifted however it ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from training_cases import job_for, specification

from anatomy.errors import StudyError
from anatomy.site import read_site
from anatomy.training.links import links_set
from anatomy.training.specification import read_specification
from fake_slurm import Fake

SET_100, SET_UNSHAPED = ["n1 100", "n2 100"], ["n1 unshaped", "n2 unshaped"]


class Site:
    """A site whose command notes how it was called, and fails for the hosts that a test names."""

    def __init__(self, folder: Path) -> None:
        self.path, self._notes, self.broken = folder / "site.yaml", folder / "notes", folder / "broken"
        self._notes.touch()
        self.broken.touch()
        command = folder / "set link"
        command.write_text(f'#!/bin/sh\necho "$1 $2" >> {self._notes}\n! grep "$1 $2" {self.broken} >&2\n')
        command.chmod(0o755)
        self.path.write_text(f"set_link: \"'{command}' {{host}} {{rate}}\"\n")

    @property
    def calls(self) -> list[str]:
        return self._notes.read_text().splitlines()


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def run_of(tmp_path, **changes):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(specification(ranks=2) | {"hosts": 2} | changes))
    return read_specification(path)


def test_links_have_the_bandwidth_during_the_run_and_none_after_it(site, tmp_path):
    with links_set(run_of(tmp_path, link_mbit=100), ["n1", "n2"], read_site(site.path)):
        assert site.calls == SET_100
    assert site.calls == SET_100 + SET_UNSHAPED


def test_a_run_without_a_bandwidth_lifts_what_a_killed_one_left(site, tmp_path):
    with links_set(run_of(tmp_path), ["n1", "n2"], read_site(site.path)):
        assert site.calls == SET_UNSHAPED
    assert site.calls == SET_UNSHAPED


def test_links_are_lifted_after_a_failure(site, tmp_path):
    with (
        pytest.raises(ArithmeticError),
        links_set(run_of(tmp_path, link_mbit=100), ["n1", "n2"], read_site(site.path)),
    ):
        raise ArithmeticError
    assert site.calls == SET_100 + SET_UNSHAPED


def test_a_command_that_fails_ends_the_run_before_it_starts_and_lifts_the_others(site, tmp_path):
    site.broken.write_text("n2 100 is not mine\n")
    with (
        pytest.raises(StudyError, match=r"site\.yaml: set_link: `.* n2 100` failed \(n2 100 is not mine\)"),
        links_set(run_of(tmp_path, link_mbit=100), ["n1", "n2"], read_site(site.path)),
    ):
        pytest.fail("the run must not start")
    assert site.calls == SET_100 + SET_UNSHAPED


def test_links_that_cannot_be_lifted_do_not_undo_a_run(site, tmp_path, caplog):
    site.broken.write_text("n1 unshaped: no\n")
    with links_set(run_of(tmp_path, link_mbit=100), ["n1", "n2"], read_site(site.path)):
        pass
    assert "the link of n1 stays at 100 Mbit/s" in caplog.text
    assert site.calls == SET_100 + SET_UNSHAPED, "the other host's is lifted all the same"


@pytest.mark.parametrize("with_site", [True, False])
def test_a_bandwidth_that_nothing_can_set_is_an_error(tmp_path, with_site):
    (tmp_path / "plain.yaml").write_text("")
    plain = read_site(tmp_path / "plain.yaml") if with_site else None
    with (
        pytest.raises(StudyError, match=r"run\.json: link_mbit: found 100, but nothing says how links are set here"),
        links_set(run_of(tmp_path, link_mbit=100), ["n1", "n2"], plain),
    ):
        pytest.fail("the run must not start")
    with links_set(run_of(tmp_path), ["n1", "n2"], plain):
        pass


def test_one_host_has_no_link(tmp_path):
    with pytest.raises(StudyError, match="link_mbit: found 100 for a run on one host"):
        run_of(tmp_path, hosts=1, link_mbit=100)


@pytest.mark.slow
def test_the_launcher_sets_the_links_of_its_jobs_hosts(small, scripts, site, tmp_path):
    job = job_for(small, tmp_path / "out", ranks=2)
    spec = json.loads(job.spec.read_text())
    job.spec.write_text(json.dumps(spec | {"hosts": 2, "link_mbit": 100}))
    line = [sys.executable, scripts / "launch_run.py", "--spec", job.spec, "--graph", job.graph]
    line += ["--partition", job.partition, "--out", job.out, "--site", site.path]
    inside = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-2]", **Fake(tmp_path / "slurm").environment}
    done = subprocess.run(list(map(str, line)), env=os.environ | inside, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert job.metrics()["status"] == "completed"
    assert site.calls == ["localhost 100"] * 2 + ["localhost unshaped"] * 2, "both hosts of this SLURM are this one"

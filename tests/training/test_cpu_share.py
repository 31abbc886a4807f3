"""A process with a share of a processor: in a control group of its own, with a quota, as long as it lasts."""

import os
from pathlib import Path

import pytest
from training_cases import job_for

from anatomy.errors import StudyError
from anatomy.training import cpu_share
from anatomy.training.run import open_inputs, train

HALF = {"name": "half", "cpu_share": {"rank": 0, "share": 0.5}}


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Two folders that stand for a process's own group and the one around it, of version 2."""
    (tmp_path / "around" / "own").mkdir(parents=True)
    found = [(tmp_path / "around" / "own", 2), (tmp_path / "around", 2)]
    monkeypatch.setattr(cpu_share, "own_places", lambda: found)
    return found


@pytest.mark.parametrize(
    ("version", "processors", "written"),
    [
        (1, 0.5, {"cpu.cfs_period_us": "10000", "cpu.cfs_quota_us": "5000"}),
        (1, 0.05, {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "5000"}),
        (2, 1.5, {"cpu.max": "15000 10000"}),
    ],
)
def test_a_quota_is_a_share_of_a_period(tmp_path, version, processors, written):
    cpu_share._limit(tmp_path, version, processors)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == written


def test_the_process_is_in_a_group_with_a_limit_and_in_its_own_one_afterwards(places):
    (own, _), _ = places
    with cpu_share.limited(0.25):
        group = own / f"anatomy-{os.getpid()}"
        assert (group / "cpu.max").read_text() == "2500 10000"
        assert (group / "cgroup.procs").read_text() == str(os.getpid())
    assert (own / "cgroup.procs").read_text() == str(os.getpid())


def test_where_no_group_can_be_made_in_the_own_one_it_is_made_around_it(places, monkeypatch):
    (own, _), (around, _) = places
    limit = cpu_share._limit
    refused = []

    def refuse(group: Path, version: int, processors: float) -> None:
        if group.parent == own:
            refused.append(group)
            raise PermissionError
        limit(group, version, processors)

    monkeypatch.setattr(cpu_share, "_limit", refuse)
    with cpu_share.limited(0.25):
        assert (around / f"anatomy-{os.getpid()}" / "cgroup.procs").is_file()
    assert refused
    assert not refused[0].exists()


def test_a_group_of_a_killed_process_is_removed_and_that_of_a_living_one_is_not(places):
    (own, _), _ = places
    (own / "anatomy-999999999").mkdir()
    (own / f"anatomy-{os.getppid()}").mkdir()
    with cpu_share.limited(0.25):
        left = {path.name for path in own.glob("anatomy-*")}
    assert left == {f"anatomy-{os.getppid()}", f"anatomy-{os.getpid()}"}


def test_a_run_that_wants_a_share_ends_in_words_where_there_is_none(small, tmp_path, monkeypatch, alone):
    monkeypatch.setattr(cpu_share, "own_places", list)
    assert not cpu_share.can_limit()
    job = job_for(small, tmp_path / "half", condition=HALF)
    inputs = open_inputs(job.spec, job.graph, job.partition)
    with pytest.raises(StudyError, match=r"run\.json: condition: found a share .* \(tried in: none is mounted\)"):
        train(inputs, job.out, job.mode, "env://")


@pytest.mark.skipif(not cpu_share.can_limit(), reason="no control group for processor time may be made here")
class TestOnThisMachine:
    def test_the_kernel_knows_the_limit(self):
        before = Path("/proc/self/cgroup").read_text()
        with cpu_share.limited(0.5):
            inside = Path("/proc/self/cgroup").read_text()
            group = cpu_share.own_places()[0][0]
            assert group.name == f"anatomy-{os.getpid()}"
            limits = [group / name for name in ("cpu.cfs_quota_us", "cpu.max") if (group / name).exists()]
            assert limits[0].read_text().split()[0] == "5000"
        assert before != inside
        assert Path("/proc/self/cgroup").read_text() == before
        assert not group.exists()

    def test_a_rank_trains_within_it(self, small, run_ranks, tmp_path):
        job = job_for(small, tmp_path / "half", ranks=2, condition=HALF)
        run_ranks(2, [job])
        assert job.metrics()["status"] == "completed"

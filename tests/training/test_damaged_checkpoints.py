"""Checkpoints that are half-written, damaged or not the run's own are never used, and a full disk costs only them."""

import errno
import json
import logging
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
from interruptions import (
    be_rank_once,
    complete,
    newest,
    numbers,
    pieces,
    settings,
    uninterrupted,
)
from training_cases import Job, changed, job_for, write_partition

from anatomy.errors import StudyError
from anatomy.training import checkpoint_files
from anatomy.training.checkpoint_files import FOLDER, MANIFEST, part_path

pytestmark = pytest.mark.usefixtures("alone")

# Damage


def cut(folder: Path, rank: int) -> None:
    path = part_path(folder, rank)
    path.write_bytes(path.read_bytes()[:-1])


def flip(folder: Path, rank: int) -> None:
    path = part_path(folder, rank)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def lose(folder: Path, rank: int) -> None:
    part_path(folder, rank).unlink()


def garble_manifest(folder: Path, rank: int) -> None:
    (folder / MANIFEST).write_text("{")


def forget_rank(folder: Path, rank: int) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"parts": manifest["parts"][:rank]}))


def swap_with_older(folder: Path, rank: int) -> None:
    """Parts of different epochs: each whole, but not of one checkpoint."""
    shutil.copy(part_path(min(folder.parent.glob("epochs-*")), rank), part_path(folder, rank))


@pytest.mark.parametrize("damage", [cut, flip, lose, garble_manifest, forget_rank, swap_with_older])
def test_the_last_good_checkpoint_is_used_where_the_newest_is_damaged(small, tmp_path, caplog, damage):
    job = job_for(small, tmp_path / "job", **settings("minibatch"))
    assert not complete(job, end_after=3)
    damage(newest(job), 0)
    caplog.clear()
    assert complete(job)
    assert job.metrics()["resumed_at"] == [2]
    assert len([record for record in caplog.records if "is not used" in record.message]) == 1
    assert numbers(job) == numbers(uninterrupted(small, tmp_path, "minibatch"))


def test_a_checkpoint_of_which_one_rank_has_no_part_is_used_by_none(small, tmp_path, start_ranks):
    job = job_for(small, tmp_path / "job", **settings("minibatch", ranks=2))
    for number, end_after in enumerate([3, None]):
        processes = start_ranks(2, be_rank_once, job, Path(f"{job.out}.rendezvous-{number}"), end_after)
        for process in processes:
            process.join(60)
        if end_after:
            cut(newest(job), 1)
    assert job.metrics()["resumed_at"] == [2]
    assert pieces(job, 0) == pieces(job, 1) == [0, 0, 1, 1, 1]


def test_the_run_starts_over_where_all_checkpoints_are_damaged(small, tmp_path, caplog):
    job = job_for(small, tmp_path / "job", **settings("fullgraph"))
    assert not complete(job, end_after=3)
    for folder in (job.out / FOLDER).glob("epochs-*"):
        flip(folder, 0)
    assert complete(job)
    assert job.metrics()["resumed_at"] == []
    assert numbers(job) == numbers(uninterrupted(small, tmp_path))


def test_a_checkpoint_without_its_manifest_was_being_written_and_is_not_used(small, tmp_path):
    job = job_for(small, tmp_path / "job", **settings("fullgraph"))
    assert not complete(job, end_after=3)
    (newest(job) / MANIFEST).unlink()
    assert complete(job)
    assert job.metrics()["resumed_at"] == [2]


# Of another run


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        ("training.learning_rate", 0.02, "training"),
        ("model.dropout", 0.25, "model"),
        ("seed", 1, "seed"),
        ("strategy.epochs", 6, "strategy"),
    ],
)
def test_a_checkpoint_of_another_specification_is_not_used(small, tmp_path, caplog, place, value, named):
    job = job_for(small, tmp_path / "job", **settings("fullgraph"))
    assert not complete(job, end_after=3)
    job.spec.write_text(json.dumps(changed(json.loads(job.spec.read_text()), place, value)))
    assert complete(job)
    assert job.metrics()["resumed_at"] == []
    assert f"is not used: it was made with another {named}" in caplog.text
    assert len(list(pieces(job))) == (6 if named == "strategy" else 5)


@pytest.mark.parametrize("place", ["training.timeout_s", "training.peer_timeout_s", "training.checkpoint_every"])
def test_a_checkpoint_outlives_a_longer_time_limit(small, tmp_path, place):
    job = job_for(small, tmp_path / "job", **settings("fullgraph"))
    assert not complete(job, end_after=3)
    job.spec.write_text(json.dumps(changed(json.loads(job.spec.read_text()), place, 90)))
    assert complete(job)
    assert job.metrics()["resumed_at"] == [3]


@pytest.mark.parametrize("changed_input", ["graph", "partition", "program", "versions"])
def test_a_checkpoint_of_other_inputs_is_not_used(small, tmp_path, monkeypatch, caplog, changed_input):
    from anatomy.training import checkpoints

    job = job_for(small, tmp_path / "job", **settings("fullgraph"))
    assert not complete(job, end_after=3)
    made_for = checkpoints.made_for
    monkeypatch.setattr(checkpoints, "made_for", lambda context: made_for(context) | {changed_input: "another"})
    assert complete(job)
    assert job.metrics()["resumed_at"] == []
    assert f"made with another {changed_input}" in caplog.text


def test_graph_and_partition_are_known_by_their_content(small, tmp_path):
    """Another assignment of the same graph to as many parts is another partition."""
    from anatomy.training.checkpoints import made_for
    from anatomy.training.run import open_inputs

    class Context:
        def __init__(self, job: Job) -> None:
            inputs = open_inputs(job.spec, job.graph, job.partition)
            self.specification, self.graph, self.partition = inputs.specification, inputs.graph, inputs.partition

    write_partition(tmp_path / "other", small.graph, np.arange(60) % 2)
    first = job_for(small, tmp_path / "first", **settings("fullgraph", ranks=2))
    second = job_for(small, tmp_path / "second", partition=tmp_path / "other", **settings("fullgraph", ranks=2))
    one, two = made_for(Context(first)), made_for(Context(second))
    assert [key for key in one if one[key] != two[key]] == ["partition"]
    assert one["graph"] == small.graph.identity


# A disk that is full, or read-only


@pytest.fixture
def full_disk(monkeypatch):
    """`full_disk(epochs)`: files of those checkpoints can't get longer than 2,000 bytes, by the kernel's own doing."""

    def fill(epochs: set[int]) -> None:
        write = checkpoint_files._write_durably

        def write_on_full_disk(path: Path, data: bytes) -> None:
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            if any(f"epochs-{number:06d}" in str(path) for number in epochs):
                resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
            try:
                write(path, data)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        monkeypatch.setattr(checkpoint_files, "_write_durably", write_on_full_disk)

    return fill


def test_training_goes_on_where_checkpoints_cannot_be_written_and_says_so_once(small, tmp_path, caplog, full_disk):
    full_disk({1, 2, 3, 4})
    job = job_for(small, tmp_path / "job", **settings("fullgraph"))
    caplog.set_level(logging.INFO)
    assert complete(job)
    assert job.metrics()["checkpoints"] | {"seconds": 0} == {"written": 0, "failed": 4, "seconds": 0}
    (message,) = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert message.startswith("no checkpoint after epoch 1, training goes on: rank 0: ")
    assert "File too large" in message
    assert numbers(job) == numbers(uninterrupted(small, tmp_path))


def test_a_checkpoint_that_was_given_up_leaves_the_one_before(small, tmp_path, caplog, full_disk):
    full_disk({2, 3})
    job = job_for(small, tmp_path / "job", **settings("fullgraph"))
    assert not complete(job, end_after=3)
    assert [path.name.split(".")[0] for path in (job.out / FOLDER).glob("epochs-*")] == ["epochs-000001"]
    assert "ended after epoch 3; the next attempt goes on after 1 epochs" in caplog.text
    assert complete(job)
    assert job.metrics()["resumed_at"] == [1]
    assert numbers(job) == numbers(uninterrupted(small, tmp_path))


def test_a_checkpoint_that_one_rank_cannot_write_is_given_up_by_all(small, tmp_path, start_ranks):
    job = job_for(small, tmp_path / "job", **settings("minibatch", ranks=2))
    for process in (processes := start_ranks(2, be_rank_on_full_disk, job)):
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert job.metrics()["checkpoints"] | {"seconds": 0} == {"written": 0, "failed": 4, "seconds": 0}


def be_rank_on_full_disk(rank: int, num_ranks: int, job: Job) -> None:
    """Rank 1 has no room for any part."""
    if rank == 1:

        def write(path: Path, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

        checkpoint_files._write_durably = write
    be_rank_once(rank, num_ranks, job, Path(f"{job.out}.rendezvous"))


def test_a_folder_that_cannot_be_written_is_one_message_before_training(small, tmp_path):
    job = job_for(small, tmp_path / "job", **settings("fullgraph"))
    (job.out / FOLDER).write_text("a file where the folder should be")
    with pytest.raises(StudyError, match=r"checkpoints cannot be kept here.*set training.checkpoint_every to 0"):
        complete(job)

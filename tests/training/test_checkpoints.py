"""A run that is interrupted and resumed ends as if nothing had happened; what is half-written, damaged or not its own
is never used."""

import errno
import json
import logging
import random
import resource
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as some
from interruptions import attempt, be_often_interrupted, be_rank_once, numbers, pieces, rank_of
from training_cases import Job, changed, job_for, write_partition

from anatomy.errors import StudyError
from anatomy.training import checkpoint_files
from anatomy.training.checkpoint_files import FOLDER, MANIFEST, TakenOver, kept_epochs, part_path
from anatomy.training.failures import INTERRUPTED_STATUS, Interrupted, end_requests

METHODS = ("fullgraph", "minibatch")
DROPPED = {"dropout": 0.5}


def settings(method: str, ranks: int = 1, every: int = 1, epochs: int = 5, **training) -> dict:
    """A run with dropout, so that the weights depend on torch's generator as well."""
    return {
        "method": method,
        "ranks": ranks,
        "model": DROPPED,
        "strategy": {"epochs": epochs},
        "training": {"checkpoint_every": every, **training},
    }


@pytest.fixture(autouse=True)
def alone():
    """The test's own process is the only rank, unless it starts others."""
    with rank_of(0, 1):
        yield


def complete(job: Job, end_after: int | None = None) -> bool:
    return attempt(job, Path(f"{job.out}.rendezvous"), end_after)


def uninterrupted(case, folder: Path, method: str = "fullgraph", **changes) -> Job:
    job = job_for(case, folder / "uninterrupted", **settings(method, every=0, **changes))
    complete(job)
    return job


def newest(job: Job) -> Path:
    """The folder of the newest checkpoint."""
    return max((job.out / FOLDER).glob("epochs-*"))


# Exactness


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_interrupted_after_every_epoch_ends_as_an_uninterrupted_one(small, tmp_path, run_ranks, ranks):
    often = [job_for(small, tmp_path / method, **settings(method, ranks)) for method in METHODS]
    never = [job_for(small, tmp_path / f"{method}-never", **settings(method, ranks, every=0)) for method in METHODS]
    run_ranks(ranks, often, be_often_interrupted)
    run_ranks(ranks, never)
    for job, expected in zip(often, never, strict=True):
        assert numbers(job) == numbers(expected)
        assert job.metrics()["resumed_at"] == [1, 2, 3, 4]
        assert pieces(job, rank=ranks - 1) == [0, 1, 2, 3, 4]
        assert expected.metrics()["resumed_at"] == []
        assert pieces(expected) == [0] * 5
        assert not (job.out / FOLDER).exists()


def test_dropout_makes_the_generators_state_count(small, tmp_path, monkeypatch):
    """What the tests above would show if a checkpoint left the generator out."""
    expected = uninterrupted(small, tmp_path)
    job = job_for(small, tmp_path / "job", **settings("fullgraph"))
    assert not complete(job, end_after=2)
    monkeypatch.setattr("torch.set_rng_state", lambda state: None)
    assert complete(job)
    assert numbers(job)["weights"] != numbers(expected)["weights"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_a_run_killed_at_random_moments_ends_as_an_uninterrupted_one(small, tmp_path, start_ranks, method, ranks):
    seed = random.randrange(1 << 32)
    moments = random.Random(seed)
    job = job_for(small, tmp_path / "killed", **settings(method, ranks, epochs=40))
    kills = 0
    for number in range(5):
        processes = start_ranks(ranks, be_rank_once, job, Path(f"{job.out}.rendezvous-{number}"))
        before = kept_epochs(job.out) or 0
        while number < 4 and (kept_epochs(job.out) or 0) <= before and processes[0].is_alive():
            time.sleep(0.001)
        if number < 4:
            time.sleep(moments.uniform(0, 0.03))
            kills += processes[0].is_alive()
            for process in moments.sample(processes, ranks):
                process.kill()
        for process in processes:
            process.join(60)
        if (job.out / "metrics.json").exists():
            break
    expected = job_for(small, tmp_path / "expected", **settings(method, ranks, every=0, epochs=40))
    for process in (processes := start_ranks(ranks, be_rank_once, expected, Path(f"{expected.out}.rendezvous"))):
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * ranks
    assert numbers(job) == numbers(expected), f"seed {seed}"
    resumed_at = job.metrics()["resumed_at"]
    assert len(resumed_at) >= min(kills, 1), f"seed {seed}"
    assert pieces(job) == [sum(epoch >= resumed for resumed in resumed_at) for epoch in range(40)]


def test_checkpoints_are_written_as_often_as_asked_and_two_are_kept(small, tmp_path, caplog):
    job = job_for(small, tmp_path / "job", **settings("fullgraph", every=2, epochs=9))
    assert not complete(job, end_after=7)
    assert kept_epochs(job.out) == 7  # where the run was asked to end
    assert [path.name.split(".")[0] for path in sorted((job.out / FOLDER).glob("epochs-*"))] == [
        "epochs-000006",
        "epochs-000007",
    ]
    assert complete(job)
    metrics = job.metrics()
    assert metrics["resumed_at"] == [7]
    assert metrics["checkpoints"]["written"] == 1  # after 8; after 9 the run is complete
    assert metrics["checkpoints"]["failed"] == 0


def test_a_run_that_is_run_again_starts_over(small, tmp_path):
    job = job_for(small, tmp_path / "job", **settings("fullgraph"))
    assert not complete(job, end_after=2)
    assert complete(job)
    assert complete(job)
    assert job.metrics()["resumed_at"] == []


def test_without_checkpoints_an_interrupted_run_is_repeated_from_its_start(small, tmp_path):
    job = job_for(small, tmp_path / "job", **settings("fullgraph"))
    assert not complete(job, end_after=2)
    job = job_for(small, tmp_path / "job", **settings("fullgraph", every=0))
    assert complete(job)
    assert job.metrics()["resumed_at"] == []
    assert not (job.out / FOLDER).exists()


def test_a_strategy_keeps_what_it_carries_from_epoch_to_epoch(small, tmp_path, monkeypatch):
    import torch

    from anatomy.training.strategies.fullgraph import Strategy

    restored = []
    monkeypatch.setattr(Strategy, "state", lambda self: {"stale": torch.arange(3)})
    monkeypatch.setattr(Strategy, "restore", lambda self, state: restored.append(state["stale"].tolist()))
    job = job_for(small, tmp_path / "job", **settings("fullgraph"))
    assert not complete(job, end_after=2)
    assert complete(job)
    assert restored == [[0, 1, 2]]


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


# Being asked to end


def test_a_run_that_is_asked_to_end_leaves_with_its_own_status(small, tmp_path, caplog):
    from anatomy.training.run import open_inputs, train

    job = job_for(small, tmp_path / "job", **settings("fullgraph"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("anatomy.training.timed.end_requests", lambda heeded: end_requests_that_came(heeded))
        with pytest.raises(Interrupted) as ended:
            train(open_inputs(job.spec, job.graph, job.partition), job.out, "timed", "file:///none")
    assert ended.value.code == INTERRUPTED_STATUS == 75
    assert ended.value.message in caplog.text
    assert "SIGTERM" in ended.value.message
    assert not (job.out / "metrics.json").exists()
    assert kept_epochs(job.out) == 1


def end_requests_that_came(heeded: bool):
    from contextlib import nullcontext

    assert heeded
    return nullcontext(lambda: True)


def test_a_request_to_end_is_only_heeded_where_there_are_checkpoints():
    import signal

    before = signal.getsignal(signal.SIGTERM)
    with end_requests(heeded=False) as came:
        assert signal.getsignal(signal.SIGTERM) is before
        assert not came()
    with end_requests(heeded=True) as came:
        assert not came()
        signal.raise_signal(signal.SIGTERM)
        assert came()
    assert signal.getsignal(signal.SIGTERM) is before


# Attempts that live on


def test_an_attempt_that_was_taken_over_ends_without_a_result(small, tmp_path, monkeypatch):
    """A rank of an earlier attempt, thought lost, comes to the end after the next attempt has begun."""
    from anatomy.training.checkpoints import Checkpoints

    job = job_for(small, tmp_path / "job", **settings("fullgraph", every=100))
    resume = Checkpoints.resume

    def resume_and_be_taken_over(self: Checkpoints, record: object) -> None:
        resume(self, record)
        checkpoint_files.claim(job.out, {})

    monkeypatch.setattr(Checkpoints, "resume", resume_and_be_taken_over)
    with pytest.raises(TakenOver, match=r"attempt\.json: does not name this attempt any more"):
        complete(job)
    assert not (job.out / "metrics.json").exists()
    assert (job.out / FOLDER).exists()  # they are the newer attempt's


@limits(max_examples=40, deadline=None)
@given(some.lists(some.one_of(some.just("claim"), some.tuples(some.integers(0, 3), some.integers(1, 9)))))
def test_only_what_the_newest_attempt_made_or_took_over_counts(tmp_path_factory, events):
    """Attempts begin (`claim`) and commit checkpoints in any order; `model` is what the newest one may build on."""
    out = tmp_path_factory.mktemp("attempts")
    attempts, model = [checkpoint_files.claim(out, {"run": 1})[0]], set()
    for event in events:
        if event == "claim":
            newer, usable = checkpoint_files.claim(out, {"run": 1})
            attempts.append(newer)
            assert {checkpoint.epochs for checkpoint in usable} == model
            assert [checkpoint.epochs for checkpoint in usable] == sorted(model, reverse=True)
            assert {folder.name for folder in newer.root.glob("epochs-*")} == {
                checkpoint.folder.name for checkpoint in usable
            }
            continue
        age, epochs = event
        writer = attempts[max(0, len(attempts) - 1 - age)]
        if writer is not attempts[-1]:
            late = commit_unchecked if epochs % 2 else commit_checked
            late(writer, epochs)
        elif epochs not in model:
            writer.commit(epochs, {"run": 1}, [writer.write_part(epochs, 0, b"content")])
            model.add(epochs)
    assert kept_epochs(out) == max(model, default=None)


def commit_checked(writer: checkpoint_files.Attempt, epochs: int) -> None:
    part = writer.write_part(epochs, 0, b"late")
    with pytest.raises(TakenOver):
        writer.commit(epochs, {"run": 1}, [part])


def commit_unchecked(writer: checkpoint_files.Attempt, epochs: int) -> None:
    """What a late attempt leaves that was taken over between its check and its last file."""
    part = writer.write_part(epochs, 0, b"late")
    manifest = {"kind": "checkpoint", "epochs": epochs, "made_for": {"run": 1}, "parts": [part]}
    (writer.folder(epochs) / MANIFEST).write_text(json.dumps(manifest))


def test_a_late_attempt_makes_no_folder_again_that_a_complete_run_removed(tmp_path):
    late, _ = checkpoint_files.claim(tmp_path, {})
    newest_attempt, _ = checkpoint_files.claim(tmp_path, {})
    newest_attempt.remove()
    with pytest.raises(FileNotFoundError):
        late.write_part(1, 0, b"late")
    with pytest.raises(TakenOver):
        late.check()
    assert list(tmp_path.iterdir()) == []

"""A run that is interrupted and resumed ends as if nothing had happened, and a late attempt leaves nothing."""

import contextlib
import json
import random
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as some
from interruptions import (
    METHODS,
    be_often_interrupted,
    be_rank_once,
    complete,
    numbers,
    pieces,
    settings,
    uninterrupted,
)
from training_cases import job_for

from anatomy.files import TakenOver, attempt
from anatomy.training import checkpoint_files
from anatomy.training.checkpoint_files import FOLDER, MANIFEST, kept_epochs
from anatomy.training.failures import INTERRUPTED_STATUS, Interrupted, end_requests

pytestmark = pytest.mark.usefixtures("alone")

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
    later = contextlib.ExitStack()

    def resume_and_be_taken_over(self: Checkpoints, record: object) -> None:
        resume(self, record)
        later.enter_context(attempt(job.out, "metrics.json"))
        checkpoint_files.claim(job.out, {})

    monkeypatch.setattr(Checkpoints, "resume", resume_and_be_taken_over)
    with later, pytest.raises(TakenOver, match=r"metrics\.json: not written; another attempt at it has begun"):
        complete(job)
    assert not (job.out / "metrics.json").exists()
    assert not (job.out / "epochs.parquet").exists()
    assert (job.out / FOLDER).exists()  # they are the newer attempt's


@limits(max_examples=40)
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

"""Runs that are interrupted, for the tests of checkpoints, and what their results say."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from training_cases import Job, job_for

from anatomy.files import read_json
from anatomy.training import timed
from anatomy.training.checkpoint_files import FOLDER
from anatomy.training.failures import Interrupted
from anatomy.training.run import open_inputs, train

METHODS = ("fullgraph", "minibatch")
DROPPED = {"dropout": 0.5}


@contextmanager
def rank_of(rank: int, num_ranks: int) -> Iterator[None]:
    """What torchrun would set."""
    before = dict(os.environ)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(num_ranks), "GLOO_SOCKET_IFNAME": "lo"}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def attempt(job: Job, rendezvous: Path, end_after: int | None = None) -> bool:
    """Be this rank in one attempt at a run; SIGTERM comes while epoch `end_after`, from 1, trains.

    Returns whether the run came to its end.
    """
    report = timed._report

    def report_and_end(row: dict, num_epochs: int) -> None:
        report(row, num_epochs)
        # Ranks take turns in being the one that is asked to end.
        if row["epoch"] + 1 == end_after and row["rank"] == end_after % int(os.environ["WORLD_SIZE"]):
            os.kill(os.getpid(), signal.SIGTERM)

    timed._report = report_and_end
    try:
        train(open_inputs(job.spec, job.graph, job.partition), job.out, "timed", f"file://{rendezvous}")
    except Interrupted:
        return False
    finally:
        timed._report = report
    return True


def be_often_interrupted(rank: int, num_ranks: int, jobs: list[Job]) -> None:
    """Be a rank of runs that are interrupted after each of their epochs but the last."""
    with rank_of(rank, num_ranks):
        for job in jobs:
            num_epochs = read_json(job.spec)["strategy"]["epochs"]
            for end_after in range(1, num_epochs):
                assert not attempt(job, Path(f"{jobs[0].out}.rendezvous"), end_after)
            assert attempt(job, Path(f"{jobs[0].out}.rendezvous"))


def be_rank_once(rank: int, num_ranks: int, job: Job, rendezvous: Path, end_after: int | None = None) -> None:
    """Be a rank of one attempt."""
    with rank_of(rank, num_ranks):
        attempt(job, rendezvous, end_after)


def numbers(job: Job) -> dict:
    """All that an interruption must not change."""
    epochs = pd.read_parquet(job.out / "epochs.parquet").sort_values(["rank", "epoch"])
    told = [
        *epochs.filter(regex="loss|accuracy|^sent_"),
        "rank",
        "epoch",
        "warmup",
        "steps",
        "train_nodes",
        "remote_nodes",
    ]
    accesses = pd.read_parquet(job.out / "accesses.parquet").sort_values(["rank", "epoch", "node"])
    return {
        "weights": job.metrics()["weights_sha256"],
        "final": job.metrics()["final"],
        "setup": job.metrics()["setup_sent_bytes"],
        "epochs": epochs[told].astype(object).where(epochs[told].notna(), None).to_dict("list"),
        "accesses": accesses.to_dict("list"),
    }


def pieces(job: Job, rank: int = 0) -> list[int]:
    """Of each epoch, in order, the piece in which it was trained."""
    epochs = pd.read_parquet(job.out / "epochs.parquet").sort_values("epoch")
    return epochs[epochs["rank"] == rank].piece.tolist()


def settings(method: str, ranks: int = 1, every: int = 1, epochs: int = 5, **training) -> dict:
    """A run with dropout, so that the weights depend on torch's generator as well."""
    return {
        "method": method,
        "ranks": ranks,
        "model": DROPPED,
        "strategy": {"epochs": epochs},
        "training": {"checkpoint_every": every, **training},
    }


def complete(job: Job, end_after: int | None = None) -> bool:
    return attempt(job, Path(f"{job.out}.rendezvous"), end_after)


def uninterrupted(case, folder: Path, method: str = "fullgraph", **changes) -> Job:
    job = job_for(case, folder / "uninterrupted", **settings(method, every=0, **changes))
    complete(job)
    return job


def newest(job: Job) -> Path:
    """The folder of the newest checkpoint."""
    return max((job.out / FOLDER).glob("epochs-*"))

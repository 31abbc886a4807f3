"""Checkpoints of timed runs, so that a run can be longer than the time that a batch system gives to one job.

With `training.checkpoint_every` at 0, the default, there are none: a run that is interrupted is repeated from its
start, and its times are those of one uninterrupted run. With more than 0, every rank keeps the model, the optimiser,
torch's random generators, what its strategy and its policy of gradients carry on and what was measured; the next
attempt goes on from there, and ends with the same weights and losses to the bit, on the same kind of machine. Then
`metrics.json` says at which epochs (`resumed_at`), `epochs.parquet` which epochs were trained in one piece (`piece`),
and no table gives times of such a run. To have its times, run it again: a complete run leaves no checkpoint behind.

A checkpoint is written between epochs and has reached the disk before the next one starts, so that no epoch that is
timed pays for it. On SIGTERM (a time limit, a preemption, `scancel`) all ranks write one after the epoch that they are
in, and end with the status `failures.INTERRUPTED_STATUS`. A checkpoint that cannot be written (a full disk) is given
up, said once, and training goes on.
"""

import contextlib
import dataclasses
import hashlib
import io
import logging
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from anatomy.graphs.store import identity_of
from anatomy.program import versions
from anatomy.training.checkpoint_files import (
    FOLDER,
    KEPT,
    Attempt,
    Checkpoint,
    DamagedCheckpoint,
    claim,
)
from anatomy.training.failures import Interrupted
from anatomy.training.strategies._base import Context, Strategy

_CHANGE_NO_NUMBER = ("timeout_s", "peer_timeout_s", "checkpoint_every", "keep_failures")
"""Settings of training in which a checkpoint and the attempt that goes on from it may differ."""


class Record(Protocol):
    """What was measured so far: kept in checkpoints too. States hold tensors on the CPU and plain values."""

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


class Checkpoints:
    """One rank's side of all checkpoints of a run; every rank has to make the same calls."""

    def __init__(self, strategy: Strategy, out: Path, stop_asked: Callable[[], bool]) -> None:
        self._strategy = strategy
        self._communicator = strategy.context.communicator
        self._out = out
        self._stop_asked = stop_asked
        self._every = strategy.context.specification.training.checkpoint_every
        self._made_for = made_for(strategy.context) if self._every else {}
        self._attempt: Attempt | None = None
        self._kept: list[Path] = []
        self._newest: int | None = None
        self.summary: dict[str, Any] = {"written": 0, "failed": 0, "seconds": 0.0}
        """For `metrics.json`, complete on rank 0: checkpoints written and given up by this attempt, and their cost."""

    def resume(self, record: Record) -> None:
        """Claim the folder and go on from the newest good checkpoint, if there is one; call it after `prepare`."""
        first = self._communicator.rank == 0
        if not self._every:
            if first:
                shutil.rmtree(self._out / FOLDER, ignore_errors=True)
            return
        self._attempt, usable = self._communicator.broadcast(claim(self._out, self._made_for) if first else None)
        while usable:
            problem = self._restore(usable[0], record)
            if problem is None:
                self._kept = [checkpoint.folder for checkpoint in reversed(usable)]
                self._newest = usable[0].epochs
                if first:
                    logging.info("goes on after %d epochs, from %s", usable[0].epochs, usable[0].folder)
                return
            if first:
                logging.warning("checkpoint of %d epochs is not used: %s", usable[0].epochs, problem)
                self._attempt.discard(usable[0].folder)
            usable = usable[1:]

    def after_epoch(self, epochs: int, record: Record) -> None:
        """Write a checkpoint if one is due after so many epochs.

        Raises Interrupted, on all ranks, where one of them was asked to end; TakenOver on rank 0 where another attempt
        has begun.
        """
        if not self._every:
            return
        stop = self._any_asked()
        if stop or epochs % self._every == 0:
            start = time.perf_counter()
            self._write(epochs, record)
            self.summary["seconds"] = round(self.summary["seconds"] + time.perf_counter() - start, 6)
        if stop:
            self._communicator.wait_for_all()
            kept = f"goes on after {self._newest} epochs" if self._newest else "starts over: there is no checkpoint"
            message = f"asked to end (SIGTERM), and ended after epoch {epochs}; the next attempt {kept}"
            if self._communicator.rank == 0:
                logging.warning(message)
            raise Interrupted(message)

    def remove(self) -> None:
        """On rank 0, after the run's result was written."""
        if self._attempt is not None:
            self._attempt.remove()

    def _any_asked(self) -> bool:
        asked = torch.tensor([int(self._stop_asked())], device=self._communicator.device)
        self._communicator.sum(asked)
        return bool(asked.item())

    def _write(self, epochs: int, record: Record) -> None:
        try:
            part: dict[str, Any] | str = self._attempt.write_part(epochs, self._communicator.rank, self._pack(record))
        except OSError as error:
            part = f"rank {self._communicator.rank}: {error}"
        parts = self._communicator.gather(part)
        if parts is None:
            return
        problem = next((part for part in parts if isinstance(part, str)), None)
        try:
            if problem is None:
                self._attempt.commit(epochs, self._made_for, parts)
        except OSError as error:
            problem = f"rank 0: {error}"
        if problem is None:
            self._count(epochs)
        else:
            self._give_up(epochs, problem)

    def _count(self, epochs: int) -> None:
        """Rank 0: remember a checkpoint that is whole, and remove those that are not needed any more."""
        self.summary["written"] += 1
        self._newest = epochs
        self._kept.append(self._attempt.folder(epochs))
        while len(self._kept) > KEPT:
            self._attempt.discard(self._kept.pop(0))

    def _give_up(self, epochs: int, problem: str) -> None:
        self._attempt.discard(self._attempt.folder(epochs))
        with contextlib.suppress(OSError):
            self._attempt.check()
        if not self.summary["failed"]:
            logging.warning("no checkpoint after epoch %d, training goes on: %s", epochs, problem)
        self.summary["failed"] += 1

    def _pack(self, record: Record) -> bytes:
        context = self._strategy.context
        random = {"cpu": torch.get_rng_state()}
        if context.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(context.device)
        state = {
            "optimizer": context.optimizer.state(),
            "buffers": {name: buffer.cpu() for name, buffer in context.model.named_buffers()},
            "random": random,
            "strategy": self._strategy.state(),
            "gradients": context.gradients.state(),
            "record": record.state(),
        }
        buffer = io.BytesIO()
        torch.save(state, buffer)
        return buffer.getvalue()

    def _restore(self, checkpoint: Checkpoint, record: Record) -> str | None:
        """Go on from a checkpoint if every rank can read its part; else nothing changes, and the problem is said."""
        state, own = None, None
        try:
            data = checkpoint.read_part(self._communicator.rank)
            state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except (DamagedCheckpoint, RuntimeError, pickle.UnpicklingError) as error:
            own = str(error)
        problems = self._communicator.gather(own)
        problem = self._communicator.broadcast(next(filter(None, problems), None) if problems is not None else None)
        if problem is None:
            self._apply(state, record)
        return problem

    def _apply(self, state: dict[str, Any], record: Record) -> None:
        context = self._strategy.context
        context.optimizer.restore(state["optimizer"])
        for name, buffer in context.model.named_buffers():
            buffer.copy_(state["buffers"][name])
        self._strategy.restore(state["strategy"])
        context.gradients.restore(state["gradients"])
        record.restore(state["record"])
        torch.set_rng_state(state["random"]["cpu"])
        if context.device.type == "cuda":
            torch.cuda.set_rng_state(state["random"]["cuda"], context.device)


def made_for(context: Context) -> dict[str, Any]:
    """All that decides a run's numbers: its settings, its inputs, and the programs that train."""
    specification = context.specification
    training = {name: value for name, value in vars(specification.training).items() if name not in _CHANGE_NO_NUMBER}
    return {
        "run": specification.run,
        "seed": specification.seed,
        "ranks": specification.ranks,
        "strategy": specification.strategy,
        "model": dataclasses.asdict(specification.model),
        "training": training,
        "graph": context.graph.identity,
        "partition": identity_of(context.partition.manifest["arrays"]),
        "versions": versions(*specification.packages),
        "program": _sha256_of_program(),
    }


def _sha256_of_program() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()

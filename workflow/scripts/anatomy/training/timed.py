"""Timed runs: wall time, bytes, memory, loss and accuracy of every epoch and rank."""

import json
import logging
import resource
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from anatomy.training.checkpoints import Checkpoints
from anatomy.training.failures import end_requests
from anatomy.training.holdings import kept_bytes
from anatomy.training.results import write_timed
from anatomy.training.strategies._base import EpochResult, Strategy

ACCESS_EPOCHS = 2
"""For how many epochs at the end the remote nodes fetched are kept."""

Row = dict[str, Any]


@dataclass
class Measured:
    """What one rank has measured so far.

    `setup` and `evaluation`: bytes sent, by kind, outside of epochs; `resumed_at`: the epochs, from 0, at which the run
    went on from a checkpoint; `kept_bytes`: of the memory that `holdings` finds after the last epoch. What an attempt
    has to send again is counted in `evaluation` again.
    """

    setup: dict[str, int]
    evaluation: dict[str, int]
    epochs: list[Row] = field(default_factory=list)
    accesses: list[Row] = field(default_factory=list)
    resumed_at: list[int] = field(default_factory=list)
    kept_bytes: int = 0

    def state(self) -> dict[str, Any]:
        """For a checkpoint; numbers as JSON, which keeps every digit."""
        numbers = {"evaluation": self.evaluation, "epochs": self.epochs, "resumed_at": self.resumed_at}
        accesses = [
            row | {"node": torch.from_numpy(row["node"]), "count": torch.from_numpy(row["count"])}
            for row in self.accesses
        ]
        return {"numbers": json.dumps(numbers), "accesses": accesses}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`; the next epochs are a new piece."""
        numbers = json.loads(state["numbers"])
        self.evaluation, self.epochs = numbers["evaluation"], numbers["epochs"]
        self.resumed_at = [*numbers["resumed_at"], len(self.epochs)]
        self.accesses = [
            row | {"node": row["node"].numpy(), "count": row["count"].numpy()} for row in state["accesses"]
        ]


def time_epochs(strategy: Strategy, out: Path, stage: Path | None) -> None:
    """Train all epochs that no checkpoint holds; rank 0 publishes in `out` what every rank measured."""
    start = time.perf_counter()
    context = strategy.context
    communicator = context.communicator
    strategy.prepare()
    measured = Measured(communicator.take_sent_bytes(), communicator.take_sent_bytes())
    num_epochs = context.specification.strategy["epochs"]
    with end_requests(heeded=context.specification.training.checkpoint_every > 0) as stop_asked:
        checkpoints = Checkpoints(strategy, out, stop_asked)
        checkpoints.resume(measured)
        context.disturbance.steps = sum(row["steps"] for row in measured.epochs)
        for epoch in range(len(measured.epochs), num_epochs):
            _measure(strategy, epoch, measured)
            _report(measured.epochs[-1], num_epochs)
            if epoch < num_epochs - 1:
                checkpoints.after_epoch(epoch + 1, measured)
        communicator.settle()
        measured.kept_bytes = kept_bytes(strategy)
        gathered = communicator.gather(vars(measured))
        if gathered is not None:
            write_timed(strategy, stage, gathered, checkpoints.summary, time.perf_counter() - start)
            checkpoints.remove()
        communicator.wait_for_all()


def _measure(strategy: Strategy, epoch: int, measured: Measured) -> None:
    """Train and evaluate one epoch, and add what it took."""
    communicator = strategy.context.communicator
    record = epoch >= strategy.context.specification.strategy["epochs"] - ACCESS_EPOCHS
    row = _train(strategy, epoch, record) | {"piece": len(measured.resumed_at)}
    if record:
        nodes, counts = strategy.accesses()
        measured.accesses.append({"rank": communicator.rank, "epoch": epoch, "node": nodes, "count": counts})
    row |= _evaluate(strategy, epoch)
    for kind, sent in communicator.take_sent_bytes().items():
        measured.evaluation[kind] += sent
    measured.epochs.append(row)


def _train(strategy: Strategy, epoch: int, record: bool) -> Row:
    """One epoch's training on this rank; all ranks start together, and nothing but training is timed."""
    context = strategy.context
    context.communicator.wait_for_all()
    context.communicator.take_bytes_between_hosts()
    context.communicator.take_blocked_s()
    start = time.perf_counter()
    result: EpochResult = strategy.train_epoch(epoch, record)
    if context.device.type == "cuda":
        torch.cuda.synchronize(context.device)
    wall_s = time.perf_counter() - start
    sent, blocked_s = context.communicator.take_sent_bytes(), context.communicator.take_blocked_s()
    result = strategy.complete(result)
    return {
        "rank": context.communicator.rank,
        "epoch": epoch,
        "warmup": epoch < context.specification.training.warmup_epochs,
        "steps": result.steps,
        "train_nodes": result.train_nodes,
        "wall_s": wall_s,
        "blocked_s": blocked_s,
        "loss": result.loss,
        **{f"sent_{kind}_bytes": None if kind in strategy.uncounted else count for kind, count in sent.items()},
        "between_hosts_bytes": context.communicator.take_bytes_between_hosts(),
        "remote_nodes": result.remote_nodes,
        "cache_hits": result.cache_hits,
        "cache_bytes": result.cache_bytes,
        "sent_fraction": result.sent_fraction,
        "traffic": result.traffic,
        "batch_share": result.batch_share,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _evaluate(strategy: Strategy, epoch: int) -> Row:
    """Accuracies after an epoch that is to be evaluated: after every so many, and after the last."""
    specification = strategy.context.specification
    every = specification.training.evaluate_every
    is_last = epoch == specification.strategy["epochs"] - 1
    start = time.perf_counter()
    due = is_last or (every > 0 and (epoch + 1) % every == 0)
    accuracies: dict[str, float | None] = {}
    if due:
        with strategy.context.gradients.model_to_evaluate(keep=is_last):
            accuracies = strategy.evaluate()
    eval_s = time.perf_counter() - start if due else None
    names = [f"{whose}{split}" for whose in ("", "own_") for split in ("train", "val", "test")]
    return {"eval_s": eval_s, **{f"{name}_accuracy": accuracies.get(name) for name in names}}


def _report(row: Row, num_epochs: int) -> None:
    if row["rank"] == 0:
        accuracy = "" if row["val_accuracy"] is None else f", validation accuracy {row['val_accuracy']:.4f}"
        logging.info(
            "epoch %d/%d: loss %.4f, %.2f s%s", row["epoch"] + 1, num_epochs, row["loss"], row["wall_s"], accuracy
        )

"""Timed runs: wall time, bytes, memory, loss and accuracy of every epoch and rank."""

import logging
import resource
import time
from pathlib import Path
from typing import Any

import torch

from anatomy.training.results import write_timed
from anatomy.training.strategies._base import EpochResult, Strategy

ACCESS_EPOCHS = 2
"""For how many epochs at the end the remote nodes fetched are kept."""

Row = dict[str, Any]


def time_epochs(strategy: Strategy, out: Path) -> None:
    """Train all epochs; rank 0 writes what every rank measured to `out`."""
    start = time.perf_counter()
    context = strategy.context
    communicator = context.communicator
    strategy.prepare()
    setup_bytes, evaluation_bytes = communicator.take_sent_bytes(), dict.fromkeys(communicator.take_sent_bytes(), 0)
    epochs, accesses = [], []
    num_epochs = context.specification.strategy["epochs"]
    for epoch in range(num_epochs):
        record = epoch >= num_epochs - ACCESS_EPOCHS
        row = _train(strategy, epoch, record)
        if record:
            nodes, counts = strategy.accesses()
            accesses.append({"rank": communicator.rank, "epoch": epoch, "node": nodes, "count": counts})
        row |= _evaluate(strategy, epoch)
        for kind, sent in communicator.take_sent_bytes().items():
            evaluation_bytes[kind] += sent
        epochs.append(row)
        _report(row, num_epochs)
    measured = {"epochs": epochs, "accesses": accesses, "setup": setup_bytes, "evaluation": evaluation_bytes}
    gathered = communicator.gather(measured)
    if gathered is not None:
        write_timed(strategy, out, gathered, time.perf_counter() - start)
    communicator.wait_for_all()


def _train(strategy: Strategy, epoch: int, record: bool) -> Row:
    """One epoch's training on this rank; all ranks start together, and nothing but training is timed."""
    context = strategy.context
    context.communicator.wait_for_all()
    start = time.perf_counter()
    result: EpochResult = strategy.train_epoch(epoch, record)
    if context.device.type == "cuda":
        torch.cuda.synchronize(context.device)
    wall_s = time.perf_counter() - start
    sent = context.communicator.take_sent_bytes()
    return {
        "rank": context.communicator.rank,
        "epoch": epoch,
        "warmup": epoch < context.specification.training.warmup_epochs,
        "steps": result.steps,
        "train_nodes": result.train_nodes,
        "wall_s": wall_s,
        "loss": result.loss,
        **{f"sent_{kind}_bytes": count for kind, count in sent.items()},
        "remote_nodes": result.remote_nodes,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _evaluate(strategy: Strategy, epoch: int) -> Row:
    """Accuracies after an epoch that is to be evaluated: after every so many, and after the last."""
    specification = strategy.context.specification
    every = specification.training.evaluate_every
    is_last = epoch == specification.strategy["epochs"] - 1
    start = time.perf_counter()
    due = is_last or (every > 0 and (epoch + 1) % every == 0)
    accuracies = strategy.evaluate() if due else {}
    eval_s = time.perf_counter() - start if due else None
    return {"eval_s": eval_s, **{f"{split}_accuracy": accuracies.get(split) for split in ("train", "val", "test")}}


def _report(row: Row, num_epochs: int) -> None:
    if row["rank"] == 0:
        accuracy = "" if row["val_accuracy"] is None else f", validation accuracy {row['val_accuracy']:.4f}"
        logging.info(
            "epoch %d/%d: loss %.4f, %.2f s%s", row["epoch"] + 1, num_epochs, row["loss"], row["wall_s"], accuracy
        )

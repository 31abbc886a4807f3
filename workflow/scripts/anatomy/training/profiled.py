"""Profiled runs: one Kineto trace per rank, of a stated window of steps."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from anatomy.training.clocks import ClockExchange
from anatomy.training.communication import Communicator
from anatomy.training.results import write_profile_manifest
from anatomy.training.specification import ProfileSpecification
from anatomy.training.strategies._base import Strategy


class _WindowComplete(Exception):
    """The window's last step is done."""


class StepWindow:
    """Steps `wait` (untraced), `warmup` (traced and thrown away), `active` (kept), and no more.

    Steps are marked `ProfilerStep#n`, as torch.profiler's own schedule does; but here a mark covers a step and nothing
    else: neither the profiler's start, after which the ranks wait for each other, nor evaluation. Before the first of
    the active steps, and when all is over, the ranks compare their clocks, untraced.
    """

    def __init__(self, window: ProfileSpecification, communicator: Communicator, device: torch.device) -> None:
        self._window = window
        self._communicator = communicator
        self._device = device
        self._profiler: profile | None = None
        self._done = 0
        self.wall_s: list[float] = []
        self.clocks = ClockExchange(communicator)

    @property
    def profiler(self) -> profile:
        assert self._profiler is not None
        return self._profiler

    def close(self) -> None:
        """End the trace."""
        self._stop()
        self.clocks.compare("end")

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step; leaves the training loop by an exception after the last."""
        window = self._window
        if self._done == window.wait and window.warmup:
            self._start()
        if self._done == window.wait + window.warmup:
            if self._profiler is not None:
                self._stop()
            self.clocks.compare("start")
            self._start()
        with record_function(f"ProfilerStep#{self._done}"):
            start = time.perf_counter()
            yield
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            elapsed_s = time.perf_counter() - start
        self._done += 1
        if self._done > window.wait + window.warmup:
            self.wall_s.append(elapsed_s)
        if self._done == window.wait + window.warmup + window.active:
            raise _WindowComplete

    def _start(self) -> None:
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])
        self._profiler = profile(activities=activities, record_shapes=True)
        self._profiler.start()
        self._communicator.wait_for_all()

    def _stop(self) -> None:
        """Stop the profiler; it dies of messages whose beginning it has seen and whose end comes later."""
        self._communicator.settle()
        self.profiler.stop()


def profile_steps(strategy: Strategy, out: Path, stage: Path | None) -> None:
    """Train until the window is full, evaluate once, and have every rank's trace published in `out`.

    As many epochs are trained as the window needs, whatever the specification's number.
    """
    started = time.perf_counter()
    context = strategy.context
    communicator = context.communicator
    strategy.prepare()
    window = StepWindow(context.specification.profile, communicator, context.device)
    context.window = window.step
    epoch = 0
    try:
        while True:
            strategy.train_epoch(epoch)
            epoch += 1
    except _WindowComplete:
        pass
    with context.gradients.model_to_evaluate(keep=True):
        strategy.evaluate()
    window.close()
    if communicator.rank == 0:
        logging.info("profiled %d steps, %.3f s each", len(window.wall_s), sum(window.wall_s) / len(window.wall_s))
    _write(strategy, window, stage, started)


def _write(strategy: Strategy, window: StepWindow, stage: Path | None, started: float) -> None:
    """Every rank exports its trace into rank 0's stage; rank 0 adds the manifest when all have."""
    communicator = strategy.context.communicator
    folder = communicator.broadcast(str(stage))
    window.profiler.export_chrome_trace(f"{folder}/rank{communicator.rank}.json.gz")
    wall_s = communicator.gather(window.wall_s)
    if wall_s is not None:
        seconds = time.perf_counter() - started
        write_profile_manifest(stage, strategy.context, wall_s, window.clocks.recorded(), seconds)
    communicator.wait_for_all()

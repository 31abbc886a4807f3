"""Emulated slow ranks: a rank pays by sleeping for what it has computed, before it communicates.

A rank slowed by a factor f sleeps (f - 1) times the processor time that the calling thread has used since it last paid:
so long as it waits, it uses none, and pays for none. It pays before it hands anything to the transport, before it waits
for something, and at the end of a step; to the others it looks like a rank that computes f times slower, also where a
strategy communicates within a step. Only training steps count: set-up and evaluation are as fast as they are.

Every thread pays for itself, so that communication in the background is slowed by its own work alone. A thread that
computes and never communicates has to call `pay` by itself. The transport's own threads do not pay.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from anatomy.phases import Phase
from anatomy.training.annotations import phase

SHORTEST_S = 1e-4
"""Debts below this are paid with the next: a sleep is some 0.06 ms longer than asked for, which is credited as well."""


class Disturbance:
    """How slow one rank is, and what it owes for it. `condition` as in `conditions.CONDITION_OPTIONS`, or None.

    `steps` counts the steps begun since the run's start, resumed or not. The clocks, in seconds, are those of the
    calling thread's processor time and of the wall.
    """

    def __init__(
        self,
        condition: Mapping[str, Any] | None = None,
        seed: int = 0,
        rank: int = 0,
        cpu_s: Callable[[], float] = time.thread_time,
        wall_s: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._condition, self._seed, self._rank = condition or {}, seed, rank
        self._cpu_s, self._wall_s, self._sleep = cpu_s, wall_s, sleep
        self._factor = 1.0
        self._thread = _Account()
        self.steps = 0

    @property
    def ever_slow(self) -> bool:
        """Whether there can be a step in which this rank is slow."""
        slow, at_random = self._condition.get("slow"), self._condition.get("slow_at_random")
        if slow:
            return slow["rank"] == self._rank and slow["factor"] > 1
        return bool(at_random) and at_random["factor"] > 1 and at_random["probability"] > 0

    def factor_at(self, step: int) -> float:
        """By how much this rank is slowed in a step; 1 where it is not."""
        if not self.ever_slow:
            return 1.0
        if "slow" in self._condition:
            slow = self._condition["slow"]
            return slow["factor"] if step >= slow["from_step"] else 1.0
        at_random = self._condition["slow_at_random"]
        draw = np.random.default_rng([self._seed, self._rank, step]).random()
        return at_random["factor"] if draw < at_random["probability"] else 1.0

    @contextmanager
    def step(self) -> Iterator[None]:
        """One training step, which ends when it is paid for."""
        self._factor = self.factor_at(self.steps)
        self.steps += 1
        self._thread.paid_s = self._cpu_s()
        try:
            yield
            self.pay()
        finally:
            self._factor = 1.0

    def pay(self) -> None:
        """Sleep for what the calling thread has computed since it last paid."""
        if not self.ever_slow:
            return
        account = self._thread
        account.owed_s += (self._factor - 1) * (self._cpu_s() - account.paid_s)
        if account.owed_s >= SHORTEST_S:
            with phase(Phase.DISTURB):
                start_s = self._wall_s()
                self._sleep(account.owed_s)
                account.owed_s -= self._wall_s() - start_s
        account.paid_s = self._cpu_s()


class _Account(threading.local):
    """Of one thread: its processor time up to which it has paid, and what it owes (negative: slept too long)."""

    paid_s = 0.0
    owed_s = 0.0

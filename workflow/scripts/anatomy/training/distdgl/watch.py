"""The end of a rank that would wait for ever: DGL asks its servers without a time-out, and whether they live or not."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from anatomy.training.distdgl import shared_memory
from anatomy.training.failures import leave_process


class ServerLost(RuntimeError):
    """A graph server ended or does not answer."""


class Watch:
    """A thread that ends this process when its server ends, or when a wait takes longer than its limit.

    The main thread cannot be told: it waits inside DGL's library, which only the end of the process interrupts.
    """

    def __init__(self, server: subprocess.Popen[str], name: str) -> None:
        self._server = server
        self._name = name
        self._limit_s = float("inf")
        self._deadline = float("inf")
        threading.Thread(target=self._watch, daemon=True).start()

    def tell(self, word: str) -> None:
        """Send the server a line."""
        with suppress(BrokenPipeError):  # it has ended, of which the thread knows the status
            print(word, file=self._server.stdin, flush=True)

    def hear(self) -> str:
        """The next line that the server says."""
        return self._server.stdout.readline()

    @contextmanager
    def waiting(self, limit_s: float) -> Iterator[None]:
        """A block that has to end within the limit."""
        self._limit_s, self._deadline = limit_s, time.monotonic() + limit_s
        try:
            yield
        finally:
            self._deadline = float("inf")

    def _watch(self) -> NoReturn:
        while time.monotonic() < self._deadline:
            try:
                status = self._server.wait(timeout=1)
            except subprocess.TimeoutExpired:
                continue
            self._end(f"the graph server of this host ended with status {status}")
        self._end(f"the graph servers did not answer within {self._limit_s:g} s")

    def _end(self, message: str) -> NoReturn:
        """End this process as by an exception that nothing caught, so that the launcher shows it."""
        shared_memory.remove(self._name)
        print(f"{ServerLost.__name__}: {message}", file=sys.stderr)
        get_error_handler().record_exception(ServerLost(message))
        leave_process(1)

"""The end of a rank that would wait for ever: DGL asks its servers without a time-out, and whether they live or not."""

import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from anatomy.training.distdgl import shared_memory
from anatomy.training.failures import fail

LOADED = "loaded"
"""What a server says when it has loaded its part; whatever else it says is why it ends."""


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
        self._loaded: queue.Queue[None] = queue.Queue()
        self._reason = ""
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        threading.Thread(target=self._watch, daemon=True).start()

    def let_load(self) -> None:
        """Tell the server that its part is written, and return when it has loaded it."""
        with suppress(BrokenPipeError):  # it has ended, of which the thread knows the status
            print("written", file=self._server.stdin, flush=True)
        self._loaded.get()

    @contextmanager
    def waiting(self, limit_s: float) -> Iterator[None]:
        """A block that has to end within the limit."""
        self._limit_s, self._deadline = limit_s, time.monotonic() + limit_s
        try:
            yield
        finally:
            self._deadline = float("inf")

    def _listen(self) -> None:
        for line in self._server.stdout:
            if line.strip() == LOADED:
                self._loaded.put(None)
            else:
                self._reason = f": {line.strip()}"

    def _watch(self) -> NoReturn:
        while time.monotonic() < self._deadline:
            try:
                status = self._server.wait(timeout=1)
            except subprocess.TimeoutExpired:
                continue
            self._listener.join(timeout=1)  # its last words may still be in the pipe
            self._end(f"the graph server of this host ended with status {status}{self._reason}")
        self._end(f"the graph servers did not answer within {self._limit_s:g} s")

    def _end(self, message: str) -> NoReturn:
        shared_memory.remove(self._name)
        fail(ServerLost(message))

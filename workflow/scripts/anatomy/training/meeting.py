"""Where the ranks of a run on several hosts find one another, and whom they tell how they end: the launcher.

The launcher listens at a port that the kernel chooses, on its own host, and hands address and a token to the ranks that
it starts; with another launcher's token nobody gets in, so that two jobs never meet. Each rank keeps its connection to
its end. Messages are lines of JSON:

    rank      {"token", "rank", "host"}                 first of all
    rank 0    {"store": port}                           where it keeps what torch's process group needs
    launcher  {"store": [address, port]}                to all the others
    rank      {"end": "done"}                           in good order
              {"end": "interrupted", "message"}         asked to end, in good order
              {"end": "failed", "message", "details"}   with its exception

A connection that ends without such a line is a rank that was killed; one that no longer answers, a host that is gone.
"""

import contextlib
import json
import queue
import secrets
import socket
import threading
from dataclasses import dataclass
from typing import Any, Literal

ADDRESS = "ANATOMY_MEETING"
TOKEN = "ANATOMY_MEETING_TOKEN"
SILENT_S = 30
"""After so long without an answer from its host, a connection is given up."""
_KEEPALIVE_S = 5


@dataclass(frozen=True)
class End:
    """How a rank ended; `message` begins with the error, `details` is its traceback."""

    rank: int
    host: str
    how: Literal["done", "interrupted", "failed", "lost"]
    message: str = ""
    details: str = ""


class Meeting:
    """The launcher's side. `ends` gets an End from each rank that joined."""

    def __init__(self, address: str, num_ranks: int) -> None:
        self.ends: queue.Queue[End] = queue.Queue()
        self.joined: set[int] = set()
        self._num_ranks = num_ranks
        self._token = secrets.token_hex(16)
        self._store: list[Any] | None = None
        self._store_known = threading.Condition()
        self._connections: list[socket.socket] = []
        self._server = socket.create_server((address, 0), backlog=num_ranks)
        threading.Thread(target=self._accept, daemon=True).start()

    def environment(self) -> dict[str, str]:
        """What ranks need to join."""
        address, port = self._server.getsockname()[:2]
        return {ADDRESS: f"{address}:{port}", TOKEN: self._token}

    def close(self) -> None:
        """End all connections; ranks end by themselves when they see it."""
        for connection in [self._server, *self._connections]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        with self._store_known:
            self._store_known.notify_all()

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._server.accept()
            except OSError:
                return  # closed
            watch_peer(connection)
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection, peer[0]), daemon=True).start()

    def _serve(self, connection: socket.socket, address: str) -> None:
        """Talk with one rank until it ends."""
        lines = connection.makefile("r", encoding="utf-8")
        try:
            hello = json.loads(lines.readline())
            if not secrets.compare_digest(hello["token"], self._token) or not 0 <= hello["rank"] < self._num_ranks:
                raise ValueError("not one of ours")
            rank, host = hello["rank"], str(hello["host"])
        except (OSError, ValueError, KeyError, TypeError):
            connection.close()
            return
        self.joined.add(rank)
        self.ends.put(self._attend(connection, lines, rank, host, address))

    def _attend(self, connection: socket.socket, lines: Any, rank: int, host: str, address: str) -> End:
        try:
            if rank == 0:
                self._announce([address, json.loads(lines.readline())["store"]])
            else:
                say(connection, store=self._wait_for_store())
            last = json.loads(lines.readline())
            return End(rank, host, last["end"], last.get("message", ""), last.get("details", ""))
        except TimeoutError:
            return End(rank, host, "lost", "its host does not answer any more")
        except (OSError, ValueError, KeyError):
            return End(rank, host, "lost", "ended without a word")

    def _announce(self, store: list[Any]) -> None:
        with self._store_known:
            self._store = store
            self._store_known.notify_all()

    def _wait_for_store(self) -> list[Any] | None:
        with self._store_known:
            self._store_known.wait_for(lambda: self._store is not None or self._server.fileno() < 0)
            return self._store


def say(connection: socket.socket, **message: Any) -> None:
    """Send one message."""
    connection.sendall((json.dumps(message) + "\n").encode())


def watch_peer(connection: socket.socket) -> None:
    """Have the kernel end a connection, by TimeoutError, whose other host has been silent for SILENT_S."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, SILENT_S // _KEEPALIVE_S - 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_S * 1000)

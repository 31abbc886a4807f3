"""A rank's side: starts its host's graph server, joins the servers of all hosts, and never waits for ever."""

import atexit
import contextlib
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import anatomy
from anatomy.training.communication import Communicator
from anatomy.training.distdgl import server, shared_memory
from anatomy.training.distdgl.hosts import HOSTS_FILE, check_one_rank_per_host, free_port, own_address, write_hosts
from anatomy.training.distdgl.package import load_dgl
from anatomy.training.distdgl.part_files import Numbering, feature_name, write_part
from anatomy.training.distdgl.seeded_requests import Requests
from anatomy.training.distdgl.watch import Watch
from anatomy.training.strategies._base import Context

_LISTENING_S = 0.3
"""From a server's word that it has loaded its part until it listens; DGL tries again after 3 s only."""


@dataclass(frozen=True)
class Connection:
    """The distributed graph as this rank sees it: DGL's package, `DistGraph`, features (`DistTensor`), and numbering.

    Whatever asks a server does so `with connection.answered():`, so that it ends when the server does not answer.
    """

    dgl: ModuleType
    graph: Any
    features: Any
    numbering: Numbering
    watch: Watch
    requests: Requests
    answer_timeout_s: float

    def answered(self) -> AbstractContextManager[None]:
        """A block in which servers have to answer within the time-out."""
        return self.watch.waiting(self.answer_timeout_s)

    def sample_from(self, generator: torch.Generator) -> None:
        """Have a generator alone decide what is sampled for this rank from now on, here and by all servers."""
        self.requests.generator = generator
        self.requests.seed(self.requests.draw())


def connect(context: Context) -> Connection:
    """Write this rank's part, serve it, and join the servers of all ranks; every rank has to call this, once.

    Raises StudyError where ranks share a host's address or DGL does not load.
    """
    specification, communicator = context.specification, context.communicator
    address = own_address()
    check_one_rank_per_host(_of_all_ranks(communicator, address), specification.path)
    name = communicator.broadcast(f"{shared_memory.PREFIX}{secrets.token_hex(8)}")
    limit_s = min(specification.training.timeout_s, specification.training.peer_timeout_s)
    folder = Path(tempfile.mkdtemp(prefix=shared_memory.PREFIX))
    try:
        watch = Watch(_start_server(folder, name, communicator), name)
        dgl = load_dgl()
        requests = Requests(dgl)
        numbering = Numbering.of(context.graph, context.partition.assignment, communicator.size)
        write_part(folder, context.graph, numbering, communicator.rank, name)
        write_hosts(folder, _of_all_ranks(communicator, (address, free_port(address))))
        with watch.waiting(specification.training.timeout_s):
            watch.let_load()
        communicator.wait_for_all()
        time.sleep(_LISTENING_S)
        with watch.waiting(limit_s):
            graph = _join(dgl, folder / HOSTS_FILE, name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Connection(dgl, graph, graph.ndata[feature_name(name)], numbering, watch, requests, limit_s)


def _of_all_ranks(communicator: Communicator, value: Any) -> list[Any]:
    """Every rank's value in rank order, on every rank."""
    return communicator.broadcast(communicator.gather(value))


def _start_server(folder: Path, name: str, communicator: Communicator) -> subprocess.Popen[str]:
    """The server of this host; it ends when this process does, since then its standard input closes."""
    arguments = [folder, name, communicator.rank, communicator.size]
    library = str(Path(anatomy.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-m", server.__name__, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([library, os.environ.get("PYTHONPATH", "")])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _join(dgl: ModuleType, hosts: Path, name: str) -> Any:
    """Connect to all servers and open the graph."""
    os.environ |= {"DGL_ROLE": "client", "DGL_NUM_SERVER": "1", "DGL_NUM_SAMPLER": "0"}
    logging.getLogger("dgl-distributed-socket").setLevel(logging.ERROR)  # interfaces without an address are no news
    with _own_signals(), contextlib.redirect_stdout(None):  # DGL reports its every stage there
        dgl.distributed.initialize(str(hosts))
        # Run at this process's end it would wait for ranks that may have died; the servers end by themselves.
        atexit.unregister(dgl.distributed.exit_client)
        return dgl.distributed.DistGraph(name)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Undo what DGL does to SIGINT and SIGTERM: its handlers take the process apart, which may never end."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)

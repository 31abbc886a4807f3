"""The meeting of torchrun's agents where there is only one, on one host: it needs neither a port nor a server.

torchrun's own meeting (`c10d`) ends the interpreter with torch 2.2 and Python 3.12
(https://github.com/pytorch/pytorch/issues/125990).
"""

from torch.distributed import HashStore, Store
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters, rendezvous_handler_registry

BACKEND = "one-host"
"""What `LaunchConfig.rdzv_backend` calls it."""


class OneHost(RendezvousHandler):
    """One agent, which is the first of one, and a store in its own memory."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._run_id = parameters.run_id
        self._store = HashStore()

    def get_backend(self) -> str:
        return BACKEND

    def next_rendezvous(self) -> tuple[Store, int, int]:
        """The store, the agent's number, and how many agents there are."""
        return self._store, 0, 1

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Nobody else could join."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


rendezvous_handler_registry.register(BACKEND, OneHost)

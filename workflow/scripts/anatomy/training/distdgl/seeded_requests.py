"""Requests that bring their own seed, so that what a server samples does not depend on whom it answered before.

DGL's servers draw from one generator in the order in which requests arrive, which no two runs share where several
ranks ask one server. With a seed of eight bytes in each request, a rank's batches depend on its own generator alone.
"""

from types import ModuleType
from typing import Any

import torch


class Requests:
    """What this process asks of servers, and is asked, from now on. `generator` gives seeds to the former."""

    def __init__(self, dgl: ModuleType) -> None:
        self._dgl = dgl
        self.generator = torch.Generator()
        services = dgl.distributed.graph_services
        request = _seeded(self, services.SamplingRequest)
        dgl.distributed.register_service(services.SAMPLING_SERVICE_ID, request, services.SubgraphResponse)
        services.SamplingRequest = request

    def draw(self) -> int:
        """A seed for DGL, which takes 31 bits."""
        return int(torch.randint(2**31 - 1, (1,), generator=self.generator))

    def seed(self, value: int) -> None:
        """Have DGL sample in this process from a seed on."""
        self._dgl.seed(value)


def _seeded(requests: Requests, plain: type) -> type:
    """DGL's request for sampled neighbours, with a seed."""

    class Seeded(plain):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._seed = requests.draw()

        def __getstate__(self) -> tuple[Any, ...]:
            return (self._seed, *super().__getstate__())

        def __setstate__(self, state: tuple[Any, ...]) -> None:
            self._seed, *rest = state
            super().__setstate__(tuple(rest))

        def process_request(self, server_state: Any) -> Any:
            requests.seed(self._seed)
            return super().process_request(server_state)

    return Seeded

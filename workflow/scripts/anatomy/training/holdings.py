"""What a strategy holds from step to step that the account of memory does not know: histories, caches, buffers.

The account (`tables.common.account`) computes what all strategies of a kind hold, from sizes. What one holds beyond is
looked up here, where it lies, so that a strategy need not say it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from anatomy.graphs.store import Graph
from anatomy.partitions.store import Partition
from anatomy.training.communication import Communicator, Exchange

_Memory = tuple[int, int]
"""Address and bytes."""
_OTHERS = (Graph, Partition, Communicator, Exchange)
"""Files, and what is on its way: nothing that a strategy holds."""


def kept_bytes(strategy: Any) -> int:
    """Bytes of tensors and arrays that a strategy holds, beyond its context and the attributes in its `accounted`.

    Memory that several of them share counts once. What a library in another language holds cannot be seen.
    """
    context, graph = strategy.context, strategy.context.graph
    mapped = [graph.indptr, graph.indices, graph.features, graph.labels, graph.split]
    known = [vars(strategy).get(name) for name in strategy.accounted]
    optimised = [context.optimizer, context.gradients, list(context.model.parameters())]
    seen: set[int] = {id(context)}
    addresses = {np.asarray(array).__array_interface__["data"][0] for array in mapped}
    addresses |= {address for address, _ in _memory([known, optimised], seen)}
    found = dict(_memory(vars(strategy), seen))
    return sum(size for address, size in found.items() if address not in addresses)


def _memory(holder: Any, seen: set[int]) -> Iterator[_Memory]:
    """All memory that an object of this project, or a container, leads to; each object is looked at once."""
    if id(holder) in seen or isinstance(holder, _OTHERS):
        return
    seen.add(id(holder))
    if isinstance(holder, torch.Tensor):
        yield holder.untyped_storage().data_ptr(), holder.untyped_storage().nbytes()
    elif isinstance(holder, np.ndarray):
        if holder.base is None:
            yield holder.__array_interface__["data"][0], holder.nbytes
    elif isinstance(holder, Mapping):
        for value in holder.values():
            yield from _memory(value, seen)
    elif isinstance(holder, list | tuple):
        for value in holder:
            yield from _memory(value, seen)
    elif type(holder).__module__.startswith("anatomy.") and hasattr(holder, "__dict__"):
        yield from _memory(vars(holder), seen)

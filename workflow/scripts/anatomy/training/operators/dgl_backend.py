"""Graph operators of DGL: its sparse kernels (gspmm, edge softmax) on blocks. The only module that imports DGL."""

import importlib.util
import os
import sys
from typing import Any

import torch

from anatomy.errors import StudyError
from anatomy.training.operators.base import Operators
from anatomy.training.operators.block import Block
from anatomy.training.operators.torch_backend import bags


def load() -> Operators:
    """The backend.

    Raises StudyError where DGL is not installed or does not load beside this torch.
    """
    os.environ.setdefault("DGLBACKEND", "pytorch")
    try:
        if "dgl" not in sys.modules:
            _enter_package_without_its_init()
        from dgl import backend, heterograph_index
    except (ImportError, OSError, AttributeError) as error:
        raise StudyError(
            f"training.operators: found 'dgl', which does not load here ({error}); install dgl 2.1.0 with torch 2.2.1, "
            "or set training.operators to 'torch'"
        ) from error
    return DglOperators(backend, heterograph_index)


def _enter_package_without_its_init() -> None:
    """Make DGL's submodules importable without running `dgl/__init__.py`.

    That file imports data sets, the distributed trainer, GraphBolt, pandas and networkx: 2.4 of 2.9 seconds of every
    process, and nothing that a run uses.
    """
    spec = importlib.util.find_spec("dgl")
    if spec is None:
        raise ModuleNotFoundError("No module named 'dgl'")
    sys.modules["dgl"] = importlib.util.module_from_spec(spec)


class DglOperators(Operators):
    """Aggregation by DGL's generalised sparse-dense products.

    Plain sums of rows that need no gradient are torch's, which read the rows where they lie and are faster on a CPU.
    """

    def __init__(self, backend: Any, heterograph_index: Any) -> None:
        self._backend = backend
        self._create = heterograph_index.create_unitgraph_from_csr

    def weighted_sum(self, block: Block, features: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        if weights is None and not features.requires_grad and features.device.type == "cpu":
            return bags(block.indptr, block.indices, features)
        graph = self._graph(block)
        if weights is None:
            return self._backend.gspmm(graph, "copy_lhs", "sum", features, None)
        return self._backend.gspmm(graph, "mul", "sum", features, weights.unsqueeze(-1))

    def edge_softmax(self, block: Block, scores: torch.Tensor) -> torch.Tensor:
        return self._backend.edge_softmax(self._graph(block), scores)

    def _graph(self, block: Block) -> Any:
        """DGL's index of the block; built once, edges numbered as in the block."""
        if "dgl" not in block.structures:
            edges = torch.arange(block.num_edges, device=block.indices.device)
            formats = ["coo", "csr", "csc"]
            block.structures["dgl"] = self._create(
                2, block.num_sources, block.num_destinations, block.indptr, block.indices, edges, formats, True
            )
        return block.structures["dgl"]

"""Graph operators: aggregation behind one interface, with the backends `dgl` and `torch`."""

from importlib import import_module

from anatomy.training.operators.base import Operators

BACKENDS = {
    "dgl": "anatomy.training.operators.dgl_backend",
    "torch": "anatomy.training.operators.torch_backend",
}


def load_operators(name: str) -> Operators:
    """The operators of a backend; only this imports the backend's package.

    Raises StudyError where that package is not installed or does not load.
    """
    return import_module(BACKENDS[name]).load()

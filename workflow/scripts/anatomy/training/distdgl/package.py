"""DGL as a whole package, with `dgl.distributed`; the operators' backend enters it without its `__init__`."""

import importlib
import os
import sys
from types import ModuleType

from anatomy.errors import StudyError


def load_dgl() -> ModuleType:
    """The package, all of it. Takes some seconds.

    Raises StudyError where it is not installed, does not load, or has no `distributed`.
    """
    os.environ["DGLBACKEND"] = "pytorch"
    os.environ["DGL_DIST_MODE"] = "distributed"
    try:
        entered = sys.modules.get("dgl")
        if entered is not None and not hasattr(entered, "distributed"):
            entered.__spec__.loader.exec_module(entered)  # submodules that are loaded already stay as they are
        dgl = importlib.import_module("dgl")
        importlib.import_module("dgl.distributed")
    except (ImportError, OSError, AttributeError) as error:
        raise StudyError(
            f"strategy.method: found 'distdgl', but package 'dgl' does not load here as a whole ({error}); install dgl "
            "2.1.0 with torch 2.2.1, or use method 'minibatch'"
        ) from error
    return dgl

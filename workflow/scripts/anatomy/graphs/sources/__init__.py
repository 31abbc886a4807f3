"""The sources of graphs: each module of this folder is one, found by itself, with a `SOURCE` that describes it.

Importing this loads neither torch, DGL nor ogb, and never touches the network.
"""

import importlib
import pkgutil
from typing import Any

from anatomy.errors import StudyError
from anatomy.graphs.options import Options, SourceInfo, validated
from anatomy.options import no_such

SOURCES: dict[str, SourceInfo] = {
    module.name: importlib.import_module(f"{__name__}.{module.name}").SOURCE
    for module in pkgutil.iter_modules(__path__)
}
"""Every source by its name, which is its module's."""


def complete_options(options: Options, where: str = "graph options") -> dict[str, Any]:
    """The options of a graph with all defaults filled in; the graph's files are not opened.

    Raises StudyError, beginning with `where`, for an unknown source or option, a missing option or a value that is
    refused.
    """
    return validated(options, _info(options, where), where)


def known_num_nodes(options: Options) -> int | None:
    """How many nodes a graph will have, if that is known in milliseconds and without a network; else None.

    Raises StudyError where a local file that the options name is absent or damaged.
    """
    options = complete_options(options)
    return _info(options).num_nodes(options)


def resources(options: Options) -> dict[str, int]:
    """`mem_mb` and `disk_mb` that building the graph takes, estimated from above, known before the start."""
    options = complete_options(options)
    return _info(options).resources(options)


def needs_fetch(options: Options) -> bool:
    """Whether something must be fetched from an address before the graph can be built."""
    options = complete_options(options)
    return bool(_info(options).downloads(options))


def _info(options: Options, where: str = "graph options") -> SourceInfo:
    name = options.get("source")
    if name is None:
        raise StudyError(f"{where}: option 'source' is missing; add one of {', '.join(SOURCES)}")
    if name not in SOURCES:
        raise StudyError(f"{where}: source: {no_such(name, SOURCES)}")
    return SOURCES[name]

"""The options of a partitioner, checked before anything is opened."""

from collections.abc import Mapping
from typing import Any

from anatomy import options as described
from anatomy.errors import StudyError
from anatomy.partitions import PARTITIONERS


def complete_options(options: Mapping[str, Any], where: str = "partitioner options") -> dict[str, Any]:
    """The options of a partitioner, `method` first, with all defaults filled in.

    Raises StudyError, beginning with `where` (a file and key, say), for an unknown method or option or a refused value.
    """
    if "method" not in options:
        raise StudyError(f"{where}: option 'method' is missing; add one of: {', '.join(PARTITIONERS)}")
    method = options["method"]
    if method not in PARTITIONERS:
        raise StudyError(f"{where}: method: {described.no_such(method, PARTITIONERS)}")
    given = {key: value for key, value in options.items() if key != "method"}
    return {"method": method, **described.complete_options(given, PARTITIONERS[method].constants["OPTIONS"], where)}

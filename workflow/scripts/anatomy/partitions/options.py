"""The options of a partitioner, checked before anything is opened."""

import difflib
from collections.abc import Mapping
from typing import Any

from anatomy.errors import StudyError
from anatomy.partitions import PARTITIONERS


def complete_options(options: Mapping[str, Any], where: str = "partitioner options") -> dict[str, Any]:
    """The options of a partitioner, `method` first, with all defaults filled in.

    Raises StudyError, beginning with `where` (a file and key, say), for an unknown method or option or a refused value.
    """
    from jsonschema import Draft202012Validator

    if "method" not in options:
        raise StudyError(f"{where}: option 'method' is missing; add one of: {', '.join(PARTITIONERS)}")
    method = options["method"]
    if method not in PARTITIONERS:
        raise StudyError(
            f"{where}: method: found {method!r}{_meant(method, PARTITIONERS)}; choose one of: {', '.join(PARTITIONERS)}"
        )
    properties = PARTITIONERS[method].constants["OPTIONS"]["properties"]
    complete = {"method": method} | {
        key: schema["default"] for key, schema in properties.items() if "default" in schema
    }
    for key, value in options.items():
        if key == "method":
            continue
        if key not in properties:
            raise StudyError(
                f"{where}: unknown option {key!r} of method {method!r}{_meant(key, properties)}; "
                f"known: {', '.join(properties)}"
            )
        error = next(Draft202012Validator(properties[key]).iter_errors(value), None)
        if error is not None:
            raise StudyError(
                f"{where}: {key}: {error.message} ({properties[key]['description'].rstrip('.')}); correct it"
            )
        complete[key] = int(value) if properties[key]["type"] == "integer" else value
    return complete


def _meant(name: Any, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""

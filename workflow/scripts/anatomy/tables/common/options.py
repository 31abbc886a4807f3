"""Options given by hand."""

import json
from collections.abc import Iterable
from typing import Any

from anatomy.errors import StudyError


def assignments(texts: Iterable[str], option: str) -> dict[str, Any]:
    """`name=value` pairs of a repeatable command-line option; a value is JSON where it can be, else a string."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise StudyError(f"{option} {text!r}: expected NAME=VALUE, such as graph=powerlaw; correct it")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def json_object(text: str, option: str = "--options") -> dict[str, Any]:
    """Options that a program is given as one JSON object, as the value of `option`."""
    try:
        options = json.loads(text)
    except ValueError as error:
        raise StudyError(f"{option} {text!r}: not valid JSON ({error}); correct it") from error
    if not isinstance(options, dict):
        raise StudyError(f"{option} {text!r}: found {type(options).__name__}, expected a JSON object; correct it")
    return options

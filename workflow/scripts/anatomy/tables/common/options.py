"""Options given by hand, checked against the same schema fragments that a config is checked against."""

import copy
import json
from collections.abc import Iterable, Mapping
from typing import Any

from jsonschema import Draft202012Validator

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


def json_object(text: str) -> dict[str, Any]:
    """Options that a program is given as one JSON object."""
    try:
        options = json.loads(text)
    except ValueError as error:
        raise StudyError(f"--options {text!r}: not valid JSON ({error}); correct it") from error
    if not isinstance(options, dict):
        raise StudyError(f"--options {text!r}: found {type(options).__name__}, expected a JSON object; correct it")
    return options


def filled(given: Mapping[str, Any], schema: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """The options given, checked, with the schema's defaults for the others.

    `schema` is a fragment with `properties` and `required`; `owner` is what messages call whose options these are.

    Raises StudyError for an unknown option, a wrong value, or one that is missing.
    """
    options = dict(given)
    for name in options.keys() - schema["properties"].keys():
        known = ", ".join(schema["properties"]) or "none"
        raise StudyError(f"{owner}: unknown option {name!r}; its options are: {known}; correct or remove it")
    for name, described in schema["properties"].items():
        if "default" in described:
            options.setdefault(name, copy.deepcopy(described["default"]))
    for error in Draft202012Validator({"type": "object", **schema}).iter_errors(options):
        place = ".".join(map(str, error.absolute_path)) or "options"
        raise StudyError(f"{owner}: {place}: {error.message}; correct it")
    return options

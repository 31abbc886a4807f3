"""What a source is to the rest of the study, and how its options are checked before anything runs."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anatomy.errors import StudyError
from anatomy.graphs.policies import POLICIES
from anatomy.graphs.raw import RawGraph

Options = Mapping[str, Any]
Schema = dict[str, Any]


@dataclass(frozen=True)
class Download:
    """A file that an option names by its address: what to fetch, and how to recognise it.

    `option` is the option that takes the fetched file's path, in place of `address_option`.
    """

    option: str
    address_option: str
    url: str
    sha256: str | None
    zipped: bool


@dataclass(frozen=True)
class SourceInfo:
    """One source of graphs; a module of `sources/` calls its own `SOURCE`.

    `schema` has the `properties` and `required` options of the source, draft 2020-12. `read(options, scratch)` reads
    or makes the graph and may use the empty folder `scratch`. `num_nodes` is the cheap node count, or None.
    `resources` estimates `mem_mb` and `disk_mb` of the build. `check` raises StudyError for options that contradict
    each other. `downloads` are the files to be fetched first.
    """

    name: str
    summary: str
    schema: Schema
    read: Callable[[Options, Path], RawGraph]
    num_nodes: Callable[[Options], int | None]
    resources: Callable[[Options], dict[str, int]]
    check: Callable[[Options], None] = field(default=lambda options: None)
    downloads: Callable[[Options], list[Download]] = field(default=lambda options: [])


def source_schema(properties: Schema, required: list[str] | None = None) -> Schema:
    """The schema of a source: its own properties, then the policies that all sources share."""
    shared = {key: schema for key, schema in POLICIES.items() if key not in properties}
    return {"type": "object", "properties": properties | shared, "required": required or []}


def validated(options: Options, info: SourceInfo, where: str) -> dict[str, Any]:
    """All options of a source, defaults filled in; `where` names them in messages (a file and key).

    Raises StudyError for an unknown option, a missing one, a value of another type or out of range, or a contradiction.
    """
    properties = info.schema["properties"]
    for key in options:
        if key != "source" and key not in properties:
            raise StudyError(f"{where}: unknown option {key!r} of source {info.name!r}; {suggestion(key, properties)}")
    for key in info.schema["required"]:
        if key not in options:
            raise StudyError(
                f"{where}: option {key!r} of source {info.name!r} is missing: {properties[key]['description']}; add it"
            )
    complete: dict[str, Any] = {"source": info.name}
    for key, schema in properties.items():
        if key in options:
            complete[key] = _value(options[key], schema, f"{where}: {key}")
        elif "default" in schema:
            complete[key] = schema["default"]
    try:
        info.check(complete)
    except StudyError as error:
        raise StudyError(f"{where}: {error}") from error
    return complete


def _value(value: Any, schema: Schema, where: str) -> Any:
    """`value`, as an int where the schema wants one. Raises StudyError where the schema refuses it."""
    from jsonschema import Draft202012Validator

    error = next(iter(Draft202012Validator(schema).iter_errors(value)), None)
    if error is not None:
        raise StudyError(
            f"{where}: found {value!r}, expected {expectation(schema)} ({schema['description']}); correct it"
        )
    return int(value) if schema["type"] == "integer" else value


def expectation(schema: Schema) -> str:
    """What a property's schema accepts, in words."""
    if len(schema.get("enum", [])) == 1:
        return repr(schema["enum"][0])
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    words = {"integer": "a whole number", "number": "a number", "string": "a text", "boolean": "true or false"}
    bounds = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    limits = " and ".join(f"{text} {schema[key]}" for key, text in bounds.items() if key in schema)
    form = f" of the form {schema['pattern']}" if "pattern" in schema else ""
    return " ".join(filter(None, [words[schema["type"]] + form, limits]))


def suggestion(name: str, names: Any) -> str:
    """A remedy for a misspelt name: the nearest of `names`, or all of them."""
    near = difflib.get_close_matches(str(name), list(names), n=1)
    return f"did you mean {near[0]!r}?" if near else "expected one of " + ", ".join(sorted(names))


def estimate(
    num_nodes: int,
    entries: int,
    num_features: int,
    options: Options,
    extra_memory_bytes: int = 0,
    extra_disk_bytes: int = 0,
) -> dict[str, int]:
    """`mem_mb` and `disk_mb` of building a graph whose source lists `entries`, an estimate from above.

    Symmetrising holds the listed entries and room for twice as many; features pass through in blocks.
    """
    stored = entries * (2 if options.get("direction", "symmetrise") == "symmetrise" else 1)
    if options.get("self_loops") == "add":
        stored += num_nodes
    memory = 8 * (entries + stored) + 8 * 6 * num_nodes + extra_memory_bytes
    disk = 8 * stored + (4 * num_features + 17) * num_nodes + extra_disk_bytes
    return {"mem_mb": 400 + int(1.1 * memory / 1e6), "disk_mb": 16 + int(1.05 * disk / 1e6)}

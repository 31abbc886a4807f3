"""Options of the sources on the command line: as flags, as `--option key=value`, or from a JSON file."""

import argparse
import json
from pathlib import Path
from typing import Any

from anatomy.errors import StudyError
from anatomy.files import read_json
from anatomy.graphs.options import Schema
from anatomy.graphs.policies import POLICIES
from anatomy.graphs.sources import SOURCES


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--spec`, `--source`, `--option` and a flag for each option of each source."""
    parser.add_argument(
        "--spec", type=Path, default=argparse.SUPPRESS, help="JSON file with an object of the graph's options"
    )
    parser.add_argument("--source", choices=list(SOURCES), default=argparse.SUPPRESS, help="where the graph comes from")
    parser.add_argument(
        "--option",
        action="append",
        default=argparse.SUPPRESS,
        metavar="KEY=VALUE",
        help="an option of the source, another way to write --key value; may be repeated, and overrides --spec",
    )
    for title, owners in _grouped().items():
        group = parser.add_argument_group(title)
        for key, names in owners.items():
            schema = SOURCES[names[0]].schema["properties"][key]
            group.add_argument(
                f"--{key.replace('_', '-')}",
                dest=f"option_{key}",
                default=argparse.SUPPRESS,
                metavar="{" + ",".join(schema["enum"]) + "}" if "enum" in schema else schema["type"].upper(),
                help=_help(key, names).replace("%", "%%"),
            )


def options_from(arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The graph's options, and what to call them in messages.

    Raises StudyError for a spec that is no JSON object, or a `--option` without `=`.
    """
    spec = getattr(arguments, "spec", None)
    options = read_json(spec) if spec is not None else {}
    if hasattr(arguments, "source"):
        options["source"] = arguments.source
    schemas = _schemas(options.get("source"))
    given = {key.removeprefix("option_"): value for key, value in vars(arguments).items() if key.startswith("option_")}
    for text in getattr(arguments, "option", []):
        key, equals, value = text.partition("=")
        if not equals:
            raise StudyError(f"--option: found {text!r}, expected KEY=VALUE")
        given[key.strip().replace("-", "_")] = value
    options |= {key: _typed(value, schemas.get(key, {})) for key, value in given.items()}
    return options, str(spec) if spec is not None else "command line"


def _typed(text: str, schema: Schema) -> Any:
    """The value that a text writes, unless the schema wants a text; whether it is allowed is checked with the rest."""
    if schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _schemas(source: str | None) -> dict[str, Schema]:
    if source in SOURCES:
        return SOURCES[source].schema["properties"]
    return {key: schema for info in SOURCES.values() for key, schema in info.schema["properties"].items()}


def _grouped() -> dict[str, dict[str, list[str]]]:
    """The sources that have each option, by the heading of the option's group; options of single sources come first."""
    owners: dict[str, list[str]] = {}
    for name, info in SOURCES.items():
        for key in info.schema["properties"]:
            owners.setdefault(key, []).append(name)
    groups: dict[str, dict[str, list[str]]] = {}
    for key, names in sorted(owners.items(), key=lambda item: (len(item[1]), item[1])):
        title = "options of every source" if key in POLICIES else f"options of {', '.join(names)}"
        groups.setdefault(title, {})[key] = names
    return groups


def _help(key: str, names: list[str]) -> str:
    """Description and default of an option, source by source where they differ."""
    texts: dict[str, list[str]] = {}
    for name in names:
        schema = SOURCES[name].schema["properties"][key]
        default = f" (default: {str(schema['default']).lower()})" if "default" in schema else ""
        texts.setdefault(schema["description"] + default, []).append(name)
    if len(texts) == 1:
        return next(iter(texts))
    return "; ".join(f"{', '.join(owners)}: {text}" for text, owners in texts.items())

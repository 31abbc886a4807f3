"""What a source is to the rest of the study, and how its options are checked before anything runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anatomy.errors import StudyError
from anatomy.graphs.policies import POLICIES
from anatomy.graphs.raw import RawGraph
from anatomy.options import complete_options

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
    given = {key: value for key, value in options.items() if key != "source"}
    complete = {"source": info.name, **complete_options(given, info.schema, f"{where} (source {info.name})")}
    try:
        info.check(complete)
    except StudyError as error:
        raise StudyError(f"{where}: {error}") from error
    return complete


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

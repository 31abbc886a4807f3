"""How traces are to be read: what a configuration or a command line may say."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anatomy.options import complete_options

OPTIONS = {
    "properties": {
        "max_dropped_share": {
            "type": "number",
            "minimum": 0,
            "maximum": 1,
            "default": 0.05,
            "description": "Share of a trace's events without a usable time above which the trace is refused.",
        },
        "operator_rules": {
            "type": "array",
            "default": [],
            "description": "Rules that come before the built-in ones: what a name matches decides its category.",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["category", "pattern"],
                "properties": {
                    "category": {"type": "string", "description": "A category of operators, such as sparse."},
                    "pattern": {"type": "string", "description": "A regular expression found anywhere in the name."},
                },
            },
        },
    },
    "required": [],
}
"""Options of every trace of a study."""

SOURCE_OPTIONS = {
    "properties": {
        "path": {"type": "string", "description": "Folder with one trace per rank, or one trace."},
        "ranks": {
            "type": "object",
            "default": {},
            "description": "Ranks of files by name, where neither the file nor its name says it, or they disagree.",
            "additionalProperties": {"type": "integer", "minimum": 0},
        },
        "ignore": {
            "type": "array",
            "default": [],
            "description": "Names of files in the folder that are no traces of the job; * stands for anything.",
            "items": {"type": "string"},
        },
        "expected_ranks": {
            "type": "integer",
            "minimum": 1,
            "description": "Ranks of the job, all of which must be there; by default absent ones are declared absent.",
        },
    },
    "required": ["path"],
}
"""Options of traces that somebody else recorded."""


@dataclass(frozen=True)
class ParseOptions:
    """`operator_rules` are (category, pattern) pairs; the rest is as in `OPTIONS` and `SOURCE_OPTIONS`."""

    max_dropped_share: float = 0.05
    operator_rules: tuple[tuple[str, str], ...] = ()
    ranks: Mapping[str, int] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    expected_ranks: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "ParseOptions":
        """From options as a configuration has them, checked, with defaults for the others.

        Raises StudyError listing every mistake.
        """
        properties = OPTIONS["properties"] | SOURCE_OPTIONS["properties"]
        fragment = {"properties": {name: value for name, value in properties.items() if name != "path"}}
        options = complete_options(given, fragment, "options of the traces")
        rules = tuple((rule["category"], rule["pattern"]) for rule in options.pop("operator_rules"))
        return cls(operator_rules=rules, ignore=tuple(options.pop("ignore")), **options)

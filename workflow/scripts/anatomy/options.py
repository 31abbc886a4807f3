"""Options of what a study is made of: described by JSON-schema fragments beside the code that takes them.

A fragment (draft 2020-12) has `properties`, each with a description, and `required`; it is closed, so that an unknown
key is a mistake. The configuration, `run.json` and the command lines are all checked here, in the same words.
"""

import copy
import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from anatomy.errors import StudyError

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

Fragment = Mapping[str, Any]


def closed(fragment: Fragment) -> dict[str, Any]:
    """A fragment as the schema of an object that has no other keys."""
    return {"type": "object", "additionalProperties": False, **fragment}


def complete_options(given: Mapping[str, Any], fragment: Fragment, place: str) -> dict[str, Any]:
    """A copy of the options given, checked, with the fragment's defaults for the others.

    `place` begins each message: a file and key, say. Raises StudyError listing every mistake.
    """
    options = copy.deepcopy(dict(given))
    problems = [": ".join(filter(None, [place, *problem])) for problem in violations(options, closed(fragment))]
    if problems:
        raise StudyError("\n  ".join(problems))
    fill_defaults(options, fragment)
    return options


def violations(instance: Any, schema: Fragment) -> Iterator[tuple[str, str]]:
    """What a schema refuses: the key, dotted and empty at the top level, and what was found, expected and is to do."""
    from jsonschema import Draft202012Validator  # slow to import

    errors = Draft202012Validator(schema).iter_errors(instance)
    for error in sorted(errors, key=lambda error: [str(part) for part in error.absolute_path]):
        yield ".".join(str(part) for part in error.absolute_path), _explain(error)


def fill_defaults(instance: Any, schema: Fragment) -> None:
    """Put a schema's defaults where keys are absent, in place, at every level that the schema describes."""
    if not isinstance(instance, dict):
        return
    for key, described in schema.get("properties", {}).items():
        if key not in instance and "default" in described:
            instance[key] = copy.deepcopy(described["default"])
        if key in instance:
            if described.get("type") == "integer":
                instance[key] = int(instance[key])  # JSON has one kind of number: 3.0 is an integer there
            fill_defaults(instance[key], described)


def no_such(name: Any, known: Iterable[str]) -> str:
    """That a name does not exist, what may have been meant, and what there is."""
    known = list(known)
    return f"{name!r} does not exist{_meant(name, known)}; there are: {', '.join(known) or 'none'}"


def _explain(error: "ValidationError") -> str:
    """One violation in words."""
    schema, found, limit = error.schema, error.instance, error.validator_value
    description = schema.get("description", "").rstrip(".") if isinstance(schema, Mapping) else ""
    about = f" ({description})" if description else ""
    match error.validator:
        case "additionalProperties":
            known = list(schema.get("properties", {}))
            unknown = [f"unknown key {key!r}{_meant(key, known)}" for key in found if key not in known]
            return f"{'; '.join(unknown)}; known keys: {', '.join(known) or 'none'}"
        case "required":
            missing = [key for key in limit if key not in found]
            details = [schema.get("properties", {}).get(key, {}).get("description", "") for key in missing]
            named = [f"{key!r}{f' ({text})' if text else ''}" for key, text in zip(missing, details, strict=True)]
            return f"the key {', '.join(named)} is missing; add it"
        case "pattern" if limit.startswith("^[A-Za-z0-9]"):
            return f"the name {found!r} may not be used{about}; use letters, digits, `_` and `-` only"
        case "pattern":
            return f"found {found!r}, expected a match of {limit}{about}; change it"
        case "enum":
            choices = [str(choice) for choice in limit]
            return f"found {found!r}{_meant(found, choices)}; choose one of: {', '.join(choices)}{about}"
        case "type":
            expected = limit if isinstance(limit, str) else " or ".join(limit)
            return f"found {found!r}, expected {expected}{about}; change it"
        case "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum":
            bound = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most"}.get(
                error.validator, "less than"
            )
            remedy = "raise it" if "inimum" in error.validator else "lower it"
            return f"found {found!r}, expected {bound} {limit}{about}; {remedy}"
        case _:
            return f"{error.message}{about}; change it"


def _meant(name: Any, known: list[str]) -> str:
    close = difflib.get_close_matches(str(name), [str(item) for item in known], n=1)
    return f", did you mean {close[0]!r}?" if close else ""

"""Check a study's configuration and fill in its defaults, before any job starts.

The outline is `config/schemas/study.json`; the options of a source, a method, a layer or an observation stand beside
the code that takes them. Every mistake in a file is reported at once, each with file, key, value and remedy.
"""

import copy
import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from anatomy.errors import StudyError
from anatomy.figures import FIGURES
from anatomy.graphs.sources import SOURCES, known_num_nodes
from anatomy.observations import OBSERVATIONS
from anatomy.partitions import PARTITIONERS
from anatomy.plugins import Plugins
from anatomy.tables import TABLES
from anatomy.training.options import MODEL_OPTIONS, PROFILE_OPTIONS, STRATEGIES, TRAINING_OPTIONS

OUTLINE = Path(__file__).parents[3] / "config" / "schemas" / "study.json"
ROOT_PARTITIONER = "single"
"""The partitioner of runs on one rank: always there, never in a configuration."""

Options = dict[str, Any]


def check_configuration(config: Mapping[str, Any], file: str) -> Options:
    """A deep copy of `config` with defaults filled in.

    `file` is what messages call the configuration. Raises StudyError listing every mistake found.
    """
    config = copy.deepcopy(dict(config))
    outline = json.loads(OUTLINE.read_text(encoding="utf-8"))
    problems = list(_violations(config, outline, ""))
    if not problems:
        _fill_defaults(config, outline)
        for place, options, schema in _parts(config, problems):
            schema = {"type": "object", "additionalProperties": False, **schema}
            problems += _violations(options, schema, place)
            _fill_defaults(options, schema)
    if not problems:
        problems += _mismatches(config)
    if problems:
        raise StudyError("\n  ".join([f"{file}: {len(problems)} mistake(s)", *problems]))
    return config


def _parts(config: Options, problems: list[str]) -> Iterator[tuple[str, Options, Options]]:
    """Every part of the configuration whose options are described beside code: its place, its options, their schema."""
    chosen_by = {
        ("graphs", "source"): {name: source.schema for name, source in SOURCES.items()},
        ("partitioners", "method"): _options_of(PARTITIONERS),
        ("strategies", "method"): _options_of(STRATEGIES),
    }
    for (section, key), schemas in chosen_by.items():
        for name, options in config[section].items():
            place = f"{section}.{name}"
            if key not in options:
                problems.append(f"{place}: the key {key!r} is missing; add it, one of: {', '.join(schemas)}")
            elif options[key] not in schemas:
                problems.append(f"{place}.{key}: {_no_such(options[key], schemas)}")
            else:
                schema = schemas[options[key]]
                yield place, options, {**schema, "properties": {key: {}, **schema["properties"]}}
    for name, options in config["models"].items():
        yield f"models.{name}", options, MODEL_OPTIONS
    yield "training", config["training"], TRAINING_OPTIONS
    yield "profile", config["profile"], PROFILE_OPTIONS
    for section, plugins in (("tables", TABLES), ("observations", OBSERVATIONS)):
        for name in config[section]:
            options = config[section][name] = config[section][name] or {}
            if name not in plugins:
                problems.append(f"{section}.{name}: {_no_such(name, plugins)}")
            else:
                schema = plugins[name].constants["OPTIONS"]
                shared = {"experiments": {}} if section == "tables" else {}
                yield f"{section}.{name}", options, {**schema, "properties": shared | schema["properties"]}


def _options_of(plugins: Plugins) -> dict[str, Options]:
    return {name: plugins[name].constants["OPTIONS"] for name in plugins}


def _mismatches(config: Options) -> Iterator[str]:
    """What a schema cannot say: names that must exist, numbers that must agree."""
    if ROOT_PARTITIONER in config["partitioners"]:
        yield f"partitioners.{ROOT_PARTITIONER}: this name is built in, for runs on one rank; rename yours"
    for name, experiment in config["experiments"].items():
        yield from _experiment_mismatches(config, f"experiments.{name}", experiment)
    for name, table in config["tables"].items():
        for experiment in table["experiments"]:
            if experiment not in config["experiments"]:
                yield f"tables.{name}.experiments: {_no_such(experiment, config['experiments'])}"
    for section, plugins in (("figures", FIGURES), ("observations", OBSERVATIONS)):
        for name in config[section]:
            if name not in plugins:
                yield f"{section}: {_no_such(name, plugins)}"
                continue
            table = plugins[name].constants["TABLE"]
            if table not in config["tables"]:
                yield (
                    f"{section}: {name!r} reads the table {table!r}, for which no experiment is configured; "
                    f"add `{table}: {{experiments: [...]}}` to tables or take {name!r} out"
                )


def _experiment_mismatches(config: Options, place: str, experiment: Options) -> Iterator[str]:
    crossed = {"graphs", "ranks"} & experiment.keys()
    if ("points" in experiment) == bool(crossed) or len(crossed) == 1:
        found = ", ".join(sorted({"graphs", "ranks", "points"} & experiment.keys())) or "none of them"
        yield f"{place}: found {found}; give either `graphs` and `ranks`, or `points`"
    for section in ("graphs", "partitioners", "strategies", "models"):
        for name in experiment.get(section, []):
            if name not in config[section]:
                yield f"{place}.{section}: {_no_such(name, config[section])}"
    points = [(graph, ranks) for graph in experiment.get("graphs", []) for ranks in experiment.get("ranks", [])]
    for point in experiment.get("points", []):
        points.append((point["graph"], point["ranks"]))
        if point["graph"] not in config["graphs"]:
            yield f"{place}.points: {_no_such(point['graph'], config['graphs'])}"
    for graph, ranks in points:
        yield from _size_mismatches(config, place, experiment, graph, ranks)
    for strategy in experiment["strategies"]:
        fanouts = config["strategies"].get(strategy, {}).get("fanouts")
        for model in experiment["models"]:
            num_layers = config["models"].get(model, {}).get("num_layers")
            if fanouts is not None and num_layers is not None and len(fanouts) != num_layers:
                yield (
                    f"strategies.{strategy}.fanouts: found {len(fanouts)} fan-outs {fanouts}, but {place} trains "
                    f"models.{model}, which has {num_layers} layers; give one fan-out per layer"
                )


def _size_mismatches(config: Options, place: str, experiment: Options, graph: str, ranks: int) -> Iterator[str]:
    parts = experiment.get("parts", ranks)
    if parts != ranks:
        yield f"{place}.parts: found {parts} parts for {ranks} ranks; every rank trains one part: leave `parts` out"
    options = config["graphs"].get(graph)
    num_nodes = None
    if options is not None:
        try:
            num_nodes = known_num_nodes(options)
        except StudyError as error:
            yield f"graphs.{graph}: {error}"
    if num_nodes is not None and ranks > num_nodes:
        yield f"{place}.ranks: found {ranks} parts, but graphs.{graph} has only {num_nodes} nodes; use fewer ranks"


def _violations(instance: Any, schema: Options, place: str) -> Iterator[str]:
    errors = Draft202012Validator(schema).iter_errors(instance)
    for error in sorted(errors, key=lambda error: [str(part) for part in error.absolute_path]):
        where = ".".join(filter(None, [place, *(str(part) for part in error.absolute_path)])) or "(top level)"
        yield f"{where}: {_explain(error)}"


def _explain(error: ValidationError) -> str:
    """One violation in words: what was found, what was expected, what to do."""
    schema, found = error.schema, error.instance
    about = f" ({schema['description'].rstrip('.')})" if isinstance(schema, Mapping) and "description" in schema else ""
    match error.validator:
        case "additionalProperties":
            known = list(schema.get("properties", {}))
            unknown = [key for key in found if key not in known]
            return "; ".join(
                f"unknown key {key!r}{_meant(key, known)}; known keys: {', '.join(known)}" for key in unknown
            )
        case "required":
            missing = [key for key in error.validator_value if key not in found]
            return f"the key(s) {', '.join(map(repr, missing))} missing; add them"
        case "pattern":
            return (
                f"the name {found!r} may not be used{about}; use letters, digits, `_` and `-` only"
                if error.validator_value.startswith("^[A-Za-z0-9]")
                else f"found {found!r}, expected a match of {error.validator_value}{about}; change it"
            )
        case "enum":
            choices = [str(choice) for choice in error.validator_value]
            return f"found {found!r}{_meant(found, choices)}; choose one of: {', '.join(choices)}"
        case "type":
            return f"found {found!r}, expected {_words(error.validator_value)}{about}; change it"
        case "minimum" | "exclusiveMinimum":
            bound = "at least" if error.validator == "minimum" else "more than"
            return f"found {found!r}, expected {bound} {error.validator_value}{about}; raise it"
        case "maximum" | "exclusiveMaximum":
            bound = "at most" if error.validator == "maximum" else "less than"
            return f"found {found!r}, expected {bound} {error.validator_value}{about}; lower it"
        case _:
            return f"{error.message}{about}; change it"


def _words(types: str | list[str]) -> str:
    return types if isinstance(types, str) else " or ".join(types)


def _no_such(name: Any, known: Mapping[str, Any]) -> str:
    return f"{name!r} does not exist{_meant(name, list(known))}; there are: {', '.join(known)}"


def _meant(name: Any, known: list[str]) -> str:
    close = difflib.get_close_matches(str(name), [str(item) for item in known], n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def _fill_defaults(instance: Any, schema: Options) -> None:
    """Put a schema's defaults where keys are absent, at every level that the schema itself describes."""
    if not isinstance(instance, dict):
        return
    for key, described in schema.get("properties", {}).items():
        if key not in instance and "default" in described:
            instance[key] = copy.deepcopy(described["default"])
        if key in instance:
            _fill_defaults(instance[key], described)
    nested = schema.get("additionalProperties")
    if isinstance(nested, Mapping):
        nested = json.loads(OUTLINE.read_text())["$defs"][nested["$ref"].split("/")[-1]] if "$ref" in nested else nested
        for value in instance.values():
            _fill_defaults(value, nested)

"""Check a study's configuration and fill in its defaults, before any job starts.

The outline is `config/schemas/study.json`; the options of a source, a method, a layer or an observation stand beside
the code that takes them. What lies outside of the file and would end the study later (a folder of traces that is not
there) is asked for here as well. Every mistake in a file is reported at once, each with file, key, value and remedy.
"""

import copy
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from anatomy.errors import StudyError
from anatomy.experiments import experiment_mismatches
from anatomy.figures import FIGURES
from anatomy.graphs.sources import SOURCES, known_num_nodes
from anatomy.graphs.sources import complete_options as complete_graph_options
from anatomy.observations import OBSERVATIONS
from anatomy.options import closed, fill_defaults, no_such, violations
from anatomy.partitions import PARTITIONERS
from anatomy.plugins import Plugins
from anatomy.tables import TABLES
from anatomy.traces.naming import Category
from anatomy.traces.options import OPTIONS as PARSING_OPTIONS
from anatomy.traces.options import SOURCE_OPTIONS, ParseOptions
from anatomy.traces.reading.discovery import find_trace_files
from anatomy.training.conditions import CONDITION_OPTIONS
from anatomy.training.options import (
    MODEL_OPTIONS,
    PROFILE_OPTIONS,
    STRATEGIES,
    TRAINING_OPTIONS,
    strategy_options,
)

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
    problems = [f"{key or '(top level)'}: {problem}" for key, problem in violations(config, outline)]
    if not problems:
        fill_defaults(config, outline)
        for name, experiment in config["experiments"].items():
            problems += _trained_and_recorded(f"experiments.{name}", experiment, outline["$defs"]["experiment"])
            fill_defaults(experiment, outline["$defs"]["experiment"])
        for place, options, schema in _parts(config, problems):
            found = list(violations(options, closed(schema)))
            if not found:
                fill_defaults(options, schema)
            problems += [f"{f'{place}.{key}' if key else place}: {problem}" for key, problem in found]
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
                problems.append(f"{place}.{key}: {no_such(options[key], schemas)}")
            else:
                schema = strategy_options(options) if section == "strategies" else schemas[options[key]]
                yield place, options, {**schema, "properties": {key: {}, **schema["properties"]}}
    for name, options in config["models"].items():
        yield f"models.{name}", options, MODEL_OPTIONS
    for name, options in config["conditions"].items():
        yield f"conditions.{name}", options, CONDITION_OPTIONS
    yield "training", config["training"], TRAINING_OPTIONS
    yield "profile", config["profile"], PROFILE_OPTIONS
    for name, options in config["traces"].items():
        yield f"traces.{name}", options, SOURCE_OPTIONS
    yield "parsing", config["parsing"], PARSING_OPTIONS
    for section, plugins in (("tables", TABLES), ("observations", OBSERVATIONS)):
        for name in config[section]:
            options = config[section][name] = config[section][name] or {}
            if name not in plugins:
                problems.append(f"{section}.{name}: {no_such(name, plugins)}")
            else:
                schema = plugins[name].constants["OPTIONS"]
                shared = {"experiments": {}} if section == "tables" else {}
                yield f"{section}.{name}", options, {**schema, "properties": shared | schema["properties"]}


def _trained_and_recorded(place: str, experiment: Options, schema: Options) -> Iterator[str]:
    """The mistake of an experiment, defaults not yet filled in, that has traces and what is trained as well."""
    found = [key for key in schema["properties"] if key in experiment and key not in ("question", "traces")]
    if "traces" in experiment and found:
        yield (
            f"{place}: found traces and {', '.join(found)}; an experiment trains runs or takes traces that are there: "
            "make two of it"
        )


def _options_of(plugins: Plugins) -> dict[str, Options]:
    return {name: plugins[name].constants["OPTIONS"] for name in plugins}


def _mismatches(config: Options) -> Iterator[str]:
    """What a schema cannot say: names that must exist, numbers that must agree."""
    if ROOT_PARTITIONER in config["partitioners"]:
        yield f"partitioners.{ROOT_PARTITIONER}: this name is built in, for runs on one rank; rename yours"
    num_nodes = {}
    for name, options in config["graphs"].items():
        try:
            num_nodes[name] = known_num_nodes(complete_graph_options(options, f"graphs.{name}"))
        except StudyError as error:
            yield str(error)
    for name, experiment in config["experiments"].items():
        if "traces" in experiment:
            yield from _recorded_mismatches(config, f"experiments.{name}", experiment)
        else:
            yield from experiment_mismatches(config, f"experiments.{name}", experiment, num_nodes)
    yield from _rule_mismatches(config["parsing"]["operator_rules"])
    yield from _table_mismatches(config)
    for section, plugins in (("figures", FIGURES), ("observations", OBSERVATIONS)):
        for name in config[section]:
            if name not in plugins:
                yield f"{section}: {no_such(name, plugins)}"
                continue
            table = plugins[name].constants["TABLE"]
            if table not in config["tables"]:
                yield (
                    f"{section}: {name!r} reads the table {table!r}, for which no experiment is configured; "
                    f"add `{table}: {{experiments: [...]}}` to tables or take {name!r} out"
                )


def _table_mismatches(config: Options) -> Iterator[str]:
    for name, table in config["tables"].items():
        for experiment in table["experiments"]:
            if experiment not in config["experiments"]:
                yield f"tables.{name}.experiments: {no_such(experiment, config['experiments'])}"
            elif "traces" in config["experiments"][experiment] and "traces" not in TABLES[name].constants["INPUTS"]:
                able = [table for table, plugin in TABLES.items() if "traces" in plugin.constants["INPUTS"]]
                yield (
                    f"tables.{name}.experiments: {experiment!r} has traces alone, and this table needs runs; take it "
                    f"out (traces are enough for {', '.join(able)})"
                )


def _recorded_mismatches(config: Options, place: str, experiment: Options) -> Iterator[str]:
    for name in experiment["traces"]:
        if name not in config["traces"]:
            yield f"{place}.traces: {no_such(name, config['traces'])}"
            continue
        path = config["traces"][name]["path"]
        if not Path(path).exists():
            yield f"traces.{name}.path: {path} does not exist; give a folder with one trace per rank, or one trace"
            continue
        try:
            trace_files(config["traces"][name])
        except StudyError as error:
            yield f"traces.{name}: {error}"


def _rule_mismatches(rules: list[dict[str, str]]) -> Iterator[str]:
    for place, rule in enumerate(rules):
        if rule["category"] not in list(Category):
            yield f"parsing.operator_rules.{place}.category: {no_such(rule['category'], list(Category))}"
        try:
            re.compile(rule["pattern"])
        except re.error as error:
            yield (
                f"parsing.operator_rules.{place}.pattern: found {rule['pattern']!r}, expected a regular expression "
                f"({error}); correct it"
            )


def trace_files(source: Mapping[str, Any]) -> list[str]:
    """The files of traces that were recorded elsewhere, as they are now, sorted; `source` is an entry of `traces`.

    Raises StudyError where there is none, or where a file that a rank is stated for is not among them.
    """
    options = ParseOptions(ranks=source.get("ranks", {}), ignore=tuple(source.get("ignore", ())))
    return [str(path) for path in find_trace_files(Path(source["path"]), options)]

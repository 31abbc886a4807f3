"""Partition a stored graph, measure the partition, and list which nodes each part needs from each other part.

Writes assignment.npy, halo_offsets.npy, halo_nodes.npy, for a vertex cut edge_assignment.npy, mirror_offsets.npy and
mirror_nodes.npy as well, and, last, partition.json. The same graph, options and seed give the same partition.

    python workflow/scripts/partition_graph.py --graph results/graphs/powerlaw --partitioner metis --num-parts 4 --seed
    0 \\
        --out results/partitions/powerlaw/metis-4
"""

import argparse
import json
from pathlib import Path
from typing import Any

from anatomy.errors import StudyError
from anatomy.partitions import PARTITIONERS
from anatomy.program import parser_for, run_program

TYPES = {"integer": int, "number": float, "string": str}


def main() -> None:
    arguments = vars(parse_arguments())
    options = merged_options(arguments.pop("options"), arguments.pop("method"), arguments)
    from anatomy.partitions.build import partition_graph

    partition_graph(arguments["graph"], options, arguments["num_parts"], arguments["out"], arguments["name"])


def parse_arguments() -> argparse.Namespace:
    parser = parser_for(__doc__)
    parser.add_argument("--graph", type=Path, required=True, help="folder of the graph, as build_graph.py wrote it")
    methods = "; ".join(f"{name}: {plugin.constants['SUMMARY']}" for name, plugin in PARTITIONERS.items())
    parser.add_argument("--partitioner", dest="method", metavar="METHOD", help=f"one of {methods}")
    parser.add_argument("--num-parts", type=int, required=True, help="parts, at least 1 and at most as many as nodes")
    parser.add_argument("--out", type=Path, required=True, help="folder for the partition")
    parser.add_argument("--name", help="what the partition calls its partitioner; by default the method")
    parser.add_argument(
        "--options",
        default="{}",
        metavar="JSON",
        help='options as one JSON object, e.g. {"method": "metis", "seed": 1}',
    )
    group = parser.add_argument_group("options of the methods", "These override the same option in --options.")
    for option, schemas in options_of_methods().items():
        schema = next(iter(schemas.values()))
        kind = (
            {"action": argparse.BooleanOptionalAction}
            if schema["type"] == "boolean"
            else {"type": TYPES[schema["type"]], "metavar": schema["type"].upper()}
        )
        group.add_argument(
            f"--{option.replace('_', '-')}",
            dest=f"option.{option}",
            default=argparse.SUPPRESS,
            help=explained(schemas).replace("%", "%%"),
            **kind,
        )
    return parser.parse_args()


def options_of_methods() -> dict[str, dict[str, Any]]:
    """Every option that some method has, with its schema in each of them."""
    found: dict[str, dict[str, Any]] = {}
    for name in PARTITIONERS:
        for option, schema in PARTITIONERS[name].constants["OPTIONS"]["properties"].items():
            found.setdefault(option, {})[name] = schema
    return found


def explained(schemas: dict[str, Any]) -> str:
    """What an option means to each method that has it; methods that it means the same to are named together."""
    methods: dict[str, list[str]] = {}
    for name, schema in schemas.items():
        default = f" (default: {schema['default']})" if "default" in schema else ""
        methods.setdefault(f"{schema['description']}{default}", []).append(name)
    return " ".join(f"{', '.join(names)}: {text}" for text, names in methods.items())


def merged_options(text: str, method: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
    """The options of --options, then --partitioner, then those given one by one."""
    try:
        options = json.loads(text)
    except ValueError as error:
        raise StudyError(f"--options: found {text!r}, which is not JSON ({error}); correct it") from error
    if not isinstance(options, dict):
        raise StudyError(f"--options: found {text!r}, expected a JSON object; correct it")
    if method is not None:
        options["method"] = method
    if "method" not in options:
        raise StudyError(f"--partitioner: found none, expected one of: {', '.join(PARTITIONERS)}; add it")
    return options | {
        key.removeprefix("option."): value for key, value in arguments.items() if key.startswith("option.")
    }


if __name__ == "__main__":
    run_program(main)

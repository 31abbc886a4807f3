"""The registry of sources and its schemas."""

import resource
import time
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from anatomy.errors import StudyError
from anatomy.graphs.sources import SOURCES, complete_options, known_num_nodes, needs_fetch, resources


def test_each_file_is_a_source(scripts: Path) -> None:
    files = {path.stem for path in (scripts / "anatomy/graphs/sources").glob("*.py")} - {"__init__"}
    assert set(SOURCES) == files == {"powerlaw", "ogb", "npz", "edgelist", "metis"}
    assert all(info.name == name for name, info in SOURCES.items())


@pytest.mark.parametrize("name", list(SOURCES))
def test_schemas_are_valid_described_and_accept_their_defaults(name: str) -> None:
    schema = SOURCES[name].schema
    Draft202012Validator.check_schema(schema)
    assert set(schema["required"]) <= set(schema["properties"])
    for key, part in schema["properties"].items():
        assert part["description"], key
        if "default" in part:
            Draft202012Validator(part).validate(part["default"])


@pytest.mark.parametrize(
    ("entry", "valid"),
    [
        ({"source": "powerlaw"}, True),
        ({"source": "powerlaw", "num_nodes": 9000, "seed": 3, "duplicates": "keep"}, True),
        ({"source": "powerlaw", "path": "x"}, False),
        ({"source": "ogb"}, False),
        ({"source": "ogb", "dataset": "ogbn-arxiv"}, True),
        ({"source": "ogb", "dataset": "ogbn-mag"}, False),
        ({"source": "metis", "path": "x", "direction": "up"}, False),
        ({"source": "metis", "path": "x", "self_loops": "add"}, True),
        ({"source": "npz", "url": "ftp://x", "sha256": "0" * 64}, False),
        ({"source": "npz", "url": "http://x/a", "sha256": "0" * 63}, False),
        ({"source": "other"}, False),
        ({}, False),
    ],
)
def test_an_entry_of_a_config_is_complete_or_refused(entry: dict[str, Any], valid: bool) -> None:
    if valid:
        assert complete_options(entry)["source"] == entry["source"]
    else:
        with pytest.raises(StudyError, match="graph options"):
            complete_options(entry)


def test_defaults_are_filled_in_and_whole_numbers_made_whole() -> None:
    options = complete_options({"source": "powerlaw", "num_nodes": 1e5})
    assert options["num_nodes"] == 100_000
    assert isinstance(options["num_nodes"], int)
    assert (options["direction"], options["self_loops"], options["duplicates"]) == ("symmetrise", "remove", "merge")
    assert complete_options(options) == options


def test_node_counts_are_known_quickly() -> None:
    start_s = time.perf_counter()
    assert known_num_nodes({"source": "powerlaw", "num_nodes": 12_345}) == 12_345
    assert known_num_nodes({"source": "metis", "url": "http://x/a", "sha256": "0" * 64}) is None
    assert known_num_nodes({"source": "ogb", "dataset": "ogbn-arxiv"}) == 169_343
    assert time.perf_counter() - start_s < 0.5
    assert needs_fetch({"source": "metis", "url": "http://x/a", "sha256": "0" * 64})
    assert not needs_fetch({"source": "powerlaw"})


def test_declared_resources_are_enough(build: Any) -> None:
    """Disk from above, and memory: this process has peaked at more than the build, so only what it adds is compared."""
    options = {"source": "powerlaw", "num_nodes": 50_000, "mean_degree": 30, "num_features": 40}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    graph = build(**options)
    needed = resources(options)
    used_mb = sum(path.stat().st_size for path in graph.path.iterdir()) / 1e6
    assert used_mb < needed["disk_mb"] < 3 * used_mb + 32
    assert graph.manifest["peak_memory_bytes"] / 2**20 - before < needed["mem_mb"]

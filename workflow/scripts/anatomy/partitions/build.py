"""From a stored graph to a stored partition."""

import logging
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from anatomy.errors import StudyError
from anatomy.files import save_array, staged, write_json
from anatomy.graphs.store import Graph, check_graph, open_graph
from anatomy.partitions import PARTITIONERS
from anatomy.partitions.adjacency import Adjacency
from anatomy.partitions.checks import check_assignment, check_edge_assignment
from anatomy.partitions.hosts import measure_hosts
from anatomy.partitions.options import complete_options
from anatomy.partitions.quality import measure
from anatomy.partitions.repair import fill_empty_parts
from anatomy.partitions.store import MANIFEST
from anatomy.partitions.vertexcut import measure_vertex_cut, roots
from anatomy.program import measured, versions

log = logging.getLogger(__name__)


def partition_graph(
    graph_path: Path, options: Mapping[str, Any], num_parts: int, out: Path, name: str | None = None
) -> dict[str, Any]:
    """Partition the graph in folder `graph_path`, write the partition to the folder `out`, and return its manifest.

    `options` has `method` and that method's options; `name` is what the config calls them, by default the method.

    Raises StudyError for refused options, a damaged graph, a number of parts that the graph cannot have, or a method
    that fails.
    """
    options = complete_options(options)
    graph = open_graph(graph_path)
    _check_num_parts(graph, num_parts)
    check_graph(graph)
    method = options["method"]
    manifest: dict[str, Any] = {
        "kind": "partition",
        "graph": graph.name,
        "graph_identity": graph.identity,
        "partitioner": name or method,
        "method": method,
        "options": {key: value for key, value in options.items() if key != "method"},
        "num_parts": num_parts,
        "num_nodes": graph.num_nodes,
    }
    with staged(out, MANIFEST) as stage:
        with measured(manifest):
            assigned = assign(graph, options, num_parts)
            quality, arrays = measure_all(graph, assigned, num_parts, options.get("ranks_per_host"))
            manifest |= quality
            manifest["arrays"] = {name: save_array(stage, name, array) for name, array in arrays.items()}
            manifest["versions"] = versions("numpy", "scipy", *PARTITIONERS[method].constants["PACKAGES"])
        # A method may have worked in a process of its own, which was then the larger one.
        largest_child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        manifest["peak_memory_bytes"] = max(manifest["peak_memory_bytes"], largest_child)
        write_json(stage / MANIFEST, manifest)
    log.info(
        "%s into %d parts by %s: cut %d, %d halo nodes, balance %.3f, in %.1f s",
        graph.name,
        num_parts,
        manifest["partitioner"],
        *(manifest["total"][key] for key in ("edge_cut", "communication_volume", "balance_nodes")),
        manifest["seconds"],
    )
    return manifest


class Assigned(NamedTuple):
    """The part of each node, int32 [num_nodes], and, of a vertex cut, of each stored edge, int32 [num_edges]."""

    nodes: np.ndarray
    edges: np.ndarray | None = None


def assign(graph: Graph, options: Mapping[str, Any], num_parts: int) -> Assigned:
    """What the method in complete `options` makes of a graph; checked, and no part is without nodes."""
    method = PARTITIONERS[options["method"]].load()
    place = f"{graph.path}: graph {graph.name}: {options['method']}"
    edges = None
    if hasattr(method, "assign_edges"):
        edges = method.assign_edges(graph, num_parts, options)
        check_edge_assignment(edges, graph.num_edges, num_parts, place)
        edges = edges.astype(np.int32, copy=False)
        found = roots(graph, edges, num_parts)
    else:
        found = method.assign(graph, num_parts, options)
    check_assignment(found, graph.num_nodes, num_parts, place, empty_allowed=True)
    nodes = fill_empty_parts(Adjacency(graph.indptr, graph.indices), found, num_parts)
    if nodes is not found:
        log.info("%s left parts empty, which were filled from the largest ones", options["method"])
    check_assignment(nodes, graph.num_nodes, num_parts, place)
    return Assigned(nodes.astype(np.int32, copy=False), edges)


def measure_all(
    graph: Graph, assigned: Assigned, num_parts: int, ranks_per_host: int | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """All that is said about a partition's quality, as in the manifest, and the arrays that are stored.

    `hosts` is there where the method knows how many ranks share a host, `vertex_cut` where it gives parts to edges.
    """
    quality, halo_offsets, halo_nodes = measure(graph, assigned.nodes, num_parts)
    arrays = {"assignment": assigned.nodes, "halo_offsets": halo_offsets, "halo_nodes": halo_nodes}
    if ranks_per_host is not None:
        quality["hosts"] = measure_hosts(graph, assigned.nodes, quality, ranks_per_host)
    if assigned.edges is not None:
        quality["vertex_cut"], mirror_offsets, mirror_nodes = measure_vertex_cut(graph, *assigned, num_parts)
        arrays |= {"edge_assignment": assigned.edges, "mirror_offsets": mirror_offsets, "mirror_nodes": mirror_nodes}
    return quality, arrays


def _check_num_parts(graph: Graph, num_parts: int) -> None:
    if not 1 <= num_parts <= graph.num_nodes:
        raise StudyError(
            f"{graph.path}: graph {graph.name}: found {num_parts} parts for {graph.num_nodes} nodes, expected 1 to "
            f"{graph.num_nodes}; choose another number of parts"
        )

"""`metis`: the text format of METIS, one line of neighbours per vertex, numbered from 1.

METIS manual 5.1.0, section 4.1.1. The header is `vertices edges [fmt [ncon]]`; each edge stands in both its vertices'
lines; lines that begin with % are comments; a blank line is a vertex without neighbours.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from anatomy.errors import StudyError
from anatomy.graphs import edges
from anatomy.graphs.files_given import check_file_options, checked_path, file_download, file_options, given_path
from anatomy.graphs.made import MADE_OPTIONS
from anatomy.graphs.options import Options, SourceInfo, estimate, source_schema
from anatomy.graphs.raw import RawGraph
from anatomy.graphs.splits import SPLIT_OPTIONS, check_fractions
from anatomy.graphs.text import IntegerLines, open_text, read_integer_lines, text_size

_PROPERTIES = {
    **file_options("", "the graph"),
    "weights": {
        "type": "string",
        "enum": ["refuse", "drop"],
        "default": "refuse",
        "description": "what to do with weights, which the store does not hold",
    },
    **MADE_OPTIONS,
    **SPLIT_OPTIONS,
}


def read(options: Options, scratch: Path) -> RawGraph:
    """Read the structure. Raises StudyError where lines and header disagree, or an edge stands in one line only."""
    path = checked_path(options)
    lines = read_integer_lines(path, comments="%")
    num_nodes, num_edges, layout, skipped = _header(path, lines.values[: lines.starts[1]] if len(lines.counts) else [])
    notes = _treat_weights(path, layout, options["weights"])
    if len(lines.counts) < 1 + num_nodes or lines.counts[1 + num_nodes :].any():
        found = max(int(np.flatnonzero(lines.counts)[-1]), min(len(lines.counts) - 1, num_nodes))
        raise StudyError(
            f"{path}: found {found} vertex lines, expected {num_nodes} as in the header; the file is cut off or its "
            "header is wrong"
        )
    targets, neighbours, positions = _neighbours(lines, num_nodes, skipped, weighted=layout[2] == "1")
    _check_neighbours(lines, neighbours, positions, num_nodes, num_edges)
    packed = edges.pack(neighbours - 1, targets, num_nodes, lambda i: lines.line_of(positions[i]))
    _check_symmetric(path, packed, num_nodes)
    return RawGraph(file=str(path), num_nodes=num_nodes, edges=packed, notes=notes)


def _treat_weights(path: Path, layout: str, policy: str) -> list[str]:
    """What the manifest should say about weights. Raises StudyError where there are some that must not be dropped."""
    if layout == "000":
        return []
    if policy == "refuse":
        raise StudyError(
            f"{path}: header: found fmt {layout}, that is weights, expected a graph without; set weights to drop to "
            "read its structure only"
        )
    return [f"weights of the source dropped (fmt {layout})"]


def _check_neighbours(
    lines: IntegerLines, neighbours: np.ndarray, positions: np.ndarray, num_nodes: int, num_edges: int
) -> None:
    """Raise StudyError where a neighbour is no vertex, or where they are not two for each edge of the header."""
    if len(neighbours) and (neighbours.min() < 1 or neighbours.max() > num_nodes):
        wrong = int(np.flatnonzero((neighbours < 1) | (neighbours > num_nodes))[0])
        raise StudyError(
            f"{lines.line_of(positions[wrong])}: found neighbour {neighbours[wrong]}, expected 1 to {num_nodes}; the "
            "file is damaged"
        )
    if len(neighbours) != 2 * num_edges:
        raise StudyError(
            f"{lines.path}: found {len(neighbours)} entries, expected {2 * num_edges}, two for each of the {num_edges} "
            "edges in the header; the file is cut off or its header is wrong"
        )


def _header(path: Path, numbers: Iterable[Any]) -> tuple[int, int, str, int]:
    """Vertices, edges, the three digits of fmt, and how many numbers precede a vertex's neighbours."""
    numbers = [int(number) for number in numbers]
    layout = f"{numbers[2]:03d}" if len(numbers) > 2 else "000"
    if not 2 <= len(numbers) <= 4 or len(layout) != 3 or set(layout) - {"0", "1"}:
        raise StudyError(
            f"{path}: header: found {' '.join(map(str, numbers[:6])) or 'nothing'}, expected: vertices edges [fmt "
            "[ncon]], fmt of three digits 0 or 1; is this a METIS graph?"
        )
    weights = (numbers[3] if len(numbers) == 4 else 1) if layout[1] == "1" else 0
    return numbers[0], numbers[1], layout, int(layout[0]) + weights


def _neighbours(
    lines: IntegerLines, num_nodes: int, skipped: int, weighted: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(vertex from 0, neighbour from 1, position among the file's numbers) of each entry, without weights."""
    counts = lines.counts[1 : num_nodes + 1]
    first = lines.starts[1 : num_nodes + 1]
    bad = np.flatnonzero((counts < skipped) | ((counts - skipped) % (2 if weighted else 1) != 0))
    if len(bad):
        raise StudyError(
            f"{lines.path}: line {lines.line_numbers[1 + bad[0]]}: found {counts[bad[0]]} numbers, which does not fit "
            "the weights that the header announces; the file is damaged"
        )
    vertices = np.repeat(np.arange(num_nodes), counts)
    positions = np.arange(lines.starts[1], lines.starts[num_nodes + 1])
    rank = positions - np.repeat(first, counts) - skipped
    kept = (rank >= 0) & (rank % (2 if weighted else 1) == 0)
    return vertices[kept], lines.values[positions[kept]], positions[kept]


def _check_symmetric(path: Path, packed: np.ndarray, num_nodes: int) -> None:
    """Raise StudyError, naming an edge, where one of its two entries is missing. Sorts `packed`."""
    packed.sort()
    opposite = edges.turned(packed, num_nodes, out=np.empty_like(packed))
    opposite.sort()
    if not np.array_equal(packed, opposite):
        first = int(np.flatnonzero(packed != opposite)[0])
        source, target = edges.unpack(np.minimum(packed[first], opposite[first]), num_nodes)
        raise StudyError(
            f"{path}: found an edge between vertices {target + 1} and {source + 1} in one of their lines only, "
            "expected it in both; METIS graphs are undirected: write the file again"
        )


def num_nodes_of(options: Options) -> int | None:
    """Vertices by the header, of a local file."""
    if "path" not in options:
        return None
    path = given_path(options)
    with open_text(path) as text:
        header = next((line for line in text if not line.lstrip().startswith(b"%")), b"")
    words = header.split()
    if not all(word.isdigit() for word in words):
        raise StudyError(
            f"{path}: header: found {header[:60].decode(errors='replace').strip()!r}, expected whole numbers; is "
            "this a METIS graph?"
        )
    return _header(path, words)[0]


def check(options: Options) -> None:
    check_file_options(options)
    check_fractions(options["train_fraction"], options["val_fraction"])


def _resources(options: Options) -> dict[str, int]:
    if "path" not in options:
        return {"mem_mb": 4000, "disk_mb": 2000}
    size = text_size(given_path(options))
    # A vertex takes a byte at least, an entry two; masks, positions and numbers of the text some 12 bytes per byte.
    num_nodes = min(size, num_nodes_of(options) or 0)
    return estimate(num_nodes, size // 2, options["make_num_features"], options, extra_memory_bytes=16 * size)


SOURCE = SourceInfo(
    name="metis",
    summary="a graph in the text format of METIS (.graph)",
    schema=source_schema(_PROPERTIES),
    read=read,
    num_nodes=num_nodes_of,
    resources=_resources,
    check=check,
    downloads=file_download,
)

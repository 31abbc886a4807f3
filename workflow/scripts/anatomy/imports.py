"""Which modules of the library decide what a program makes, read from its import statements.

A rule declares them as inputs, so that a change to one reruns what it decides and nothing else: another strategy's file
is none of this strategy's business, unless it imports it.
"""

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

LIBRARY = Path(__file__).resolve().parent


def modules_behind(roots: Iterable[Path], *within: str) -> list[Path]:
    """The files `roots` and all that they import, directly or not, from parts of the library, sorted.

    `within` names those parts: a folder, or a module's file (`phases.py`). Imports from elsewhere are not followed:
    what another stage does shows in the files that it wrote.
    """
    parts = tuple(LIBRARY / part for part in within)
    found: set[Path] = set()
    waiting = [root.resolve() for root in roots]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += [file for file in _imports(path) if any(file.is_relative_to(part) for part in parts)]
    return sorted(found)


@cache
def _imports(path: Path) -> frozenset[Path]:
    """The files of the library that one file imports, wherever in it; the packages that they lie in included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
    return frozenset(file for name in names for file in _files(name))


def _files(name: str) -> list[Path]:
    """The files that importing a module of the library runs, itself and its packages."""
    package, *steps = name.split(".")
    if package != LIBRARY.name:
        return []
    places = [LIBRARY.joinpath(*steps[: depth + 1]) for depth in range(len(steps))]
    candidates = [file for place in places for file in (place / "__init__.py", place.with_suffix(".py"))]
    return [file for file in candidates if file.is_file()]

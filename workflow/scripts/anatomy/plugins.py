"""Find what a folder of modules offers without importing one of them.

A source, partitioner, strategy, table, figure or observation is one file. What the rest of the study must know of it
before anything runs (its options, the table it reads) stands in literal constants at its top, which are read from the
syntax tree: so a configuration is checked in milliseconds and where neither torch nor DGL is installed.
"""

import ast
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from anatomy.errors import StudyError


@dataclass(frozen=True)
class Plugin:
    """One module of a folder: its name, where it lies, and its literal upper-case constants."""

    name: str
    module: str
    path: Path
    constants: Mapping[str, Any]

    def load(self) -> ModuleType:
        """Import the module, with all that it needs."""
        return importlib.import_module(self.module)


class Plugins(Mapping[str, Plugin]):
    """The modules of one folder by name; asking for an unknown one is a StudyError that lists what there is."""

    def __init__(self, kind: str, package: str, folder: Path) -> None:
        self.kind = kind
        self._plugins = {path.stem: _read(package, path) for path in sorted(folder.glob("[!_]*.py"))}

    def __getitem__(self, name: str) -> Plugin:
        try:
            return self._plugins[name]
        except KeyError:
            raise StudyError(
                f"{self.kind} {name!r} does not exist; there are: {', '.join(self._plugins)}; "
                "choose one of these or add a file of that name"
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self._plugins

    def __iter__(self) -> Iterator[str]:
        return iter(self._plugins)

    def __len__(self) -> int:
        return len(self._plugins)


def _read(package: str, path: Path) -> Plugin:
    constants = {}
    for statement in ast.parse(path.read_text(encoding="utf-8"), filename=str(path)).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.isupper():
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if name.isupper():
                pass
            case _:
                continue
        try:
            constants[name] = ast.literal_eval(value)
        except ValueError:
            continue  # computed when the module is imported: nothing that a configuration depends on
    return Plugin(path.stem, f"{package}.{path.stem}", path, constants)

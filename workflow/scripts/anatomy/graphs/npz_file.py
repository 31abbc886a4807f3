"""Reading `.npz` files of unknown origin: arrays are checked before they are read, and nothing is ever unpickled."""

import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np

from anatomy.errors import StudyError

DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError)
"""What zipfile and numpy raise on files that are cut off, changed, encrypted or not theirs."""


class NpzFile:
    """An open `.npz` file, whose arrays are read one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
        except DAMAGE as error:
            raise StudyError(
                f"{path}: found no readable .npz archive ({error}), expected a whole one; it is cut off or of another "
                "format: fetch it again"
            ) from error
        self.names = [name.removesuffix(".npy") for name in self._archive.namelist() if name.endswith(".npy")]

    def __enter__(self) -> "NpzFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._archive.close()

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and dtype of an array, without reading it.

        Raises StudyError where it is absent, damaged, or larger than what the archive holds of it.
        """
        with self._member(name) as file:
            shape, dtype = _read_header(file)
        size = math.prod(shape) * dtype.itemsize
        stored = self._archive.getinfo(f"{name}.npy").file_size
        if size > stored and not dtype.hasobject:
            raise StudyError(
                f"{self.path}: {name}: found {stored} bytes, expected {size} for {dtype} {list(shape)}; fetch it again"
            )
        return shape, dtype

    def array(self, name: str) -> np.ndarray:
        """Read an array of numbers. Raises StudyError where it is absent, damaged, or holds pickled objects."""
        if self.header(name)[1].hasobject:
            raise StudyError(
                f"{self.path}: {name}: found pickled objects, expected an array of numbers; pickles can run any code "
                "and are never read: store the array as numbers"
            )
        with self._member(name) as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
            # The checksum of a member is compared when its end is reached, which reading the array alone may not do.
            file.read(1)
            return array

    def extract(self, name: str, folder: Path) -> np.ndarray:
        """Unpack an array to `{folder}/{name}.npy` without holding it in memory, and map it read-only."""
        if self.header(name)[1].hasobject:
            self.array(name)
        target = folder / f"{name}.npy"
        with self._member(name) as file, open(target, "wb") as out:
            while piece := file.read(1 << 24):
                out.write(piece)
        try:
            return np.load(target, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise StudyError(f"{self.path}: {name}: found a damaged array ({error}); fetch the file again") from error

    @contextmanager
    def _member(self, name: str) -> Iterator[IO[bytes]]:
        if name not in self.names:
            raise StudyError(
                f"{self.path}: found no array {name!r}, expected it; the file has {', '.join(self.names) or 'none'}"
            )
        try:
            with self._archive.open(f"{name}.npy") as file:
                yield file
        except StudyError:
            raise
        except DAMAGE as error:
            raise StudyError(
                f"{self.path}: {name}: found a damaged array ({error}), expected a whole one; fetch the file again"
            ) from error


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)
    if version not in readers:
        raise ValueError(f"array format {version} is not known")
    shape, _, dtype = readers[version](file)
    return shape, dtype

"""Zip archives of unknown origin.

Nothing is unpacked under the names that an archive chooses: members are read as streams, or copied to a name of ours.
An archive whose members point outside it is refused all the same.
"""

import gzip
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO

from anatomy.errors import StudyError

DAMAGE = (zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, EOFError, struct.error, NotImplementedError, RuntimeError)


def zip_fault(path: Path) -> str | None:
    """What is wrong with a zip file, in words, or None where every member's checksum is right.

    Raises StudyError for an archive that is whole but whose members point outside it: fetching it again would not help.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check_names(path, archive.namelist())
            damaged = archive.testzip()
            return f"a zip archive whose member {damaged} is damaged" if damaged else None
    except DAMAGE as error:
        return f"no whole zip archive ({error})"


def _check_names(path: Path, names: list[str]) -> None:
    for name in names:
        pure = PurePosixPath(name.replace("\\", "/"))
        if pure.is_absolute() or ".." in pure.parts or ":" in name.split("/")[0]:
            raise StudyError(
                f"{path}: found member {name!r}, expected names inside the archive's own folder; do not trust this "
                "archive: take it from another address"
            )


class Archive:
    """An open zip archive, all of whose members lie in one top folder."""

    def __init__(self, path: Path, folder: str) -> None:
        self.path, self.folder = path, folder
        try:
            self._zip = zipfile.ZipFile(path)
        except (*DAMAGE, OSError) as error:
            raise StudyError(
                f"{path}: found no readable zip archive ({error}), expected a whole one; run fetch_source.py again, "
                "or replace it"
            ) from error
        _check_names(path, self._zip.namelist())

    def __enter__(self) -> "Archive":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zip.close()

    def __contains__(self, name: str) -> bool:
        return f"{self.folder}/{name}" in self._zip.NameToInfo

    def place(self, name: str) -> str:
        """A member, for messages."""
        return f"{self.path}: {self.folder}/{name}"

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """A member as a stream.

        Raises StudyError where it is absent or damaged, also where the damage shows only while reading.
        """
        if name not in self:
            raise StudyError(
                f"{self.place(name)}: not found, expected this member; is this the archive of another dataset?"
            )
        try:
            with self._zip.open(f"{self.folder}/{name}") as file:
                yield file
        except DAMAGE as error:
            raise StudyError(
                f"{self.place(name)}: found a damaged member ({error}); run fetch_source.py again"
            ) from error

    def copy(self, name: str, target: Path) -> Path:
        """Unpack one member to a path of ours."""
        with self.open(name) as file, open(target, "wb") as out:
            shutil.copyfileobj(file, out, 1 << 24)
        return target

"""Checkpoints on disk: which are whole, for what they were made, and which attempt at a run may write more.

    checkpoints/
        attempt.json                    the attempt whose checkpoints count, and those that it took over
        epochs-000012.{attempt}/        after 12 epochs
            rank0.pt, rank1.pt, …       written by the ranks, aside and renamed
            checkpoint.json             written last, by rank 0: the SHA-256 of every rank's file

Every start of a run is an attempt with a name of its own. It claims the folder, takes over what is whole, and throws
the rest away. A process of an earlier attempt that is still alive, on a host thought lost, say, writes under its own
attempt's name, which counts no more, and ends when it sees that.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anatomy.errors import StudyError
from anatomy.files import TakenOver, read_json

FOLDER = "checkpoints"
ATTEMPT = "attempt.json"
MANIFEST = "checkpoint.json"
KEPT = 2
"""How many checkpoints are kept: the one before the newest serves where the newest turns out to be damaged."""


class DamagedCheckpoint(ValueError):
    """A rank's file is absent or is not what the manifest describes."""


@dataclass(frozen=True)
class Checkpoint:
    """One whole checkpoint. `epochs`: how many were trained; `parts`: of each rank's file `sha256` and `bytes`."""

    folder: Path
    epochs: int
    parts: list[dict[str, Any]]

    def read_part(self, rank: int) -> bytes:
        """The content of a rank's file. Raises DamagedCheckpoint."""
        path = part_path(self.folder, rank)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DamagedCheckpoint(f"{path}: {error.strerror}") from error
        if self.parts[rank : rank + 1] != [_described(data)]:
            raise DamagedCheckpoint(f"{path}: its {len(data)} bytes are not those that {MANIFEST} describes")
        return data


@dataclass(frozen=True)
class Attempt:
    """The right to write checkpoints under `root`, until another attempt claims it."""

    root: Path
    name: str

    def folder(self, epochs: int) -> Path:
        return self.root / f"epochs-{epochs:06d}.{self.name}"

    def write_part(self, epochs: int, rank: int, data: bytes) -> dict[str, Any]:
        """Write a rank's file of the checkpoint after so many epochs; returns its entry in the manifest.

        Raises OSError, also where the folder was removed: it is never made again by an attempt that lost it.
        """
        folder = self.folder(epochs)
        folder.mkdir(exist_ok=True)
        _write_durably(part_path(folder, rank), data)
        return _described(data)

    def commit(self, epochs: int, made_for: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> None:
        """Make a checkpoint of the files that all ranks have written.

        Raises OSError, and TakenOver where another attempt has begun.
        """
        self.check()
        manifest = {"kind": "checkpoint", "epochs": epochs, "made_for": made_for, "parts": list(parts)}
        _write_durably(self.folder(epochs) / MANIFEST, json.dumps(manifest, indent=2).encode())

    def discard(self, folder: Path) -> None:
        """Remove a checkpoint, whole or not."""
        with contextlib.suppress(OSError):
            (folder / MANIFEST).unlink()
        shutil.rmtree(folder, ignore_errors=True)

    def check(self) -> None:
        """Raise TakenOver unless this is still the run's newest attempt."""
        if _claimed(self.root)[0] != self.name:
            raise TakenOver(
                f"{self.root / ATTEMPT}: does not name this attempt any more; another one has begun, or the folder was "
                "removed, so this one ends without a result"
            )

    def remove(self) -> None:
        """Remove all checkpoints of a run that is complete."""
        shutil.rmtree(self.root, ignore_errors=True)


def claim(out: Path, made_for: Mapping[str, Any]) -> tuple[Attempt, list[Checkpoint]]:
    """Begin a new attempt at the run whose results go to `out`; returns it and the usable checkpoints, newest first.

    `made_for` is all that a checkpoint depends on; one that was made for something else is thrown away, with a message.

    Raises StudyError where the folder cannot be read or written.
    """
    root = out / FOLDER
    attempt = Attempt(root, uuid.uuid4().hex[:12])
    try:
        usable = [checkpoint for checkpoint, other in _whole(root) if _is_made_for(checkpoint, other, made_for)]
        inherited = [checkpoint.folder.name for checkpoint in usable]
        root.mkdir(parents=True, exist_ok=True)
        _write_durably(root / ATTEMPT, json.dumps({"attempt": attempt.name, "inherited": inherited}).encode())
    except OSError as error:
        raise StudyError(
            f"{root}: checkpoints cannot be kept here ({error.strerror}); make room or make the folder writable, or "
            "set training.checkpoint_every to 0"
        ) from error
    for path in root.iterdir():
        if path.is_dir() and path.name not in inherited:
            attempt.discard(path)
    return attempt, usable


def kept_epochs(out: Path) -> int | None:
    """How many epochs of an interrupted run its newest checkpoint holds, by its manifest; None without a checkpoint."""
    return max((checkpoint.epochs for checkpoint, _ in _whole(out / FOLDER)), default=None)


def part_path(folder: Path, rank: int) -> Path:
    """Where a rank's part of a checkpoint lies."""
    return folder / f"rank{rank}.pt"


def _whole(root: Path) -> list[tuple[Checkpoint, dict[str, Any]]]:
    """The checkpoints that have a manifest and belong to the newest attempt, newest first, with their `made_for`."""
    name, inherited = _claimed(root)
    folders = [path for path in root.glob("epochs-*") if path.name in inherited or path.suffix == f".{name}"]
    return sorted(_described_in(folders), key=lambda entry: entry[0].epochs, reverse=True)


def _described_in(folders: Sequence[Path]) -> Iterator[tuple[Checkpoint, dict[str, Any]]]:
    for folder in folders:
        if not (folder / MANIFEST).exists():
            continue  # the attempt ended while it wrote this one
        try:
            manifest = read_json(folder / MANIFEST, "checkpoint")
            yield Checkpoint(folder, manifest["epochs"], manifest["parts"]), manifest["made_for"]
        except (StudyError, KeyError, OSError) as error:
            logging.warning("checkpoint %s is not used: its manifest is damaged (%s)", folder, error)


def _claimed(root: Path) -> tuple[str | None, list[str]]:
    """The newest attempt's name and the folders that it took over; None where there was no attempt yet."""
    try:
        content = json.loads((root / ATTEMPT).read_bytes())
        return content["attempt"], content["inherited"]
    except FileNotFoundError:
        return None, []
    except (ValueError, KeyError, TypeError) as error:
        logging.warning("%s is damaged (%s); no checkpoint is used", root / ATTEMPT, error)
        return None, []


def _is_made_for(checkpoint: Checkpoint, other: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    changed = sorted(key for key in wanted.keys() | other.keys() if wanted.get(key) != other.get(key))
    if changed:
        logging.warning(
            "checkpoint %s is not used: it was made with another %s", checkpoint.folder, " and another ".join(changed)
        )
    return not changed


def _described(data: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def _write_durably(path: Path, data: bytes) -> None:
    """Write a file aside, have the disk confirm it, and rename it; nothing is left where that fails."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise

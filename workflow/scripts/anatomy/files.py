"""Reading and writing the study's files, so that nothing half-written is ever taken for whole.

Whatever writes a directory is an attempt at it, with a folder of its own in there, and writes nowhere else. It
publishes by renaming what lies in its folder, the manifest last. The next attempt, or the study when it gives a job up,
takes the folder away; then every one of these renames fails. So a process that lives on, on a host thought lost, say,
can neither publish late nor touch what a later attempt has published.

Arrays are `.npy`, opened memory-mapped and never unpickled; tables are Parquet; every directory carries one JSON
manifest, which is written last and is the output that a rule declares.
"""

import hashlib
import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from anatomy.errors import StudyError

_EARLIER = ".earlier"
"""In an attempt's folder: the manifest that was there before."""


class TakenOver(StudyError):
    """Another attempt has begun, or the study has given this one up: it must leave nothing behind."""


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write a text file under a temporary name and rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path.parent, path.name)
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def write_json(path: Path, content: Any) -> None:
    """Write JSON that people can read; NaN and infinity are refused, since JSON has neither."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, kind: str | None = None) -> dict[str, Any]:
    """Read a manifest or specification.

    `kind` is what its `kind` key must say (`graph`, `partition`, `run`, …).

    Raises StudyError where the file is absent, is not JSON, or is of another kind.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StudyError(f"{path}: not found; the step that writes it has not finished") from None
    except ValueError as error:
        raise StudyError(
            f"{path}: not valid JSON ({error}); delete it and run the step that writes it again"
        ) from error
    if not isinstance(content, dict):
        raise StudyError(f"{path}: found a JSON {type(content).__name__}, expected an object")
    if kind is not None and content.get("kind") != kind:
        raise StudyError(f"{path}: found kind {content.get('kind')!r}, expected {kind!r}; is this the right folder?")
    return content


@contextmanager
def attempt(out: Path, manifest: str) -> Iterator[Path]:
    """Begin an attempt at `out`, the only one from here on; gives the folder to write into, which goes with the block.

    Several manifests may share `out`, as those of the tables do; attempts at the others go on.

    Raises TakenOver at the end of a block that failed, whatever it failed by, where this attempt was no more the one.
    """
    out.mkdir(parents=True, exist_ok=True)
    stage = _partial(out, manifest)
    stage.mkdir()
    try:
        withdraw_attempts(out, manifest, but=stage)
        yield stage
    except Exception as error:
        if stage.is_dir():
            raise
        raise TakenOver(
            f"{out / manifest}: not written; another attempt at it has begun, or the study has given this one up"
        ) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def set_aside(stage: Path, manifest: str) -> None:
    """Take the manifest that an earlier attempt published away, so that what lies beside it is not taken for whole."""
    # Into the stage, for it must fail where that is gone: the manifest is then a later attempt's.
    with suppress(FileNotFoundError):
        (stage.parent / manifest).replace(stage / _EARLIER)


def publish(stage: Path, manifest: str) -> None:
    """Move an attempt's files to where they belong.

    The old manifest is taken away before anything moves, and the new one moves last: whoever sees the manifest sees
    the whole directory. Files that the attempt did not write stay as they are.

    Raises FileNotFoundError where the manifest was not written, or this attempt is no more the one.
    """
    if not (stage / manifest).is_file():
        raise FileNotFoundError(f"{stage / manifest}: the stage ended without writing its manifest")
    set_aside(stage, manifest)
    written = [path for path in stage.iterdir() if path.name != _EARLIER]
    for path in sorted(written, key=lambda path: path.name == manifest):
        path.replace(stage.parent / path.name)


@contextmanager
def staged(out: Path, manifest: str) -> Iterator[Path]:
    """A folder to write into, whose files move to `out` only when the block ends without an exception."""
    with attempt(out, manifest) as stage:
        yield stage
        publish(stage, manifest)


def withdraw_attempts(out: Path, manifest: str, but: Path | None = None) -> None:
    """From here on none of the attempts at `out`, `but` one, can publish; what killed ones left goes as well."""
    for stage in out.glob(f".{manifest}.partial-*"):
        if stage != but:
            _withdraw(stage)


def withdraw_all_attempts(results: Path) -> None:
    """Withdraw the attempts at all directories below `results`."""
    for stage in results.rglob(".*.partial-*"):
        if stage.is_dir():
            _withdraw(stage)


def _withdraw(stage: Path) -> None:
    # Renamed first, so that all of it is out of its process's reach at once.
    gone = stage.with_name(f"{stage.name}-{uuid.uuid4().hex[:12]}")
    with suppress(OSError):
        stage.rename(gone)
        shutil.rmtree(gone)


def _partial(folder: Path, name: str) -> Path:
    """A name that no other process takes, on whatever host; process ids are the same on several."""
    return folder / f".{name}.partial-{uuid.uuid4().hex[:12]}"


def save_array(folder: Path, name: str, array: np.ndarray) -> dict[str, Any]:
    """Save `array` as `{folder}/{name}.npy` and return what a manifest says about it: dtype, shape, sha256."""
    path = folder / f"{name}.npy"
    np.save(path, array, allow_pickle=False)
    return describe_array(path, array)


def describe_array(path: Path, array: np.ndarray) -> dict[str, Any]:
    """What a manifest says about an array that lies at `path`."""
    return {"dtype": str(array.dtype), "shape": list(array.shape), "sha256": sha256_of(path)}


def open_array(folder: Path, name: str, manifest: Mapping[str, Any]) -> np.ndarray:
    """Memory-map `{folder}/{name}.npy`, read-only, checking its dtype and shape against the manifest's `arrays`.

    Raises StudyError where the array is absent, truncated, or not what the manifest describes.
    """
    path = folder / f"{name}.npy"
    expected = manifest.get("arrays", {}).get(name)
    if expected is None:
        raise StudyError(f"{folder}: the manifest names no array {name!r}; build this folder again")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise StudyError(f"{path}: not found although the manifest names it; build this folder again") from None
    except (ValueError, EOFError) as error:
        raise StudyError(f"{path}: damaged ({error}); build this folder again") from error
    found = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if found != {"dtype": expected["dtype"], "shape": expected["shape"]}:
        raise StudyError(
            f"{path}: found {found['dtype']} {found['shape']}, the manifest says {expected['dtype']} "
            f"{expected['shape']}; build this folder again"
        )
    return array

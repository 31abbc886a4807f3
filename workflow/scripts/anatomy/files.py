"""Reading and writing the study's files, so that nothing half-written is ever taken for whole.

Arrays are `.npy`, opened memory-mapped and never unpickled; tables are Parquet; every directory carries one JSON
manifest, which is written last and is the output that a rule declares.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from anatomy.errors import StudyError


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write a text file under a temporary name and rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
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


def remove_abandoned_stages(out: Path, manifest: str) -> None:
    """Remove what a killed process left of `staged(out, manifest)`.

    Several manifests may share a folder, as those of the tables do; the stages of the others stay.
    """
    for abandoned in out.glob(f".{manifest}.partial-*"):
        shutil.rmtree(abandoned, ignore_errors=True)


@contextmanager
def staged(out: Path, manifest: str) -> Iterator[Path]:
    """A folder to write into, whose files move to `out` only when the block ends without an exception.

    The old `manifest` of `out` is removed before anything moves, and the new one moves last: whoever sees the
    manifest sees the whole directory. Files in `out` that the block did not write stay as they are.
    """
    out.mkdir(parents=True, exist_ok=True)
    remove_abandoned_stages(out, manifest)
    stage = out / f".{manifest}.partial-{os.getpid()}"
    stage.mkdir()
    try:
        yield stage
        if not (stage / manifest).is_file():
            raise FileNotFoundError(f"{stage / manifest}: the stage ended without writing its manifest")
        (out / manifest).unlink(missing_ok=True)
        for path in sorted(stage.iterdir(), key=lambda path: path.name == manifest):
            path.replace(out / path.name)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


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

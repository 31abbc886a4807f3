"""Options of the sources that read a file: a path, or an address with its SHA-256."""

from pathlib import Path
from typing import Any

from anatomy.errors import StudyError
from anatomy.files import sha256_of
from anatomy.graphs.options import Download, Options

_SHA256 = {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}


def file_options(prefix: str, what: str) -> dict[str, dict[str, Any]]:
    """Options `{prefix}path`, `{prefix}url` and `{prefix}sha256` for one file."""
    return {
        f"{prefix}path": {"type": "string", "minLength": 1, "description": f"local file of {what}"},
        f"{prefix}url": {
            "type": "string",
            "pattern": "^(https?://|file:).+",
            "description": f"address of {what}, instead of a path; needs {prefix}sha256",
        },
        f"{prefix}sha256": _SHA256
        | {"description": f"SHA-256 of {what}; optional for a path, where it is checked as well"},
    }


def check_file_options(options: Options, prefix: str = "", required: bool = True) -> None:
    """Raise StudyError unless there is a path, or an address with its SHA-256 (or nothing, where not required)."""
    path, url, sha256 = (f"{prefix}{key}" for key in ("path", "url", "sha256"))
    if path in options and url in options:
        raise StudyError(f"{path}, {url}: found both, expected one of them; remove the other")
    if url in options and sha256 not in options:
        raise StudyError(
            f"{sha256}: missing beside {url}; a file from an address needs its SHA-256 (sha256sum FILE): add it"
        )
    if required and path not in options and url not in options:
        raise StudyError(f"{path}: missing; give {path}, or {url} and {sha256}")


def file_download(options: Options, prefix: str = "", zipped: bool = False) -> list[Download]:
    """What has to be fetched for one file: nothing where the options give a path."""
    if f"{prefix}url" not in options or f"{prefix}path" in options:
        return []
    return [Download(f"{prefix}path", f"{prefix}url", options[f"{prefix}url"], options.get(f"{prefix}sha256"), zipped)]


def given_path(options: Options, prefix: str = "", option: str = "path", checksum: bool = False) -> Path:
    """The file that the option `{prefix}{option}` names; with `checksum`, its SHA-256 is compared.

    Raises StudyError where the file is absent, empty, another one, or still to be fetched.
    """
    key = f"{prefix}{option}"
    if key not in options:
        raise StudyError(
            f"{key}: the file is not fetched yet; run fetch_source.py with the same options, and give its folder as "
            "--fetched"
        )
    path = Path(options[key])
    if not path.is_file():
        raise StudyError(f"{path}: not found, although {key} names it; correct the path")
    if path.stat().st_size == 0:
        raise StudyError(f"{path}: found an empty file, expected a graph's; fetch or write it again")
    expected = options.get(f"{prefix}sha256")
    if checksum and expected is not None and (found := sha256_of(path)) != expected.lower():
        raise StudyError(
            f"{path}: found SHA-256 {found}, expected {expected.lower()} ({prefix}sha256); the file is damaged or "
            "another version: fetch it again, or correct the SHA-256"
        )
    return path


def checked_path(options: Options, prefix: str = "", option: str = "path") -> Path:
    """As `given_path`, with the SHA-256 compared."""
    return given_path(options, prefix, option, checksum=True)

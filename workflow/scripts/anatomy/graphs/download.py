"""Fetching a file, mostly over HTTP, so that it arrives whole, or fails in one sentence.

What has arrived is kept in a partial file, and continued from there: after a cut, a stall, an error of the server, or
by the next call. Nothing is ever asked on the terminal, no wait is without end, and what arrives is inspected before
it gets its name.
"""

import fcntl
import http.client
import json
import logging
import os
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from anatomy.errors import StudyError
from anatomy.files import sha256_of
from anatomy.graphs.patience import Pace, PassingError, Patience

log = logging.getLogger(__name__)

PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504}
"""Answers of a server that may be another one soon."""
PIECE_BYTES = 1 << 20
MAX_FAULTY_FILES = 3
"""How often a file may arrive whole but wrong before it is given up."""

Inspect = Callable[[Path], str | None]


def download(
    url: str, target: Path, sha256: str | None = None, inspect: Inspect | None = None, patience: Patience | None = None
) -> Path:
    """Fetch `url` to the file `target`, unless it lies there already, whole.

    `inspect` says in words what is wrong with a file, or None. A file of an earlier try that is empty, an HTML page,
    of another SHA-256, or at fault by `inspect` is fetched again.

    Raises StudyError where the address does not exist, the disk is full, another process fetches the same file, or
    patience ends.
    """
    patience = patience or Patience()
    if not url.startswith(("http://", "https://", "file:")):
        raise StudyError(f"{url}: found an address of another kind, expected http://, https:// or file:; change it")
    if target.exists():
        fault = _fault(target, sha256, inspect)
        if fault is None:
            log.info("fetch %s: already there, whole", target)
            return target
        log.info("fetch %s: found %s from an earlier try; fetching it again", target, fault)
        target.unlink()
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    with _locked(partial) as file:
        if url.startswith("file:"):
            _copy_local(url, partial, sha256, inspect)
        else:
            _persist(_Partial(url, partial, file, patience), sha256, inspect)
        partial.replace(target)
    _facts(partial).unlink(missing_ok=True)
    log.info("fetch %s: done, %.1f MB", target, target.stat().st_size / 1e6)
    return target


def _copy_local(url: str, partial: Path, sha256: str | None, inspect: Inspect | None) -> None:
    """Copy what a `file:` address names, as from a mirror on a shared disk. Raises StudyError where it is not whole."""
    path = Path(urllib.request.url2pathname(urllib.parse.urlsplit(url).path))
    if not path.is_file():
        raise StudyError(f"{url}: found no file {path}; correct the address")
    shutil.copyfile(path, partial)
    if (fault := _fault(partial, sha256, inspect)) is not None:
        partial.unlink()
        raise StudyError(f"{url}: found {fault}, expected the whole file; put it there again or correct the address")


def _persist(partial: "_Partial", sha256: str | None, inspect: Inspect | None) -> None:
    """Try until the partial file is whole and faultless. Raises StudyError when patience ends."""
    patience = partial.patience
    idle, faulty, furthest = 0, 0, partial.size()
    tries = 0
    while True:
        tries += 1
        wait_s = 0.0
        try:
            partial.receive()
            problem = _fault(partial.path, sha256, inspect)
            if problem is None:
                return
            problem = f"the server delivered {problem}"
            faulty += 1
            partial.restart()
        except PassingError as error:
            problem, wait_s = str(error), error.wait_s
        idle = 0 if partial.size() > furthest else idle + 1
        furthest = max(furthest, partial.size())
        if idle >= patience.attempts or faulty >= MAX_FAULTY_FILES or tries >= 10 * patience.attempts:
            break
        wait_s = min(max(wait_s, patience.backoff_s * 2 ** max(0, idle - 1)), patience.max_backoff_s)
        log.info("fetch %s: %s; trying again in %.1f s", partial.url, problem, wait_s)
        time.sleep(wait_s)
    raise StudyError(
        f"{partial.url}: {problem}; given up after {tries} tries, expected a whole file; check the network and the "
        f"address, use a mirror or a local file, or call again to continue ({partial.size()} bytes are kept in "
        f"{partial.path})"
    )


@dataclass
class _Partial:
    """A file that is arriving. `file` is open for reading and writing at `path`."""

    url: str
    path: Path
    file: BinaryIO
    patience: Patience

    def size(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    def restart(self) -> None:
        """Forget what has arrived."""
        self.file.truncate(0)
        _facts(self.path).unlink(missing_ok=True)

    def receive(self) -> None:
        """Continue to the end of the file.

        Raises PassingError where that does not work for now, StudyError where it never will.
        """
        known = self._known()
        if known is None:
            self.restart()
        elif known["total"] is not None and self.size() == known["total"]:
            return
        try:
            with self._open(known) as response:
                total = self._position(response)
                self._copy(response, total)
        except urllib.error.HTTPError as error:
            self._refused(error)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise PassingError(f"no connection, or a broken one ({reason or type(error).__name__})") from error

    def _known(self) -> dict[str, str | int | None] | None:
        """What is known of the file whose beginning has arrived; None where nothing can be continued."""
        try:
            known = json.loads(_facts(self.path).read_text())
        except (OSError, ValueError):
            return None
        usable = isinstance(known, dict) and known.get("url") == self.url and self.size() > 0
        return known if usable and (known["total"] is None or self.size() <= known["total"]) else None

    def _open(self, known: dict[str, str | int | None] | None) -> http.client.HTTPResponse:
        headers = {"User-Agent": "gnn-training-anatomy", "Accept-Encoding": "identity"}
        if known is not None:
            headers["Range"] = f"bytes={self.size()}-"
            if known["validator"]:
                # If the file has changed meanwhile the server sends all of it, instead of a piece that does not fit.
                headers["If-Range"] = str(known["validator"])
        return urllib.request.urlopen(
            urllib.request.Request(self.url, headers=headers), timeout=self.patience.timeout_s
        )

    def _position(self, response: http.client.HTTPResponse) -> int | None:
        """Get ready to append what the response brings, and return the size of the whole file, if stated."""
        size = self.size()
        if response.status == 206:
            span, _, total_text = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
            if span.partition("-")[0] != str(size):
                self.restart()
                raise PassingError(f"the server continued at {span!r} instead of byte {size}")
            total = int(total_text) if total_text.isdigit() else None
            log.info("fetch %s: continuing at %.1f MB", self.url, size / 1e6)
        else:
            self.file.truncate(0)
            length = response.headers.get("Content-Length", "")
            total, size = int(length) if length.isdigit() else None, 0
        etag = response.headers.get("ETag", "")
        validator = etag if etag.startswith('"') else response.headers.get("Last-Modified")
        _facts(self.path).write_text(json.dumps({"url": self.url, "total": total, "validator": validator}))
        self._require_space((total or 0) - size)
        return total

    def _require_space(self, num_bytes: int) -> None:
        free = shutil.disk_usage(self.path.parent).free
        if free < num_bytes:
            raise StudyError(
                f"{self.path.parent}: found {free / 1e6:.0f} MB of free disk space, expected {num_bytes / 1e6:.0f} MB "
                f"for {self.url}; make room"
            )

    def _copy(self, response: http.client.HTTPResponse, total: int | None) -> None:
        """Append the response's body. Raises PassingError where it ends early or is too slow."""
        self.file.seek(0, os.SEEK_END)
        pace = Pace(self.url, self.file.tell(), total, self.patience)
        while piece := response.read1(PIECE_BYTES):
            self._write(piece)
            pace.add(len(piece))
        if total is not None and self.file.tell() != total:
            raise PassingError(f"the connection ended at {self.file.tell()} of {total} bytes")

    def _write(self, piece: bytes) -> None:
        try:
            self.file.write(piece)
            self.file.flush()
        except OSError as error:
            raise StudyError(
                f"{self.path}: cannot be written ({error.strerror}); make room or correct the rights"
            ) from error

    def _refused(self, error: urllib.error.HTTPError) -> None:
        """Raise what an error status means."""
        if error.code == 416:
            self.restart()
            raise PassingError("the server cannot continue at the end of what has arrived (status 416)") from error
        if error.code in PASSING_STATUS:
            wait = error.headers.get("Retry-After", "")
            raise PassingError(
                f"the server answered {error.code} {error.reason}", float(wait) if wait.isdigit() else 0
            ) from error
        raise StudyError(
            f"{self.url}: the server answered {error.code} {error.reason}, expected the file; correct the address, or "
            "use a mirror or a local file"
        ) from error


def _fault(path: Path, sha256: str | None, inspect: Inspect | None) -> str | None:
    """What is wrong with a file, in words, or None."""
    if path.stat().st_size == 0:
        return "an empty file"
    with open(path, "rb") as file:
        start = file.read(512).lstrip().lower()
    page = start.startswith((b"<!doctype html", b"<html", b"<head", b"<body"))
    if page:
        return f"an HTML page ({start[:40].decode('ascii', 'replace')!r} …) instead of the file"
    if sha256 is not None and (found := sha256_of(path)) != sha256.lower():
        return f"a file with SHA-256 {found} instead of {sha256.lower()}"
    return inspect(path) if inspect is not None else None


def _facts(partial: Path) -> Path:
    """Where it is noted what a partial file is a part of."""
    return partial.with_name(f"{partial.name}.json")


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """Open a file to be continued, for this process alone. Raises StudyError where another process has it."""
    with open(path, "a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StudyError(
                f"{path}: another process is fetching this file; wait for it to end, then call again"
            ) from None
        except OSError as error:
            log.info("fetch %s: this file system has no locks (%s); going on without", path, error.strerror)
        yield file

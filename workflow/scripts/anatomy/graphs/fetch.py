"""Fetching what a source names by its address, apart from building, so that building needs no network."""

import logging
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from anatomy.errors import StudyError
from anatomy.files import read_json, sha256_of, write_json
from anatomy.graphs.archives import zip_fault
from anatomy.graphs.download import Patience, download
from anatomy.graphs.options import Download
from anatomy.graphs.sources import SOURCES, complete_options

log = logging.getLogger(__name__)

MANIFEST = "source.json"


def fetch_source(
    options: Mapping[str, Any], out: Path, patience: Patience | None = None, where: str = "graph options"
) -> dict[str, Any]:
    """Fetch the files that a graph's options name by address into the folder `out`, and return what `source.json` says.

    Files that lie there already, whole, are not fetched again. A source without addresses gets a `source.json` without
    files.

    Raises StudyError where an address does not deliver.
    """
    options = complete_options(options, where)
    (out / MANIFEST).unlink(missing_ok=True)
    files = {}
    for wanted in SOURCES[options["source"]].downloads(options):
        inspect = zip_fault if wanted.zipped else None
        path = download(wanted.url, out / _file_name(wanted), wanted.sha256, inspect, patience)
        files[wanted.option] = {
            "file": path.name,
            "url": wanted.url,
            "bytes": path.stat().st_size,
            "sha256": sha256_of(path),
        }
    manifest = {"kind": "source", "source": options, "files": files}
    write_json(out / MANIFEST, manifest)
    log.info("fetched %d file(s) to %s", len(files), out)
    return manifest


def with_fetched(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The options with the paths of the files that `fetch_source` put into `folder`, in place of their addresses.

    Raises StudyError where `folder` was fetched for other addresses, or a file is absent or of another size.
    """
    options = complete_options(options)
    files = read_json(folder / MANIFEST, kind="source")["files"]
    local = dict(options)
    for wanted in SOURCES[options["source"]].downloads(options):
        entry = files.get(wanted.option)
        if entry is None or entry["url"] != wanted.url:
            found = "nothing" if entry is None else entry["url"]
            raise StudyError(
                f"{folder / MANIFEST}: found {found} fetched, expected {wanted.url}; run fetch_source.py again"
            )
        path = folder / entry["file"]
        size = path.stat().st_size if path.is_file() else -1
        if size != entry["bytes"]:
            raise StudyError(
                f"{path}: found {'no file' if size < 0 else f'{size} bytes'}, expected {entry['bytes']} bytes; run "
                "fetch_source.py again"
            )
        local[wanted.option] = str(path)
        local.pop(wanted.address_option, None)
    return local


def _file_name(wanted: Download) -> str:
    """A file name of ours, from the option and the last part of the address."""
    last = re.sub(r"[^A-Za-z0-9._-]", "_", posixpath.basename(urlsplit(wanted.url).path)).lstrip(".")
    return f"{wanted.option}-{last or 'file'}"

"""From a trace file's bytes to its JSON, exact to the nanosecond, with errors that say what is wrong with the file."""

import gzip
import json
import re
import zlib
from pathlib import Path
from typing import Any

import orjson

from anatomy.errors import StudyError

GZIP_MAGIC = b"\x1f\x8b"

TIME_STAMP = re.compile(rb'("ts"\s*:\s*)(-?\d+\.\d+)(?=[\s,}])')
"""Time stamps with a fraction. In a string of the trace the quote before the colon would be escaped."""

BARE_WORD = re.compile(rb"(:\s*|,\s*|\[\s*)[-+]?(?:[nN]a[nN]|[iI]nf(?:inity)?)\b")
ESCAPE = re.compile(rb"\\(.)", re.DOTALL)


def load_json(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Read a trace file, gzipped where its name ends in `.gz`.

    Returns the JSON object, in which fractional time stamps (`ts`) are strings, since float64 can't hold the
    nanoseconds of microseconds since 1970; and notes on what had to be repaired.

    Raises StudyError where the file is truncated, corrupt, empty, not what its name says, or not a trace.
    """
    content, notes = _decode(path, _read_bytes(path))
    if isinstance(content, list):
        content = {"traceEvents": content}
    if not isinstance(content, dict) or not isinstance(content.get("traceEvents"), list):
        raise StudyError(
            f"{path}: JSON without a list 'traceEvents'; expected a Kineto trace as torch.profiler exports it; "
            "move other files out of the folder of traces"
        )
    return content, notes


def _read_bytes(path: Path) -> bytes:
    raw = path.read_bytes()
    if not raw:
        raise StudyError(f"{path}: the file is empty; expected a Kineto trace; record or copy it again")
    zipped = raw.startswith(GZIP_MAGIC)
    if zipped != (path.suffix == ".gz"):
        found, name = ("gzip", ".json.gz") if zipped else ("no gzip", ".json")
        raise StudyError(f"{path}: found {found} where the name says otherwise; rename the file to end in {name}")
    if not zipped:
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, OSError, zlib.error) as error:
        raise StudyError(f"{path}: damaged or truncated gzip ({error}); record or copy the trace again") from error


def _decode(path: Path, raw: bytes) -> tuple[Any, list[str]]:
    if raw.lstrip()[:1] == b"<":
        raise StudyError(f"{path}: found HTML or XML, expected JSON; was a web page saved instead of the trace?")
    try:
        return orjson.loads(TIME_STAMP.sub(rb'\1"\2"', raw)), []
    except orjson.JSONDecodeError:
        pass
    text, notes = _repair(raw)
    try:
        return json.loads(TIME_STAMP.sub(rb'\1"\2"', text).decode(), strict=False), notes
    except ValueError as error:
        place = getattr(error, "pos", 0)
        ended = text.rstrip()[-1:] not in (b"}", b"]")
        wrong = (
            "truncated JSON: the file ends within a value" if ended else f"not valid JSON near byte {place}: {error}"
        )
        raise StudyError(f"{path}: {wrong}; record or copy the trace again") from error


def _repair(raw: bytes) -> tuple[bytes, list[str]]:
    """Replace what strict JSON forbids but profilers have written. Control characters are left to the lenient
    parser."""
    notes = []
    text = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        text.decode()
    except UnicodeDecodeError:
        replaced = text.decode(errors="replace")
        notes.append(f"{replaced.count(chr(0xFFFD))} bytes that are not UTF-8 were replaced")
        text = replaced.encode()
    text, num_words = BARE_WORD.subn(rb"\1null", text)
    if num_words:
        notes.append(f"{num_words} NaN or infinite values were read as missing")
    text = ESCAPE.sub(lambda found: found[0] if found[1] in b'"\\/bfnrtu' else b"\\\\" + found[1], text)
    return text, notes

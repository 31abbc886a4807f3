"""From a trace file to its text, block by block, with errors that say what is wrong with the file."""

from collections.abc import Iterator
from pathlib import Path

from isal import isal_zlib

GZIP_MAGIC = b"\x1f\x8b"
GZIP_FORMAT = 31
"""zlib's number for a window of 32 KiB and a gzip header."""

AGAIN = "record or copy the trace again"


class DamagedTraceError(Exception):
    """What is wrong in a trace file and what to do, in words that go on after the file's name."""


def read_text(path: Path, block_bytes: int) -> Iterator[bytes]:
    """The bytes of a trace's text in blocks of at most `block_bytes`, unzipped where the file is gzipped.

    Raises DamagedTraceError where the file is empty, not what its name says, or where its gzip is truncated or
    damaged, in which case all blocks before the place have been handed out.
    """
    with open(path, "rb", buffering=0) as file:
        magic = file.read(len(GZIP_MAGIC))
        if not magic:
            raise DamagedTraceError("the file is empty, expected a Kineto trace; record or copy it again")
        zipped = magic == GZIP_MAGIC
        if zipped != (path.suffix == ".gz"):
            found, name = ("gzip", ".json.gz") if zipped else ("no gzip", ".json")
            raise DamagedTraceError(f"found {found} where the name says otherwise; rename the file to end in {name}")
        file.seek(0)
        raw = iter(lambda: file.read(block_bytes), b"")
        yield from _unzip(raw, block_bytes) if zipped else raw


def _unzip(raw: Iterator[bytes], block_bytes: int) -> Iterator[bytes]:
    """The text of all members of a gzip file, each checked against its length and checksum."""
    # Unlike a file-like reader, a decompress object hands out what precedes the end of a truncated file, and says
    # whether it has seen the end.
    member = isal_zlib.decompressobj(GZIP_FORMAT)
    num_read, rest = 0, b""
    try:
        for block in raw:
            num_read += len(block)
            rest += block
            while rest and not (member.eof and not rest.strip(b"\0")):
                if member.eof:
                    member = isal_zlib.decompressobj(GZIP_FORMAT)
                yield from _inflate(member, rest, block_bytes)
                rest = member.unused_data
    except isal_zlib.error as error:
        raise DamagedTraceError(f"damaged gzip within its first {num_read} bytes ({error}); {AGAIN}") from error
    if not member.eof:
        raise DamagedTraceError(f"truncated gzip: it does not end by the end of the file, byte {num_read}; {AGAIN}")


def _inflate(member: "isal_zlib.decompressobj", data: bytes, block_bytes: int) -> Iterator[bytes]:
    """All that a member makes of `data`; what lies behind its end is then in `unused_data`."""
    while True:
        block = member.decompress(data, block_bytes)
        if block:
            yield block
        data = member.unconsumed_tail
        # A full block may leave text within the decompress object.
        if member.eof or not (data or len(block) == block_bytes):
            return

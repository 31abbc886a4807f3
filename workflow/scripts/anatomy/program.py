"""What all command-line programs share: how they say what they do, and how they end."""

import argparse
import logging
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from anatomy import session
from anatomy.errors import StudyError


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults, and keeps the line breaks of a module's docstring."""


def parser_for(docstring: str | None) -> argparse.ArgumentParser:
    """An argument parser whose description is the script's docstring."""
    return argparse.ArgumentParser(description=docstring, formatter_class=_Formatter)


def run_program(main: Callable[[], None]) -> None:
    """Run a script's `main`; a StudyError becomes one message on stderr and exit status 1, without a traceback."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    session.watch_owner()
    try:
        main()
    except StudyError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None


@contextmanager
def measured(manifest: dict[str, Any]) -> Iterator[None]:
    """Add `seconds` and `peak_memory_bytes` (of this process, from its start) of the block to a manifest."""
    start = time.perf_counter()
    yield
    manifest["seconds"] = round(time.perf_counter() - start, 3)
    manifest["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of installed packages, for a manifest."""
    from importlib import metadata  # slow to import

    return {"python": platform.python_version(), **{package: metadata.version(package) for package in packages}}

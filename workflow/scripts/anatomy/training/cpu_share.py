"""A share of a processor for one process: a control group of version 1 or 2 with a quota, where the machine allows it.

The group is made inside the process's own one or one of those around it: the first in which there can be one. In
version 2 a group that holds processes can have none inside that limits processors, and a user may change only what was
delegated to them.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "anatomy-"
_LIMITS = {1: "cpu.cfs_quota_us", 2: "cpu.max"}


class NoControlGroup(Exception):
    """No group that limits processor time can be made here; the message says where it was tried."""


def can_limit() -> bool:
    """Whether a process of this user can be given a share of a processor here; tried out, by one that does nothing."""
    try:
        with _group(processors=1, places=own_places()) as group:
            join = f"echo $$ > {group / 'cgroup.procs'}"
            return subprocess.run(["sh", "-c", join], capture_output=True, check=False).returncode == 0
    except NoControlGroup:
        return False


@contextmanager
def limited(processors: float) -> Iterator[None]:
    """Give this process, all its threads together, the time of so many processors. Raises NoControlGroup."""
    places = own_places()
    with _group(processors, places) as group:
        _move_here(group)
        try:
            yield
        finally:
            _move_here(places[0][0])


def own_places() -> list[tuple[Path, int]]:
    """Folders of this process's control group for processor time and of those around it, with their version."""
    paths = dict(_paths_by_controller(Path("/proc/self/cgroup").read_text()))
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, mount = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        version = {"cgroup": 1, "cgroup2": 2}.get(kind)
        if version is None or (version == 1) != ("cpu" in paths) or (version == 1 and "cpu" not in options.split(",")):
            continue
        path = os.path.relpath(paths.get("cpu" if version == 1 else "", "/"), root)
        folder = Path(mount) / ("" if path.startswith("..") else path)
        around = [place for place in (folder, *folder.parents) if place.is_relative_to(mount)]
        return [(place, version) for place in around]
    return []


@contextmanager
def _group(processors: float, places: list[tuple[Path, int]]) -> Iterator[Path]:
    """A group of this process's number, empty when it ends. Raises NoControlGroup."""
    for place, version in places:
        group = place / f"{PREFIX}{os.getpid()}"
        try:
            _remove_abandoned(place)
            group.mkdir()
            try:
                _limit(group, version, processors)
            except OSError:
                group.rmdir()
                raise
        except OSError:
            continue
        try:
            yield group
        finally:
            with suppress(OSError):
                group.rmdir()
        return
    raise NoControlGroup(f"tried in: {', '.join(str(place) for place, _ in places) or 'none is mounted'}")


def _limit(group: Path, version: int, processors: float) -> None:
    """A short period makes a slow processor rather than one that stops and goes; the kernel wants 1 ms of quota."""
    period_us = 10_000 if processors >= 0.1 else 100_000
    quota_us = round(processors * period_us)
    if version == 1:
        (group / "cpu.cfs_period_us").write_text(str(period_us))
    (group / _LIMITS[version]).write_text(str(quota_us) if version == 1 else f"{quota_us} {period_us}")


def _remove_abandoned(place: Path) -> None:
    """Groups of processes that were killed."""
    for group in place.glob(f"{PREFIX}*"):
        if not Path(f"/proc/{group.name.removeprefix(PREFIX)}").exists():
            with suppress(OSError):
                group.rmdir()


def _move_here(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))


def _paths_by_controller(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        yield from ((name, path) for name in controllers.split(","))

"""Where clusters keep their files, which are alive, and the removal of what a dead one left."""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from emulation.configuration import Cluster
from emulation.cpu import Groups
from emulation.errors import EmulationError
from emulation.network import wait_until_gone

# Below a folder that only root may write, as munge demands of the place of its socket.
CLUSTERS = Path("/run/emulated-clusters")
DESCRIPTION = "cluster.json"
CONTROL = "control"


def folder_of(name: str) -> Path:
    return CLUSTERS / name


def all_folders() -> list[Path]:
    return sorted(path for path in CLUSTERS.glob("*") if path.is_dir())


@contextlib.contextmanager
def lock_clusters() -> Iterator[None]:
    """Hold the folder of all clusters, made if need be and removed if left empty, while one is added or removed."""
    while True:
        CLUSTERS.mkdir(mode=0o755, exist_ok=True)
        descriptor = lock(CLUSTERS, fcntl.LOCK_EX)
        if descriptor is not None:
            break
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            CLUSTERS.rmdir()
        os.close(descriptor)


def lock(folder: Path, how: int) -> int | None:
    """Lock a folder for as long as this process lives; None if another's lock forbids it, or the folder is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, how)
        if os.fstat(descriptor).st_ino == folder.stat().st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def is_alive(folder: Path) -> bool:
    """Whether a supervisor holds the cluster; the kernel lets go of the lock when it dies, however that happens."""
    descriptor = lock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None and folder.exists()


def describe(folder: Path, cluster: Cluster) -> None:
    (folder / DESCRIPTION).write_text(json.dumps(cluster.as_json() | {"supervisor": os.getpid()}, indent=1) + "\n")


def description(folder: Path) -> dict:
    """What `describe` wrote; empty where the cluster died before."""
    try:
        return json.loads((folder / DESCRIPTION).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def clean(folder: Path) -> None:
    """Remove what a cluster leaves when its processes are gone: groups and files. Its links go by themselves."""
    index = description(folder).get("index")
    if index is not None:
        outside = f"emulated{index}"
        subprocess.run(["ip", "link", "delete", outside], capture_output=True)
        wait_until_gone(outside)
    Groups(folder.name).remove()
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise EmulationError(f"{folder}: cannot be removed")


def clean_dead() -> list[str]:
    """Remove what clusters left whose supervisor was killed; returns their names. The caller holds `lock_clusters`."""
    cleaned = []
    for folder in all_folders():
        descriptor = lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if descriptor is not None:
            try:
                clean(folder)
                cleaned.append(folder.name)
            finally:
                os.close(descriptor)
    return cleaned

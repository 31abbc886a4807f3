"""Slow hosts: a control group per host that limits its processor time, where the machine allows it."""

import contextlib
import time
from pathlib import Path

from emulation.errors import EmulationError

REMOVAL_TIMEOUT_S = 10


class Groups:
    """The control groups of one cluster, `emulated-{name}/{host}`, of version 1 or 2."""

    def __init__(self, name: str) -> None:
        self._mount, self._version = _find_controller()
        self._folder = self._mount / f"emulated-{name}" if self._mount else None

    def make(self, host: str) -> Path | None:
        """A group without a limit for a host's processes; None where there can be none."""
        if self._folder is None:
            return None
        try:
            (self._folder / host).mkdir(parents=True, exist_ok=True)
            if self._version == 2:
                (self._folder / "cgroup.subtree_control").write_text("+cpu")
            self.limit(host, None)
        except OSError:
            self.remove()
            self._folder = None
            return None
        return self._folder / host

    def limit(self, host: str, share: float | None) -> None:
        """Give all processes of a host together the time of `share` processors; None for all they can take."""
        if self._folder is None:
            if share is None:
                return
            raise EmulationError("this machine has no control group for processor time that root may write")
        # A short period makes a slow processor rather than one that stops and goes; the kernel wants 1 ms of quota.
        period_us = 10_000 if share is None or share >= 0.1 else 100_000
        quota_us = None if share is None else round(share * period_us)
        if self._version == 2:
            (self._folder / host / "cpu.max").write_text(f"{quota_us or 'max'} {period_us}")
        else:
            (self._folder / host / "cpu.cfs_period_us").write_text(str(period_us))
            (self._folder / host / "cpu.cfs_quota_us").write_text(str(quota_us or -1))

    def remove(self) -> None:
        """Remove all groups; waits for the processes in them to be gone."""
        if self._folder is None or not self._folder.is_dir():
            return
        for group in [*(path for path in self._folder.iterdir() if path.is_dir()), self._folder]:
            _remove(group)


def _remove(group: Path) -> None:
    end = time.monotonic() + REMOVAL_TIMEOUT_S
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > end:
                raise EmulationError(f"{group}: cannot be removed ({error.strerror})") from error
            time.sleep(0.01)
        else:
            return


def _find_controller() -> tuple[Path | None, int]:
    """Where the cpu controller is mounted and its version; version 1 wins, as it then has the controller."""
    unified = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        place, (kind, _, options) = Path(before.split()[4]), after.split(" ", 2)
        if kind == "cgroup" and "cpu" in options.split(","):
            return place, 1
        if kind == "cgroup2" and "cpu" in (place / "cgroup.controllers").read_text().split():
            unified = place
    if unified is not None:
        with contextlib.suppress(OSError):
            (unified / "cgroup.subtree_control").write_text("+cpu")
            return unified, 2
    return None, 0

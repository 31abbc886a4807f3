"""How long a download waits, how often it tries, and how it tells how far it is."""

import logging
import time
from dataclasses import dataclass

log = logging.getLogger(__name__)

REPORT_EVERY_S = 5.0


@dataclass(frozen=True)
class Patience:
    """How long to wait and how often to try.

    `timeout_s` is the longest silence of a server, and the time in which it must deliver `timeout_s *
    min_bytes_per_s`. After `attempts` tries in a row without a further byte, or ten times as many in all, the download
    fails. Waits between tries double from `backoff_s` to `max_backoff_s`.
    """

    timeout_s: float = 60
    min_bytes_per_s: float = 1000
    attempts: int = 6
    backoff_s: float = 2
    max_backoff_s: float = 60


class PassingError(Exception):
    """A failure that another try may not meet; `wait_s` is how long the server asks to wait."""

    def __init__(self, message: str, wait_s: float = 0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Pace:
    """Watches how fast a download goes, and tells."""

    def __init__(self, url: str, start: int, total: int | None, patience: Patience) -> None:
        self.url, self.total, self.patience = url, total, patience
        self.arrived = self.window_arrived = self.reported_arrived = start
        self.window_s = self.reported_s = time.monotonic()

    def add(self, num_bytes: int) -> None:
        """Count what arrived. Raises PassingError where a whole time-out passed with less than the least pace."""
        self.arrived += num_bytes
        now_s = time.monotonic()
        elapsed_s = now_s - self.window_s
        if elapsed_s >= self.patience.timeout_s:
            if self.arrived - self.window_arrived < self.patience.min_bytes_per_s * elapsed_s:
                raise PassingError(f"only {self.arrived - self.window_arrived} bytes arrived in {elapsed_s:.0f} s")
            self.window_s, self.window_arrived = now_s, self.arrived
        if now_s - self.reported_s >= REPORT_EVERY_S:
            self._report(now_s)

    def _report(self, now_s: float) -> None:
        speed = (self.arrived - self.reported_arrived) / (now_s - self.reported_s)
        whole = ""
        if self.total:
            left_s = (self.total - self.arrived) / max(speed, 1)
            whole = f" of {self.total / 1e6:.1f} MB ({self.arrived / self.total:.0%}), about {left_s:.0f} s left"
        log.info("fetch %s: %.1f MB%s, %.2f MB/s", self.url, self.arrived / 1e6, whole, speed / 1e6)
        self.reported_s, self.reported_arrived = now_s, self.arrived

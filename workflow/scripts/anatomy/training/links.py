"""The links between the hosts of a run, shaped as long as it lasts by the command that the cluster's settings name."""

import logging
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from anatomy.errors import StudyError
from anatomy.site import EXAMPLE, Site
from anatomy.training.specification import RunSpecification

UNSHAPED = "unshaped"
_TIMEOUT_S = 60


@contextmanager
def links_set(specification: RunSpecification, hosts: Sequence[str], site: Site | None) -> Iterator[None]:
    """Give the hosts' links the run's bandwidth, and lift it afterwards.

    Where links can be set, they are for a run without a bandwidth as well: a run that was killed may have left one.

    Raises StudyError where the run wants a bandwidth that nothing here can set, or the command fails.
    """
    if site is None or site.set_link is None:
        if specification.link_mbit is not None:
            raise StudyError(
                f"{specification.path}: link_mbit: found {specification.link_mbit}, but nothing says how links are set "
                f"here; name a command by `set_link` in {site.path if site else 'the cluster settings'}, see {EXAMPLE}"
            )
        yield
        return
    rate = UNSHAPED if specification.link_mbit is None else str(specification.link_mbit)
    try:
        for host in hosts:
            _set_link(site, host, rate)
        yield
    finally:
        for host in hosts if rate != UNSHAPED else ():
            try:
                _set_link(site, host, UNSHAPED)
            except StudyError as error:
                # What was measured stands, and the next run sets its own.
                logging.warning("the link of %s stays at %s Mbit/s: %s", host, rate, error)


def _set_link(site: Site, host: str, rate: str) -> None:
    command = [word.replace("{host}", host).replace("{rate}", rate) for word in shlex.split(site.set_link or "")]
    try:
        subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or error
        raise StudyError(
            f"{site.path}: set_link: `{shlex.join(command)}` failed ({str(reason).strip()}); try it in a job, and "
            "correct it"
        ) from error

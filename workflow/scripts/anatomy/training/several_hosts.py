"""The launcher of a run on several hosts: inside a job of SLURM's, one srun with one task per rank.

It needs neither torch nor DGL: with a container these are in the container. When one rank fails, all are ended.
"""

import logging
import os
import queue
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import psutil

from anatomy.errors import StudyError
from anatomy.site import Site
from anatomy.training.failures import OUT_OF_MEMORY, Interrupted, RunFailed, is_out_of_memory, time_limit
from anatomy.training.links import links_set
from anatomy.training.meeting import End, Meeting
from anatomy.training.membership import INTERFACE, address_towards
from anatomy.training.specification import RunSpecification

PROGRAM = Path(__file__).resolve().parents[2] / "train_run.py"
_WORDS_OF_SRUN_S = 2
"""How long after a rank's silent end srun may take to say why."""
_ENDING_S = 15
"""How long ranks have to end when the launcher has let them go, or SLURM has asked them to."""
_OOM = ("oom", "Out Of Memory")


def run_ranks(specification: RunSpecification, inputs: Sequence[str], site: Site | None) -> None:
    """Start the ranks and wait for them; `inputs` are the options of train_run.py.

    Raises StudyError where this is no job of as many hosts as the run asks for, its links cannot be set or the inputs
    are wrong, RunFailed when a rank fails or the time is up, and Interrupted when the ranks ended because they were
    asked to.
    """
    hosts = hosts_of_job()
    if len(hosts) != specification.hosts:
        raise StudyError(
            f"{specification.path}: hosts: found {specification.hosts}, but this job has {len(hosts)} "
            f"({', '.join(hosts) or 'it is none of SLURM'}); start it by `snakemake --profile slurm`, or inside "
            f"`salloc --nodes={specification.hosts} --ntasks-per-node={specification.ranks_per_host}`"
        )
    with links_set(specification, hosts, site):
        _run_ranks(specification, inputs, site, hosts[1])


def _run_ranks(specification: RunSpecification, inputs: Sequence[str], site: Site | None, other_host: str) -> None:
    meeting = Meeting(_own_address(other_host, site), specification.ranks)
    environment = os.environ | meeting.environment() | _settings(specification, site)
    command = srun_command(specification, inputs, site)
    logging.info("%s", shlex.join(command))
    try:
        with _Srun(command, environment) as srun, _asked_to_end(srun), time_limit(specification.training.timeout_s):
            _wait(srun, meeting, specification.ranks)
    finally:
        meeting.close()


def srun_command(specification: RunSpecification, inputs: Sequence[str], site: Site | None) -> list[str]:
    """The command that starts all ranks; a container's stands before each rank's Python."""
    container = shlex.split(os.path.expandvars(site.container)) if site and site.container else []
    return [
        "srun",
        f"--nodes={specification.hosts}",
        f"--ntasks={specification.ranks}",
        f"--ntasks-per-node={specification.ranks_per_host}",
        f"--cpus-per-task={specification.training.threads_per_rank}",
        "--distribution=block",
        "--mpi=none",
        "--input=none",
        "--kill-on-bad-exit=1",
        *container,
        "python" if container else sys.executable,
        str(PROGRAM),
        *inputs,
    ]


def hosts_of_job() -> list[str]:
    """Names of this job's hosts, the one where its script runs first; none outside of a job of SLURM's.

    Raises StudyError where SLURM does not tell.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return []
    nodes = os.environ.get("SLURM_JOB_NODELIST") or _said(["squeue", "--noheader", f"--jobs={job}", "--format=%N"])
    return _said(["scontrol", "show", "hostnames", nodes]).split()


def _said(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or error
        raise StudyError(
            f"`{shlex.join(command)}` failed ({str(reason).strip()}); it names the hosts of this job: try it in a job, "
            "and ask those who run the cluster"
        ) from error


def _own_address(other: str, site: Site | None) -> str:
    """This host's address as the other hosts see it; its own name may lead to its loopback interface."""
    if site and site.interface:
        entries = psutil.net_if_addrs().get(site.interface, [])
        own = [entry.address for entry in entries if entry.family == socket.AF_INET]
        if own:
            return own[0]
        raise StudyError(
            f"{site.path}: interface: found {site.interface!r}, which has no IPv4 address on the first host; there "
            f"are: {', '.join(psutil.net_if_addrs())}; name one of these"
        )
    # By the address that SLURM itself uses, which may be known where the host's name is not.
    known = re.search(r"\bNodeAddr=(\S+)", _said(["scontrol", "show", "node", other]))
    try:
        return address_towards(socket.gethostbyname(known[1] if known else other))
    except OSError as error:
        raise StudyError(
            f"host {other} of this job can't be found ({error}); name the network `interface` in the cluster's settings"
        ) from error


def _settings(specification: RunSpecification, site: Site | None) -> dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(specification.training.threads_per_rank))
    interface = {INTERFACE: site.interface} if site and site.interface else {}
    return threads | interface | {"KINETO_LOG_LEVEL": os.environ.get("KINETO_LOG_LEVEL", "5")}


class _Srun:
    """srun at work. What it writes is passed on; what it says itself of ends is remembered."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.said: list[str] = []
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._pass_on, daemon=True)
        self._reader.start()

    def __enter__(self) -> "_Srun":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def status(self) -> int | None:
        return self._process.poll()

    def wait(self) -> None:
        """For the end of ranks that are done."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING_S)

    def ask_to_end(self) -> None:
        """srun passes the signal on to all ranks."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def end(self) -> None:
        """Have all ranks ended; SLURM kills what is left of them with the job."""
        for ask in (self.ask_to_end, self._process.kill):
            if self._process.poll() is None:
                ask()
                self.wait()
        self._reader.join(1)

    def _pass_on(self) -> None:
        for line in self._process.stderr:
            if line.startswith(("srun: ", "slurmstepd: ")):
                self.said.append(line.strip())
            sys.stderr.write(line)
            sys.stderr.flush()


def _wait(srun: _Srun, meeting: Meeting, num_ranks: int) -> None:
    """Until all ranks are done, or one is not."""
    done, interrupted = 0, None
    while done < num_ranks:
        try:
            end = meeting.ends.get(timeout=0.2)
        except queue.Empty:
            if srun.status is not None and meeting.ends.empty():
                _raise_silent(f"srun ended with status {srun.status}", srun)
            continue
        if end.how in ("failed", "lost"):
            _raise_failure(end, srun, meeting)
        interrupted = interrupted or (end if end.how == "interrupted" else None)
        done += 1
    srun.wait()
    if interrupted:
        raise Interrupted(interrupted.message)


def _raise_failure(end: End, srun: _Srun, meeting: Meeting) -> NoReturn:
    if end.how == "lost":
        time.sleep(_WORDS_OF_SRUN_S)
        # A rank that was killed is seen at once, but one that fails in words may have come in between.
        while not meeting.ends.empty():
            other = meeting.ends.get()
            end = other if other.how == "failed" and end.how == "lost" else end
    if end.how == "lost":
        _raise_silent(f"rank {end.rank} on {end.host}: {end.message}", srun)
    text = f"{end.message}\n{end.details}".rstrip()
    raise RunFailed(text, OUT_OF_MEMORY if is_out_of_memory(end.message) else None)


def _raise_silent(what: str, srun: _Srun) -> NoReturn:
    reason = next((line for line in srun.said if "error" in line and "Job step aborted" not in line), None)
    out_of_memory = any(word in line for word in _OOM for line in srun.said)
    raise RunFailed(what + (f" ({reason})" if reason else ""), OUT_OF_MEMORY if out_of_memory else None)


@contextmanager
def _asked_to_end(srun: _Srun) -> Iterator[None]:
    """Pass SIGTERM on to the ranks, and wait for what they make of it."""
    before = signal.signal(signal.SIGTERM, lambda *_: srun.ask_to_end())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

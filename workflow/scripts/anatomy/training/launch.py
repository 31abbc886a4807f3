"""The launcher. On one host: torchrun's elastic agent, in this process, with one forked worker per rank.

What a run imports is imported once, before the fork, and not by every rank. Ranks meet through a file in a private
folder and talk over the loopback interface on ports that the kernel chooses, so parallel jobs never meet. Ranks on
several hosts are started by `several_hosts`.
"""

import logging
import os
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

from anatomy.files import attempt, set_aside
from anatomy.site import Site, read_site
from anatomy.training import several_hosts
from anatomy.training.checkpoint_files import kept_epochs
from anatomy.training.failures import (
    INTERRUPTED_STATUS,
    OUT_OF_MEMORY,
    Interrupted,
    RunFailed,
    is_out_of_memory,
    kernel_kills_for_memory,
    stragglers_end,
    time_limit,
)
from anatomy.training.results import MANIFESTS, write_failed
from anatomy.training.specification import RunSpecification, read_specification

CONTAINED = "ANATOMY_CONTAINED"
"""Environment variable that is set where this process runs in the container of the cluster's settings."""


def launch(spec: Path, graph: Path, partition: Path, out: Path, mode: str, site: Site | None = None) -> None:
    """Train a run on this host, or on those of this job of SLURM's, and leave its result in `out`.

    A run that ends for want of memory or by its time limit leaves a result that says so where `keep_failures` is set.

    Raises StudyError for wrong settings or inputs, TakenOver where another attempt at the run has begun, RunFailed for
    a run that left no result, and Interrupted for one that was asked to end and can go on later.
    """
    started = time.perf_counter()
    specification = read_specification(spec)
    if specification.hosts == 1 and site and site.container and CONTAINED not in os.environ:
        _go_into(site.container)
    with attempt(out, MANIFESTS[mode]) as stage:
        set_aside(stage, MANIFESTS[mode])
        try:
            if specification.hosts == 1:
                _launch_here(specification, graph, partition, out, mode, stage)
            else:
                folders = {"--spec": spec, "--graph": graph, "--partition": partition, "--out": out, "--stage": stage}
                options = [str(word) for option, folder in folders.items() for word in (option, folder.resolve())]
                several_hosts.run_ranks(specification, [*options, "--mode", mode], site)
        except RunFailed as failure:
            if failure.status is None or not specification.training.keep_failures:
                raise
            logging.info("%s: %s, kept as data: %s", specification.run, failure.status, failure)
            write_failed(specification, stage, mode, failure.status, str(failure), time.perf_counter() - started)


def _go_into(container: str) -> NoReturn:
    """Become the same program in a container; `container` is the command that runs what follows it in there."""
    command = [*shlex.split(os.path.expandvars(container)), "python", *sys.argv]
    os.execvpe(command[0], command, os.environ | {CONTAINED: "1"})


def _launch_here(
    specification: RunSpecification, graph: Path, partition: Path, out: Path, mode: str, stage: Path
) -> None:
    _prepare_environment(specification.training.threads_per_rank)
    from anatomy.training.operators import load_operators
    from anatomy.training.run import open_inputs

    inputs = open_inputs(specification.path, graph, partition)
    load_operators(specification.training.operators)
    with tempfile.TemporaryDirectory(prefix="anatomy-run-") as scratch:
        _run_ranks(inputs, out, mode, stage, Path(scratch))


def _prepare_environment(threads_per_rank: int) -> None:
    """What must stand in the environment before torch is imported; nothing of a batch system may reach a local run."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "PMI_", "PMIX_"))]:
        del os.environ[name]
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads_per_rank)
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # the profiler's stages are no news


def _run_ranks(inputs: Any, out: Path, mode: str, stage: Path, scratch: Path) -> None:
    """Start the ranks and wait for them.

    Raises RunFailed when one fails or the time is up, and Interrupted when they were asked to end and can go on later.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from anatomy.training import rendezvous

    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)  # we report failures
    training = inputs.specification.training
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=inputs.specification.ranks,
        run_id=scratch.name,
        rdzv_backend=rendezvous.BACKEND,
        local_addr="127.0.0.1",
        start_method="fork",
        monitor_interval=0.05,
        max_restarts=0,
        log_dir=str(scratch / "log"),
    )
    kills = kernel_kills_for_memory()
    try:
        with time_limit(training.timeout_s), stragglers_end():
            elastic_launch(config, _work)(inputs, out, mode, stage, f"file://{scratch}/rendezvous")
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        _raise_failure(rank, failure, kernel_kills_for_memory() > kills)
    except SignalException as error:
        # The ranks were told as well; those that keep checkpoints wrote one before they ended.
        if kept_epochs(out) is not None:
            raise Interrupted(f"asked to end ({error.sigval.name})") from None
        raise RunFailed(f"ended by signal {error.sigval.name}") from None


def _work(inputs: Any, out: Path, mode: str, stage: Path, init_method: str) -> None:
    """One rank's process. It ends with the launcher, also when that is killed."""
    from torch.multiprocessing import _prctl_pr_set_pdeathsig

    from anatomy.training.failures import culprits_first
    from anatomy.training.run import train

    _prctl_pr_set_pdeathsig(signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with culprits_first():
        train(inputs, out, mode, init_method, stage)


def _raise_failure(rank: int, failure: Any, kernel_killed: bool) -> NoReturn:
    """Turn the agent's first failure into RunFailed: the rank and its exception first, its traceback after.

    Raises Interrupted for a rank that was asked to end and did so in good order.
    """
    if failure.exitcode == INTERRUPTED_STATUS:
        raise Interrupted("asked to end (SIGTERM)")
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        if kernel_killed and failure.exitcode == -signal.SIGKILL:
            raise RunFailed(f"rank {rank}: killed by the kernel, which had no memory left", OUT_OF_MEMORY)
        raise RunFailed(f"rank {rank}: ended by signal {name}")
    details = failure.error_file_data["message"] if failure.error_file_data else {"message": f"exit {failure.exitcode}"}
    message, callstack = details["message"], details.get("extraInfo", {}).get("py_callstack", "")
    if is_out_of_memory(message):
        raise RunFailed(f"rank {rank}: {message.splitlines()[0]}", OUT_OF_MEMORY)
    raise RunFailed(f"rank {rank}: {message}\n{callstack}".rstrip())


def run_launcher(spec: Path, graph: Path, partition: Path, out: Path, mode: str, site: Path | None = None) -> None:
    """`launch` for a command line: a run without a result is one message, first error first, and exit status 1.

    `site` is the file of the cluster's settings.
    """
    try:
        launch(spec, graph, partition, out, mode, read_site(site) if site else None)
    except Interrupted as end:
        print(f"error: {end.message}", file=sys.stderr)
        raise
    except RunFailed as failure:
        print(f"error: {failure}", file=sys.stderr)
        raise SystemExit(1) from None

"""What studies suffer on an emulated cluster, and what is seen of it. Each function is one study from start to end."""

import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from study_on_slurm import Study, run_name, wait_until

FAR, NEAR = [run_name(seed, hosts=2) for seed in range(3)], [run_name(seed) for seed in range(3)]
RAISED, KILLED, STOPPED = FAR
CANCELLED, LIMITED, _ = NEAR

Outcome = dict[str, Any]


def lose_ranks(study: Study) -> Outcome:
    """One of a run's ranks raises, is killed, is stopped; a job is cancelled, and one reaches its time limit."""
    for run, fault in ((RAISED, "raise"), (KILLED, "kill"), (STOPPED, "stop")):
        study.plant(run, fault)
    for run in (CANCELLED, LIMITED):
        study.plant(run, "pace", "0.3")
    study.start(RAISED, KILLED, STOPPED, CANCELLED, LIMITED)
    with ThreadPoolExecutor() as pool:
        awaited = {run: pool.submit(suffer_in_rank, study, run) for run in (RAISED, KILLED, STOPPED)}
        awaited[CANCELLED] = pool.submit(suffer_from_slurm, study, CANCELLED, ["scancel"])
        awaited[LIMITED] = pool.submit(
            suffer_from_slurm, study, LIMITED, ["scontrol", "update", "TimeLimit=1", "JobId="]
        )
        found = {run: future.result() for run, future in awaited.items()}
    return found | {"status": study.finish(), "study": study}


def suffer_in_rank(study: Study, run: str) -> Outcome:
    suffered = study.planted / f"{run}.suffered"
    wait_until(suffered.exists, f"{run} suffers")
    outcome = study.wait_for_failure(run, time.monotonic())
    (study.planted / f"{run}.hold").unlink()
    return outcome


def suffer_from_slurm(study: Study, run: str, command: list[str]) -> Outcome:
    study.wait_for_epoch(run, 25)
    *options, last = command
    job = study.job_of(run)
    study.cluster.run([*options, last + job] if last.endswith("=") else [*command, job])
    outcome = study.wait_for_failure(run, time.monotonic())
    (study.planted / f"{run}.pace").unlink()
    return outcome | {"job": job}


def lose_hosts(study: Study) -> Outcome:
    """A host of a two-host run dies, and the daemons of two other runs' hosts, whose jobs live on.

    The first of these is held until the next attempt has begun, the other until the study has ended.
    """
    far, soon, late = FAR[0], *NEAR[:2]
    hosts = list(study.cluster.status()["hosts"])
    for run in (far, soon, late):
        for host in hosts:
            study.plant(run, f"hold.{host}")
    study.start(far, soon, late, PATH=path_with_accounting(study))
    lost = {run: study.wait_for_ranks(run)[-1] for run in (far, soon, late)}
    study.cluster.emulate("kill-host", lost[far])
    for run in (soon, late):
        study.cluster.emulate("kill-daemon", lost[run])
    began = time.monotonic()
    found: Outcome = {}
    for run in (far, soon, late):
        found[run] = study.wait_for_failure(run, began)
        # From here on only what is an orphan is held, and the attempt after the one that is soon let go.
        for host in hosts:
            if run != soon and host != lost[run]:
                (study.planted / f"{run}.hold.{host}").unlink()
    study.wait_for_ranks(soon, but=(lost[soon],))
    let_go(study, soon, lost[soon])
    found["left by the first"] = study.metrics_path(soon).exists()
    for host in set(hosts) - {lost[soon]}:
        (study.planted / f"{soon}.hold.{host}").unlink()
    found["status"] = study.finish()
    found["completed_s"] = time.monotonic() - began
    published = study.metrics_path(late).stat().st_ino
    let_go(study, late, lost[late])
    found["spoiled by the second"] = not study.metrics_path(late).exists() or (
        study.metrics_path(late).stat().st_ino != published
    )
    found["said again"] = study.complete(far, soon, late)
    return found | {"study": study}


def path_with_accounting(study: Study) -> str:
    """A PATH with a sacct that names a job's hosts, as where accounting is on."""
    folder = study.root.parent / "bin"
    folder.mkdir()
    sacct = folder / "sacct"
    sacct.write_text('#!/bin/sh\nexec squeue --noheader --states=all --jobs="$2" --format=%N\n')
    sacct.chmod(0o755)
    return os.pathsep.join([str(folder), os.environ["PATH"]])


def let_go(study: Study, run: str, host: str) -> None:
    """Have an orphan train to its end, and wait for that."""
    (study.planted / f"{run}.hold.{host}").unlink()

    def all_ended() -> bool:
        try:
            study.cluster.emulate("exec", host, "--", "pgrep", "-f", "launch_run|snakemake")
        except subprocess.CalledProcessError:
            return True
        return False

    assert not all_ended(), "there was no orphan"
    wait_until(all_ended, f"the orphan of {run} on {host} has ended")


def lose_controller(study: Study) -> Outcome:
    """slurmctld is away for a minute, while one job ends and another is to be submitted; there is no sacct."""
    holds = [study.plant(run, "hold") for run in NEAR[:2]]
    study.start(*NEAR[:2], options=("--jobs", "1"), PATH=path_without_accounting(study))
    wait_until(lambda: list(study.planted.glob("*.began.*")), "the first run trains")
    time.sleep(6)  # it writes its state down every 5 s
    study.cluster.emulate("kill-daemon", "ctl")
    for hold in holds:
        hold.unlink()
    time.sleep(60)
    study.cluster.emulate("restore", "ctl")
    return {"status": study.finish(), "study": study}


def path_without_accounting(study: Study) -> str:
    """A PATH with everything but sacct."""
    folder = study.root.parent / "bin"
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            if program.name != "sacct" and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return str(folder)


def end_snakemake(study: Study, end: int) -> Outcome:
    """Snakemake is ended in the midst of a run on two hosts, and called again."""
    run = FAR[0]
    study.plant(run, "hold")
    study.start(run)
    study.wait_for_ranks(run)
    job = study.job_of(run)
    began = time.monotonic()
    os.killpg(study.process.pid, end) if end == signal.SIGINT else study.process.send_signal(end)
    status = study.finish()
    outcome = {"status": status, "ended_s": time.monotonic() - began, "said": study.said(), "job": job}
    time.sleep(5)
    outcome["jobs"] = study.jobs()
    (study.planted / f"{run}.hold").unlink()
    outcome["said again"] = study.complete(run)
    return outcome | {"completed_s": time.monotonic() - began, "study": study}


def fill_disk(study: Study, disk: Path) -> Outcome:
    """The disk with the results fills up while a run trains, is read-only at the next call, and then has room again."""
    run = NEAR[2]
    shutil.copytree(study.results, disk, dirs_exist_ok=True)
    shutil.rmtree(study.results)
    study.results.symlink_to(disk)
    study.plant(run, "hold")
    study.start(run)
    study.wait_for_ranks(run)
    filler = disk / "filler"
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}"], stderr=subprocess.DEVNULL)  # until there is no room
    (study.planted / f"{run}.hold").unlink()
    outcome = {"status": study.finish(), "said": study.said(), "left": study.metrics_path(run).exists()}
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    study.start(run)
    outcome |= {"status read-only": study.finish(), "said read-only": study.said()}
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    filler.unlink()
    study.complete(run)
    return outcome | {"study": study}

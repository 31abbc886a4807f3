"""SLURM's commands, as far as a study uses them, played on one host: what they are called by decides what they are.

Jobs run at once, all hosts of a job are this one, and nothing is limited. `Fake` sets it up in a folder, where
`calls.jsonl` has the arguments of every sbatch and srun, and `jobs/` the state of every job. Where the environment's
`FAKE_SLURM_HOSTS` is a list of command lines in JSON, srun's tasks run on other hosts: each line begins with one of
them.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo", "sacct", "sacctmgr", "sshare")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


class Fake:
    """A folder with the commands in it, for tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "jobs").mkdir(parents=True)
        (folder / "bin").mkdir()
        for name in COMMANDS:
            program = folder / "bin" / name
            program.write_text(f"#!{sys.executable}\nexec(compile(open({__file__!r}).read(), {__file__!r}, 'exec'))\n")
            program.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])
        return {"PATH": path, "FAKE_SLURM": str(self.folder)}

    def calls(self, command: str) -> list[list[str]]:
        """Arguments of every call so far."""
        file = self.folder / "calls.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [arguments for name, *arguments in lines if name == command]

    def jobs(self) -> dict[str, dict]:
        return {path.stem: json.loads(path.read_text()) for path in sorted((self.folder / "jobs").glob("*.json"))}

    def forget(self) -> None:
        """Have squeue answer as if slurmctld knew nothing."""
        for path in (self.folder / "jobs").glob("*.json"):
            path.unlink()


def option(arguments: list[str], *names: str, default: str = "") -> str:
    """The value of an option: `--name=value`, `--name value`, `-n value` or `-nvalue`."""
    for place, argument in enumerate(arguments):
        for name in names:
            if argument == name:
                return arguments[place + 1]
            if argument.startswith(f"{name}=") and name.startswith("--"):
                return argument.split("=", 1)[1]
            if re.fullmatch(rf"{name}\d+", argument):
                return argument[len(name) :]
    return default


def write_state(folder: Path, job: str, **content: object) -> None:
    path = folder / "jobs" / f"{job}.json"
    old = json.loads(path.read_text()) if path.exists() else {}
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(old | content))
    partial.replace(path)


def sbatch(folder: Path, arguments: list[str]) -> int:
    job = str(len(list((folder / "jobs").glob("*.number"))) + 1)
    while True:
        try:
            (folder / "jobs" / f"{job}.number").touch(exist_ok=False)
            break
        except FileExistsError:
            job = str(int(job) + 1)
    write_state(folder, job, name=option(arguments, "--job-name"), state="RUNNING", arguments=arguments)
    print(job, flush=True)
    if os.fork():
        return 0
    os.setsid()
    output = os.open(option(arguments, "--output").replace("%j", job), os.O_WRONLY | os.O_CREAT, 0o644)
    hosts = int(option(arguments, "--nodes", default="1"))
    environment = os.environ | {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": f"n[1-{hosts}]"}
    process = subprocess.Popen(
        ["bash", "-c", option(arguments, "--wrap")],
        env=environment,
        cwd=option(arguments, "-D", default="."),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    for stream in (0, 1, 2):
        os.close(stream)
    write_state(folder, job, group=process.pid)
    status = process.wait()
    state = json.loads((folder / "jobs" / f"{job}.json").read_text())["state"]
    if state not in ENDED:
        write_state(folder, job, state="COMPLETED" if status == 0 else "FAILED")
    os._exit(0)


def srun(folder: Path, arguments: list[str]) -> int:
    first = next(place for place, argument in enumerate(arguments) if not argument.startswith("-"))
    options, command = arguments[:first], arguments[first:]
    tasks, hosts = int(option(options, "-n", "--ntasks", default="1")), int(option(options, "--nodes", default="1"))
    inside = json.loads(os.environ.get("FAKE_SLURM_HOSTS", "[]")) or [[]] * hosts
    processes = []
    for rank in range(tasks):
        numbers = {"PROCID": rank, "NTASKS": tasks, "LOCALID": rank % max(1, tasks // hosts)}
        environment = os.environ | {f"SLURM_{name}": str(number) for name, number in numbers.items()}
        processes.append(subprocess.Popen([*inside[rank * hosts // tasks], *command], env=environment))
    signal.signal(signal.SIGTERM, lambda *_: [process.terminate() for process in processes])
    status = 0
    while any(process.poll() is None for process in processes):
        failed = [rank for rank, process in enumerate(processes) if process.poll() not in (None, 0)]
        if failed and "--kill-on-bad-exit=1" in options and status == 0:
            code = processes[failed[0]].returncode
            status = 143
            words = signal.Signals(-code).name if code < 0 else f"Exited with exit code {code}"
            print(f"srun: error: n1: task {failed[0]}: {words}", file=sys.stderr, flush=True)
            for process in processes:
                process.kill()
        time.sleep(0.05)
    return status or max(process.returncode for process in processes)


def squeue(folder: Path, arguments: list[str]) -> int:
    if (folder / "silent").exists():
        print("slurm_load_jobs error: Unable to contact slurm controller", file=sys.stderr)
        return 1
    if job := option(arguments, "--jobs"):
        hosts = option(json.loads((folder / "jobs" / f"{job}.json").read_text())["arguments"], "--nodes", default="1")
        print(f"n[1-{hosts}]")
        return 0
    every, name = option(arguments, "--states") == "all", option(arguments, "--name")
    second = "name" if option(arguments, "--format").endswith("%j") else "state"
    for path in (folder / "jobs").glob("*.json"):
        job = json.loads(path.read_text())
        if (every or job["state"] not in ENDED) and name in ("", job["name"]):
            print(f"{path.stem}|{job[second]}")
    return 0


def scancel(folder: Path, arguments: list[str]) -> int:
    name = option(arguments, "--name")
    for path in list((folder / "jobs").glob("*.json")):
        job = json.loads(path.read_text())
        if job["state"] not in ENDED and (path.stem in arguments or name == job["name"]):
            write_state(folder, path.stem, state="CANCELLED")
            if group := job.get("group"):
                os.killpg(group, signal.SIGKILL)
    return 0


def scontrol(folder: Path, arguments: list[str]) -> int:
    if arguments[:2] == ["show", "hostnames"]:
        count = int(re.search(r"-(\d+)\]", arguments[2])[1])
        print("\n".join(["localhost"] * count))
    elif arguments[:2] == ["show", "config"]:
        print("MinJobAge = 300 sec")
    return 0


def sinfo(folder: Path, arguments: list[str]) -> int:
    print("PARTITION\nmain*")
    return 0


def without_accounting(folder: Path, arguments: list[str]) -> int:
    print("Slurm accounting storage is disabled", file=sys.stderr)
    return 1


sacct = sacctmgr = sshare = without_accounting


if __name__ == "__main__":
    called = Path(sys.argv[0]).name
    state = Path(os.environ["FAKE_SLURM"])
    if called in ("sbatch", "srun"):
        with open(state / "calls.jsonl", "a") as file:
            file.write(json.dumps([called, *sys.argv[1:]]) + "\n")
    sys.exit(globals()[called](state, sys.argv[1:]))

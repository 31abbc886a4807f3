"""Faults in the ranks of a study's runs, for jobs whose PYTHONPATH names this folder; the library knows nothing of it.

$PLANTED is a folder where a test leaves files, named after the run, which a rank reads before each of its steps:

    {run}.pace            seconds that every step takes longer
    {run}.hold            the first step waits as long as this is here
    {run}.hold.{host}     on that host alone
    {run}.{fault}         raise, kill, stop: rank 1 takes the file away in its third step and suffers the fault, and
                          the next attempt is held

At its first step a rank leaves {run}.began.{host}.{rank}.
"""

import importlib.abc
import importlib.util
import os
import platform
import signal
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "anatomy.training.strategies._base"
FAULTS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Finder(importlib.abc.MetaPathFinder):
    """Has the update of every step preceded by `before_step`, when the module that defines it is imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        execute = found.loader.exec_module

        def execute_and_plant(module: ModuleType) -> None:
            execute(module)
            plant(module.Context)

        found.loader.exec_module = execute_and_plant
        return found


def plant(context_class: Any) -> None:
    update, steps = context_class.update, []

    def planted_update(context: Any, *arguments: Any) -> Any:
        steps.append(time.monotonic())
        before_step(len(steps), context.specification.run, context.communicator.rank)
        return update(context, *arguments)

    context_class.update = planted_update


def before_step(step: int, run: str, rank: int) -> None:
    folder, host = Path(os.environ["PLANTED"]), platform.node()
    if step == 1:
        (folder / f"{run}.began.{host}.{rank}").touch()
        while any((folder / f"{run}.{name}").exists() for name in ("hold", f"hold.{host}")):
            time.sleep(0.05)
    if (pace := folder / f"{run}.pace").exists():
        time.sleep(float(pace.read_text() or 0))
    if step == 3 and rank == 1:
        for fault in ("raise", "kill", "stop"):
            if (file := folder / f"{run}.{fault}").exists():
                (folder / f"{run}.hold").touch()
                file.rename(folder / f"{run}.suffered")
                suffer(fault)


def suffer(fault: str) -> None:
    if fault == "raise":
        raise ArithmeticError("planted in step 2")
    os.kill(os.getpid(), FAULTS[fault])


if "PLANTED" in os.environ:
    sys.meta_path.insert(0, Finder())

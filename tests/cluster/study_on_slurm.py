"""A small study on an emulated cluster, run as a person does, with faults planted in its runs."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from anatomy.files import read_json
from anatomy.submission import name_prefix
from checkout import Checkout

PLANTED = Path(__file__).parent / "planted"
EPOCHS = 200
PEER_TIMEOUT_S = 30
PATIENCE_S = 900
"""Nothing here takes as long, also on a machine that has other work."""
_SOON = ("--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "10")


def run_name(seed: int, hosts: int = 1) -> str:
    return f"tiny.metis-2.fullgraph.sage.{'h2.' if hosts == 2 else ''}s{seed}"


def configuration(results: str, **training: Any) -> dict[str, Any]:
    """Two ranks train three runs on one host, and three on two."""
    common = {
        "question": "Is anything lost?",
        "graphs": ["tiny"],
        "ranks": [2],
        "partitioners": ["metis"],
        "strategies": ["fullgraph"],
        "models": ["sage"],
        "seeds": [0, 1, 2],
    }
    test = yaml.safe_load((Path(__file__).parents[2] / "config" / "test.yaml").read_text())
    return {
        "results": results,
        "graphs": {"tiny": test["graphs"]["tiny"]},
        "partitioners": {"metis": {"method": "metis"}},
        "strategies": {"fullgraph": {"method": "fullgraph", "epochs": EPOCHS}},
        "models": {"sage": test["models"]["sage"]},
        "training": {"timeout_s": 600, "peer_timeout_s": PEER_TIMEOUT_S, "evaluate_every": 50, **training},
        "experiments": {"near": common, "far": common | {"ranks_per_host": [1]}},
        "tables": {"volume": {"experiments": ["near"]}},
        "figures": ["volume"],
    }


def losses(results: Path, run: str) -> list[float]:
    """Of all epochs and ranks of a run, in order."""
    epochs = pd.read_parquet(results / "runs" / run / "timed" / "epochs.parquet")
    return epochs.sort_values(["rank", "epoch"]).loss.tolist()


def wait_until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> Any:
    """The first true value of a condition."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.1)
    return value


class Study:
    """A study in a folder of its own. `finished` has its graph and partition, and the same runs without SLURM."""

    def __init__(
        self,
        finished: Checkout,
        folder: Path,
        cluster: Any,
        results: str = "results/faults",
        exclusive: bool = False,
        **training: Any,
    ) -> None:
        self.checkout = finished.copied_to(folder / "study")
        self.root, self.cluster = self.checkout.root, cluster
        self.results = self.root / results
        for timed in (self.root / "results" / "faults" / "runs").glob("*/timed"):
            shutil.rmtree(timed)
        shutil.rmtree(self.root / "results" / "faults" / "logs")
        (self.root / "config" / "faults.yaml").write_text(yaml.safe_dump(configuration(results, **training)))
        (self.root / "slurm").symlink_to("profiles/slurm")
        self.planted = folder / "planted"
        self.planted.mkdir()
        setup = f"export PLANTED={self.planted} PYTHONPATH={PLANTED}"
        site = {"exclusive": exclusive, "setup": setup}
        (self.root / "profiles" / "slurm" / "site.yaml").write_text(yaml.safe_dump(site))
        self.terminal = folder / "terminal"
        self.process: subprocess.Popen | None = None

    # What a person does

    def start(self, *runs: str, options: tuple[str, ...] = (), **environment: str) -> None:
        """Call Snakemake for some runs, in a terminal of its own."""
        targets = [str(self.metrics_path(run).relative_to(self.root)) for run in runs]
        options = ["--configfile", "config/faults.yaml", "--profile", "slurm", *_SOON, *options]
        with open(self.terminal, "w") as terminal:
            self.process = subprocess.Popen(
                self.checkout.command(*targets, *options),
                cwd=self.root,
                env=os.environ | self.cluster.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=terminal,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def finish(self) -> int:
        """Wait for Snakemake's end; its exit status."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)
            raise AssertionError(f"Snakemake did not end:\n{self.said()}") from None

    def stop(self) -> None:
        """End a call of Snakemake that nobody waits for any more."""
        if self.process and self.process.poll() is None:
            self.process.kill()

    def complete(self, *runs: str, **environment: str) -> str:
        """Call Snakemake, which has to succeed; what it said."""
        self.start(*runs, **environment)
        assert self.finish() == 0, self.said()
        return self.said()

    # What is seen of it

    def said(self) -> str:
        return self.terminal.read_text()

    def wait_for_words(self, pattern: str, times: int = 1) -> str:
        """Wait until the terminal shows a pattern so often; the last of what it matched."""

        def seen() -> list[re.Match]:
            found = list(re.finditer(pattern, self.said(), re.MULTILINE))
            assert len(found) >= times or self.process.poll() is None, f"{pattern} not in\n{self.said()}"
            return found if len(found) >= times else []

        return wait_until(seen, f"the terminal shows {pattern}")[times - 1][0]

    def job_of(self, run: str) -> str:
        """The number of a run's job that has not ended, in SLURM."""
        lines = self.cluster.run(["squeue", "--noheader", "--format=%i %j %k"]).splitlines()
        own = [line.split() for line in lines if name_prefix(self.results) in line]
        return next(words[0] for words in own if words[2].endswith(f"_{run}"))

    def jobs(self) -> list[str]:
        """Numbers of all its jobs that have not ended."""
        lines = self.cluster.run(["squeue", "--noheader", "--format=%i %j"]).splitlines()
        return [line.split()[0] for line in lines if name_prefix(self.results) in line]

    def metrics_path(self, run: str) -> Path:
        return self.results / "runs" / run / "timed" / "metrics.json"

    def metrics(self, run: str) -> dict[str, Any]:
        return read_json(self.metrics_path(run), "metrics")

    def kept_log(self, run: str) -> Path:
        return self.results / "logs" / "failed" / f"{run}.timed.log"

    # Faults

    def plant(self, run: str, what: str, content: str = "") -> Path:
        path = self.planted / f"{run}.{what}"
        path.write_text(content)
        return path

    def wait_for_ranks(self, run: str, number: int = 2, but: tuple[str, ...] = ()) -> list[str]:
        """Wait until so many ranks train, leaving some hosts out; the hosts, in the order of ranks."""

        def began() -> list[str]:
            found = sorted(path.suffixes[-1] + path.suffixes[-2] for path in self.planted.glob(f"{run}.began.*"))
            hosts = [place.split(".")[2] for place in found if place.split(".")[2] not in but]
            return hosts if len(hosts) >= number else []

        return wait_until(began, f"{number} ranks of {run} train, in {self.said()}")

    def wait_for_epoch(self, run: str, epoch: int) -> None:
        log = self.results / "logs" / "runs" / f"{run}.timed.log"
        wait_until(lambda: log.exists() and f"epoch {epoch}/" in log.read_text(), f"epoch {epoch} of {run} is over")

    def wait_for_failure(self, run: str, since: float) -> dict[str, Any]:
        """Wait until Snakemake reports that a run failed: what it said, after how long, and what was left."""
        said = self.wait_for_words(rf"^\S+  FAILED: train {re.escape(run)}\n.*\n")
        return {
            "reported_s": time.monotonic() - since,
            "said": said,
            "log": self.kept_log(run).read_text(),
            "left": self.metrics_path(run).exists(),
        }

"""A copy of the checkout in which the whole workflow can run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENTRIES = ("Snakefile", "rules", "workflow", "profiles", "config", "envs", "tests/data")


class Checkout:
    """A copy of the workflow, and how a person calls it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)
        for name in ENTRIES:
            source = ROOT / name
            (root / name).parent.mkdir(exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, root / name)

    def copied_to(self, root: Path) -> "Checkout":
        """A copy of it as it stands, results and all, that may be changed."""
        shutil.copytree(self.root, root, symlinks=True)
        copy = object.__new__(Checkout)
        copy.root = root
        return copy

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "snakemake", *arguments]

    def snakemake(
        self, *arguments: str, timeout_s: float = 600, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run Snakemake to its end; stdout and stderr come together, as in a terminal."""
        return subprocess.run(
            self.command(*arguments),
            cwd=self.root,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )

    def planned(self, *arguments: str) -> set[str]:
        """The rules that a dry run would run."""
        said = self.snakemake("--dry-run", "--quiet", "host", *arguments).stdout
        return set(re.findall(r"^([a-z_]+) +\d+$", said, re.MULTILINE)) - {"total"}
